#include "api/error.h"

namespace deepinfer {
namespace {

struct ErrorRow {
  StatusCode code;
  int http;
  const char* type;
  const char* name;
};

constexpr ErrorRow kRows[] = {
    {StatusCode::kOk, 200, "", ""},
    {StatusCode::kInvalid, 400, "invalid_request_error", "invalid_value"},
    {StatusCode::kUnauthenticated, 401, "authentication_error", "invalid_api_key"},
    {StatusCode::kDenied, 403, "permission_error", "permission_denied"},
    {StatusCode::kNotFound, 404, "not_found_error", "not_found"},
    {StatusCode::kTooLarge, 413, "request_too_large", "request_too_large"},
    {StatusCode::kCancelled, 499, "cancelled", "cancelled"},
    {StatusCode::kExhausted, 429, "rate_limit_error", "rate_limit_exceeded"},
    {StatusCode::kDeadline, 504, "timeout_error", "deadline_exceeded"},
    {StatusCode::kUnavailable, 503, "server_error", "unavailable"},
    {StatusCode::kInternal, 500, "server_error", "internal_error"},
};

const ErrorRow& RowOf(StatusCode code) {
  for (const ErrorRow& row : kRows) {
    if (row.code == code) return row;
  }
  return kRows[std::size(kRows) - 1];
}

// Anthropic's type of an HTTP status.
const char* AnthropicType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 408:
    case 504:
      return "timeout_error";
    case 529:
      return "overloaded_error";
    default:
      return http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

int HttpStatus(StatusCode code) { return RowOf(code).http; }

int AnthropicHttpStatus(StatusCode code) {
  return code == StatusCode::kUnavailable ? 529 : HttpStatus(code);
}

Json AnthropicErrorBody(const Status& status, std::string_view request_id) {
  const std::string message =
      status.param().empty() || status.message().find(status.param()) != std::string::npos
          ? status.message()
          : status.param() + ": " + status.message();
  return AnthropicErrorBody(AnthropicHttpStatus(status.code()), message, request_id);
}

Json AnthropicErrorBody(int http_status, std::string_view message, std::string_view request_id) {
  Json error = Json::Object();
  error.Set("type", Json::String(AnthropicType(http_status)));
  error.Set("message", Json::String(std::string(message)));
  Json body = Json::Object();
  body.Set("type", Json::String("error"));
  body.Set("error", std::move(error));
  if (!request_id.empty()) body.Set("request_id", Json::String(std::string(request_id)));
  return body;
}

Json ErrorBody(const Status& status) {
  const ErrorRow& row = RowOf(status.code());
  Json error = Json::Object();
  error.Set("message", Json::String(status.message()));
  error.Set("type", Json::String(row.type));
  error.Set("param", status.param().empty() ? Json() : Json::String(status.param()));
  error.Set("code", Json::String(status.reason() != nullptr ? status.reason() : row.name));
  error.Set("status", Json::Int(row.http));
  Json body = Json::Object();
  body.Set("error", std::move(error));
  return body;
}

}  // namespace deepinfer
