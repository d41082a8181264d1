// Sampling flags of `generate` and `chat`: the request fields of the HTTP API, spelled as flags.
// They become the same JSON object that a request carries, so one parser checks both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "base/json.h"

namespace deepinfer {

class SamplingFlags {
 public:
  // This object must outlive line->Parse.
  void AddTo(CommandLine* line);
  // And those for output that has room for several samples and log-probabilities.
  void AddReportsTo(CommandLine* line);
  // An object with the fields whose flags were given. Lists are JSON text: --logit-bias '{"5":1}'.
  Result<Json> ToParams() const;

 private:
  std::optional<float> temperature_, top_p_, min_p_;
  std::optional<float> presence_penalty_, frequency_penalty_, repetition_penalty_;
  std::optional<int> top_k_, n_, max_tokens_, min_tokens_, logprobs_, prompt_logprobs_;
  std::optional<int64_t> seed_, seq_seed_;
  std::vector<std::string> stop_;
  std::string stop_token_ids_, logit_bias_, allowed_token_ids_, bad_words_;
  std::string json_schema_, regex_, grammar_, choice_;
  bool json_object_ = false;
  bool ignore_eos_ = false;
  bool include_stop_str_in_output_ = false;
  bool keep_special_tokens_ = false;
};

}  // namespace deepinfer
