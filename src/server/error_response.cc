#include "server/error_response.h"

#include "api/error.h"
#include "base/json.h"

namespace deepinfer {

namespace {

HttpResponse WithBody(int http_status, const Json& body) {
  HttpResponse response{http_status, "application/json", {}, body.Dump()};
  if (http_status == 429 || http_status == 503 || http_status == 529) {
    response.headers.Add("Retry-After", "1");
  } else if (http_status == 400 || http_status == 413) {
    response.headers.Add("x-should-retry", "false");
  }
  return response;
}

const char* TypeOf(int http_status) {
  if (http_status == 408) return "timeout_error";
  return http_status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

ErrorShape ErrorShapeOf(std::string_view path) {
  for (const std::string_view prefix : {"/v1/messages", "/anthropic/"}) {
    if (path.starts_with(prefix)) return ErrorShape::kAnthropic;
  }
  return ErrorShape::kOpenAi;
}

void AddRequestId(ErrorShape shape, const std::string& request_id, HttpHeaders* headers) {
  if (shape == ErrorShape::kAnthropic && !request_id.empty())
    headers->Add("request-id", request_id);
}

HttpResponse ErrorResponse(const Status& status, ErrorShape shape, const std::string& request_id) {
  if (shape == ErrorShape::kAnthropic) {
    HttpResponse response =
        WithBody(AnthropicHttpStatus(status.code()), AnthropicErrorBody(status, request_id));
    AddRequestId(shape, request_id, &response.headers);
    return response;
  }
  return WithBody(HttpStatus(status.code()), ErrorBody(status));
}

HttpResponse HttpError(int http_status, const std::string& message, ErrorShape shape,
                       const std::string& request_id) {
  if (shape == ErrorShape::kAnthropic) {
    HttpResponse response =
        WithBody(http_status, AnthropicErrorBody(http_status, message, request_id));
    AddRequestId(shape, request_id, &response.headers);
    return response;
  }
  switch (http_status) {
    case 400:
      return ErrorResponse(Invalid(message));
    case 401:
      return ErrorResponse({StatusCode::kUnauthenticated, message});
    case 404:
      return ErrorResponse(NotFound(message));
    case 413:
      return ErrorResponse({StatusCode::kTooLarge, message});
    case 500:
      return ErrorResponse(Internal(message));
    case 503:
      return ErrorResponse(Unavailable(message));
    default:
      break;
  }
  Json error = Json::Object();
  error.Set("message", Json::String(message));
  error.Set("type", Json::String(TypeOf(http_status)));
  error.Set("param", Json());
  error.Set("code", Json::String(std::string(TypeOf(http_status))));
  error.Set("status", Json::Int(http_status));
  Json body = Json::Object();
  body.Set("error", std::move(error));
  return WithBody(http_status, body);
}

}  // namespace deepinfer
