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

}  // namespace

int HttpStatus(StatusCode code) { return RowOf(code).http; }

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
