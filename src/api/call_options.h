// What both OpenAI dialects read beside sampling: streaming, echo of ids, caching, truncation; and
// what both refuse. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/dialect.h"
#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct CallOptions {
  DialectCall::Mode mode = DialectCall::Mode::kWhole;
  bool include_usage = false;     // a last chunk with usage
  bool continuous_usage = false;  // usage in every chunk
  UsageStyle usage_style = UsageStyle::kOpenAi;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // "token_id:7" where logprobs name a token
  std::string request_id;
  std::string cache_salt;
  int priority = 0;
  bool skip_prefix_cache = false;
  int stream_interval = 1;             // tokens of a chunk; a sample's first and last come at once
  std::optional<int64_t> truncate_to;  // prompt tokens to keep; -1: what the context holds
  enum class Truncation { kKeepLast, kKeepFirst } truncation = Truncation::kKeepLast;
  std::vector<std::string> warnings;
};

// `known`: the fields that only this dialect reads; any other stranger becomes a warning. Errors
// also for fields that ask for what is not supported, and for a model that is not served (404).
Result<CallOptions> ReadCallOptions(const Json& body, const DialectContext& context,
                                    std::span<const std::string_view> known);

// The Request of one prompt: truncates, checks its length and ids, copies what the options say.
// `param` names the prompt in errors.
Result<Request> MakeRequest(std::vector<TokenId> prompt, const SamplingParams& sampling,
                            const CallOptions& options, const DialectContext& context,
                            const char* param);

// "<prefix>-<32 hex digits>", unpredictable; or "<prefix>-<request_id>" when the caller named one.
std::string ResponseId(std::string_view prefix, const std::string& request_id,
                       char separator = '-');
int64_t UnixSeconds();

}  // namespace deepinfer
