// Status to HTTP: the one table of codes and the OpenAI error object. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

enum class ErrorShape { kOpenAi, kAnthropic };

int HttpStatus(StatusCode code);
// What it is on an Anthropic path, where 529 says that the server is busy or not ready.
int AnthropicHttpStatus(StatusCode code);

// Reasons (Status::WithReason) of refusals that clients tell apart.
inline constexpr const char* kUnsupportedParameter = "unsupported_parameter";
inline constexpr const char* kContextLengthExceeded = "context_length_exceeded";
inline constexpr const char* kUnknownParameter = "unknown_parameter";
inline constexpr const char* kModelNotFound = "model_not_found";

// {"error": {"message", "type", "param", "code", "status"}}: OpenAI's four keys, all present, and
// the status as a number for clients of vLLM.
Json ErrorBody(const Status& status);
// {"type": "error", "error": {"type", "message"}, "request_id"}; an empty id is left out.
Json AnthropicErrorBody(const Status& status, std::string_view request_id);
// For a status of HTTP itself.
Json AnthropicErrorBody(int http_status, std::string_view message, std::string_view request_id);

}  // namespace deepinfer
