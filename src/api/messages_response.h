// Deltas to Anthropic's dialect: message_start .. message_stop, or one message.
// Owned by a DialectCall; called by one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "api/call_options.h"
#include "api/dialect.h"
#include "api/response_parts.h"

namespace deepinfer {

struct MessagesResponseOptions {
  CallOptions call;
  Envelope envelope;
  OutputPlan output;
  int64_t prompt_tokens = 0;
};

class MessagesResponse final : public ResponseStream {
 public:
  explicit MessagesResponse(MessagesResponseOptions options);
  void OnDelta(int prompt, OutputDelta delta, std::string* out) override;
  void Finish(std::string* out) override;
  void Fail(const Status& status, std::string* out) override;

 private:
  enum class BlockKind { kThinking, kText, kToolUse };
  struct Block {
    BlockKind kind = BlockKind::kText;
    std::string text;      // or the input as JSON text
    std::string id, name;  // of a tool_use
  };

  bool streams() const { return options_.call.mode == DialectCall::Mode::kStream; }
  void Send(ChoiceNews news, std::string* out);
  void Start(std::string* out);
  void Take(const OutputPart& part, std::string* out);
  void Open(Block block, std::string* out);
  void Add(std::string_view text, std::string* out);
  void Close(std::string* out);
  // Streaming: one event with `members` after the type; otherwise nothing.
  void Event(std::string_view type, std::string_view members, std::string* out) const;
  std::string UsageJson(int64_t output_tokens) const;
  std::string StopJson() const;  // "stop_reason":...,"stop_sequence":...
  static void AppendBlock(const Block& block, const std::string& signature, std::string* out);

  const MessagesResponseOptions options_;
  OutputReader reader_;
  ChoiceNews pending_;  // what was not sent yet
  bool started_ = false, pinged_ = false, open_ = false;
  std::vector<Block> blocks_;  // streaming: the last one, without its text
  int64_t blocks_total_ = 0;
  int calls_ = 0;
  Usage usage_;
  FinishReason finish_ = FinishReason::kNone;
  std::string stop_text_;
};

}  // namespace deepinfer
