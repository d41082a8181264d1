// What the responses of both OpenAI dialects are built from: the envelope, the news of one choice,
// and the fold of such news into a whole. Plain values owned by a ResponseStream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/call_options.h"
#include "api/logprob_json.h"
#include "deepinfer/request.h"
#include "text/output_part.h"

namespace deepinfer {

// The members that every chunk of a response begins with, written once.
struct Envelope {
  std::string id;
  int64_t created_s = 0;
  std::string model;
  // {"id": ..., "object": `object`, "created": ..., "model": ...   without the closing brace
  std::string Open(std::string_view object) const;
};

// What one delta brings to one choice; also what all deltas of it add up to.
struct ChoiceNews {
  int index = 0;
  std::string text;                        // completions dialect
  std::vector<OutputPart> parts;           // chat dialect
  std::string chat_logprobs;               // comma-separated items, chat dialect
  CompletionLogprobs completion_logprobs;  // completions dialect
  std::string prompt_logprobs;             // a JSON list, or empty
  std::vector<TokenId> token_ids;
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;
  std::optional<TokenId> stop_token;
  Usage usage;  // totals so far
  int calls_complete = 0;

  void Fold(ChoiceNews&& more);
  // Enough for a chunk of a stream that wants `interval` tokens in each.
  bool Due(int interval) const {
    return finish != FinishReason::kNone || token_ids.size() >= static_cast<size_t>(interval);
  }
};

// "stop", "length", "abort", "error"; null while the sample runs.
void AppendFinish(std::string* out, FinishReason finish);
// The stop string, the stop token id when the request listed it, or null.
void AppendStopReason(std::string* out, const ChoiceNews& news,
                      const std::vector<TokenId>& stop_token_ids);
// ,"warnings":[...] or nothing.
void AppendWarnings(std::string* out, const std::vector<std::string>& warnings);

// Adds up what the choices of a response used. Prompt tokens count once for each prompt.
class UsageTotals {
 public:
  UsageTotals(std::vector<int64_t> prompt_tokens, int samples)
      : prompt_tokens_(std::move(prompt_tokens)),
        cached_(prompt_tokens_.size(), 0),
        completion_(prompt_tokens_.size() * static_cast<size_t>(samples), 0) {}
  void Update(int prompt, int choice, const Usage& usage);
  // From the first call on, what was used says how much of it was reasoning.
  void SetReasoning(int choice, int64_t tokens);
  // {"prompt_tokens": ..., ...} of all, or of one choice.
  void AppendTotal(std::string* out, UsageStyle style = UsageStyle::kOpenAi) const;
  void AppendChoice(std::string* out, int prompt, int choice) const;

 private:
  const std::vector<int64_t> prompt_tokens_;
  std::vector<int64_t> cached_;
  std::vector<int64_t> completion_;
  std::vector<int64_t> reasoning_;  // empty: not told
};

// "data: <json>\n\n".
void AppendFrame(std::string* out, std::string_view json);
inline constexpr std::string_view kDoneFrame = "data: [DONE]\n\n";
// The frame of an error after the start of a stream.
void AppendErrorFrame(std::string* out, const Status& status);

}  // namespace deepinfer
