// Deltas to the dialect of /v1/responses: its events, or one response object; and into the store.
// Owned by a DialectCall; called by one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "api/call_options.h"
#include "api/dialect.h"
#include "api/response_parts.h"
#include "api/response_store.h"

namespace deepinfer {

struct ResponsesResponseOptions {
  CallOptions call;
  std::string id;
  Json snapshot;  // the response as it begins: every member, nothing put out yet
  OutputPlan output;
  TokenNames names;
  bool logprobs = false;
  int64_t prompt_tokens = 0;
  std::unordered_set<std::string> custom_tools;  // whose calls are items of their own type
  ResponseStore* store = nullptr;                // nullptr: not kept
  std::vector<ResponseItems> history;
  ResponseItems input;
};

class ResponsesResponse final : public ResponseStream {
 public:
  explicit ResponsesResponse(ResponsesResponseOptions options);
  Status OnStart(std::function<void()> cancel) override;
  void OnDelta(int prompt, OutputDelta delta, std::string* out) override;
  void Finish(std::string* out) override;
  void Fail(const Status& status, std::string* out) override;

 private:
  enum class ItemKind { kReasoning, kMessage, kFunctionCall, kCustomCall };
  struct Item {
    ItemKind kind = ItemKind::kMessage;
    std::string id;
    std::string text;  // or arguments
    std::string call_id, name;
    std::string logprobs;  // comma-separated items
  };
  enum class ItemEnd { kComplete, kBeforeCall, kCut };

  bool streams() const { return options_.call.mode == DialectCall::Mode::kStream; }
  void Start(std::string* out);
  void Take(const OutputPart& part, const std::string& logprobs, std::string* out);
  void Open(ItemKind kind, std::string name, std::string* out);
  void Add(std::string_view text, const std::string& logprobs, std::string* out);
  void Close(ItemEnd end, std::string* out);
  void CloseParts(const Item& item, std::string* out);
  void Event(std::string_view type, std::string_view members, std::string* out);
  void SnapshotEvent(std::string_view type, std::string* out);
  std::string ItemJson(const Item& item, std::string_view status, std::string_view phase) const;
  std::string Place(const Item& item) const;  // "item_id":...,"output_index":...
  void Complete(std::string_view status);
  Json UsageJson() const;
  void Keep();

  const ResponsesResponseOptions options_;
  ResponseStore::Handle stored_ = 0;  // 0: not kept
  Json body_;                         // the snapshot as it is now
  OutputReader reader_;
  ChoiceNews pending_;
  bool started_ = false, open_ = false;
  Item item_;
  std::vector<Json> items_;  // closed ones
  int calls_ = 0;
  int64_t sequence_ = 0;
  Usage usage_;
  FinishReason finish_ = FinishReason::kNone;
};

}  // namespace deepinfer
