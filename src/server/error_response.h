// Refusals and failures as HTTP answers with the OpenAI error object. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "api/error.h"
#include "deepinfer/status.h"
#include "net/http_types.h"

namespace deepinfer {

// The status that the code maps to, Retry-After where trying again can help, and x-should-retry for
// the client libraries that obey it.
HttpResponse ErrorResponse(const Status& status, ErrorShape shape = ErrorShape::kOpenAi,
                           const std::string& request_id = {});
// Anthropic's own header for the id that every answer carries as x-request-id.
void AddRequestId(ErrorShape shape, const std::string& request_id, HttpHeaders* headers);
// How a path speaks of errors.
ErrorShape ErrorShapeOf(std::string_view path);

// For statuses of HTTP itself (405, 408, 415, 431, ...), which no StatusCode stands for.
HttpResponse HttpError(int http_status, const std::string& message,
                       ErrorShape shape = ErrorShape::kOpenAi, const std::string& request_id = {});

}  // namespace deepinfer
