// Status to HTTP: the one table of codes and the OpenAI error object. Pure functions, any thread.
#pragma once

#include <string>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

int HttpStatus(StatusCode code);

// Reasons (Status::WithReason) of refusals that clients tell apart.
inline constexpr const char* kUnsupportedParameter = "unsupported_parameter";
inline constexpr const char* kContextLengthExceeded = "context_length_exceeded";
inline constexpr const char* kModelNotFound = "model_not_found";

// {"error": {"message", "type", "param", "code", "status"}}: OpenAI's four keys, all present, and
// the status as a number for clients of vLLM.
Json ErrorBody(const Status& status);

}  // namespace deepinfer
