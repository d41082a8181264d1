#include "server/error_response.h"

#include "api/error.h"
#include "base/json.h"

namespace deepinfer {

namespace {

HttpResponse WithBody(int http_status, const Json& body) {
  HttpResponse response{http_status, "application/json", {}, body.Dump()};
  if (http_status == 429 || http_status == 503) {
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

HttpResponse ErrorResponse(const Status& status) {
  return WithBody(HttpStatus(status.code()), ErrorBody(status));
}

HttpResponse HttpError(int http_status, const std::string& message) {
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
