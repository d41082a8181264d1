// Deltas to the completions dialect: text_completion chunks or one text_completion object.
// Owned by a DialectCall; called by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/call_options.h"
#include "api/dialect.h"
#include "api/prompt_list.h"
#include "api/response_parts.h"

namespace deepinfer {

struct CompletionResponseOptions {
  CallOptions call;
  Envelope envelope;
  TokenNames names;
  SpecialTokens special = SpecialTokens::kHidden;
  std::vector<TokenId> stop_token_ids;
  int samples = 1;  // per prompt
  bool logprobs = false;
  bool prompt_logprobs = false;  // report them (a caller may want them for echo alone)
  using Prompt = PromptInput;
  bool echo = false;
  std::vector<Prompt> prompts;
};

class CompletionResponse final : public ResponseStream {
 public:
  explicit CompletionResponse(CompletionResponseOptions options);
  void OnDelta(int prompt, OutputDelta delta, std::string* out) override;
  void Finish(std::string* out) override;
  void Fail(const Status& status, std::string* out) override;

 private:
  struct Choice {
    explicit Choice(const CompletionLogprobWriter& logprob_writer) : writer(logprob_writer) {}
    bool started = false;
    CompletionLogprobWriter writer;
    ChoiceNews whole;  // the fold of what was not sent yet
  };

  bool EchoesLogprobs() const { return options_.echo && options_.logprobs; }
  void Emit(int prompt, OutputDelta delta, std::string* out);
  ChoiceNews NewsOf(int prompt, OutputDelta delta);
  void AppendChoice(std::string* out, const ChoiceNews& news, int prompt, bool first) const;
  void AppendChunk(std::string* out, const ChoiceNews& news, int prompt, bool first) const;

  const CompletionResponseOptions options_;
  const std::string open_;  // the envelope up to the choices
  UsageTotals totals_;
  std::vector<Choice> choices_;  // prompt * samples + sample
  // With echoed log-probabilities: those of each prompt, and the deltas of its other samples that
  // came before them.
  std::vector<std::optional<std::vector<std::optional<TokenLogprob>>>> echo_logprobs_;
  std::vector<std::vector<OutputDelta>> early_;
};

}  // namespace deepinfer
