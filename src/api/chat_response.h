// Deltas to the chat dialect: chat.completion.chunk frames or one chat.completion object.
// Owned by a DialectCall; called by one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "api/call_options.h"
#include "api/dialect.h"
#include "api/output_plan.h"
#include "api/response_parts.h"

namespace deepinfer {

struct ChatResponseOptions {
  CallOptions call;
  Envelope envelope;
  TokenNames names;
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> stop_token_ids;
  int samples = 1;
  bool logprobs = false;
  std::string echo;  // text that begins every message
  OutputPlan output;
  enum class Reasoning { kShown, kHidden } reasoning = Reasoning::kShown;
};

class ChatResponse final : public ResponseStream {
 public:
  explicit ChatResponse(ChatResponseOptions options);
  void OnDelta(int prompt, OutputDelta delta, std::string* out) override;
  void Finish(std::string* out) override;
  void Fail(const Status& status, std::string* out) override;

 private:
  struct Choice {
    explicit Choice(const OutputPlan& plan) : reader(plan) {}
    bool started = false;
    OutputReader reader;
    int calls = 0;     // begun by what was sent
    ChoiceNews whole;  // the fold of what was not sent yet
  };

  ChoiceNews NewsOf(OutputDelta delta, Choice* choice) const;
  enum class Place { kFirst, kMiddle, kLast };  // of a chunk among those of its choice
  // One frame; `choice` is the choice's members after "index".
  void AppendChunk(std::string* out, const ChoiceNews& news, std::string_view choice,
                   Place place) const;
  void AppendChunkUsage(std::string* json, const ChoiceNews& news, Place place) const;
  void AppendChunks(std::string* out, const ChoiceNews& news, bool first, int* calls) const;
  // The delta of one part; nothing for a part that clients do not see.
  std::string Delta(const OutputPart& part, int choice, int* calls) const;
  bool ThinkingShown() const;
  void AppendFinishReason(std::string* out, const ChoiceNews& news) const;
  void AppendCalls(std::string* out, const ChoiceNews& news) const;
  void AppendMessage(std::string* out, const ChoiceNews& news) const;
  // "logprobs": the object, or null.
  void AppendLogprobs(std::string* out, const ChoiceNews& news) const;

  const ChatResponseOptions options_;
  const std::string open_;  // the envelope up to the choices
  UsageTotals totals_;
  std::vector<Choice> choices_;
  size_t ended_ = 0;  // choices
  std::string prompt_logprobs_;
};

}  // namespace deepinfer
