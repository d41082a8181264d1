// SamplingParams from the JSON fields that all dialects share: vLLM's names, OpenAI's, and the
// aliases of llama.cpp. Pure functions, any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// What holds when the request says nothing: the model's suggestion, then the dialect's.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  std::optional<int> max_tokens;  // unset: up to the context length
  int top_logprobs_max = 20;      // -1: no limit
};

// Reads every shared field of `body` (an object). Errors name the field, its value and its range.
// Log-probabilities are left to the dialect, which spell them differently (ReadLogprobCount).
Result<SamplingParams> ParseSampling(const Json& body, const SamplingDefaults& defaults);

// An integer count of log-probabilities under `key`: -1 or 0..limit; absent, null or false: none.
Result<std::optional<int>> ReadLogprobCount(const Json& body, std::string_view key, int limit);

// True for a field that ParseSampling reads.
bool IsSamplingField(std::string_view key);

// One sentence for each member of `body` that is neither a sampling field nor in `known`.
std::vector<std::string> UnknownFieldWarnings(const Json& body,
                                              std::span<const std::string_view> known);
// The first of them as an error, which names it.
Status RefuseUnknownFields(const Json& body, std::span<const std::string_view> known);

}  // namespace deepinfer
