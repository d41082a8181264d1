// Status and Result<T>: how failures caused from outside (files, requests, peers) travel.
// Plain values, safe on any thread. Programmer errors use DI_CHECK (src/base/check.h) instead.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace deepinfer {

// Each code maps to one HTTP status (HttpStatus in src/api/error.h).
enum class StatusCode {
  kOk = 0,
  kInvalid,          // 400: the input is wrong; sending it again cannot help
  kUnauthenticated,  // 401
  kDenied,           // 403
  kNotFound,         // 404
  kTooLarge,         // 413
  kCancelled,        // 499
  kExhausted,        // 429: a limit or queue is full; the message names it
  kDeadline,         // 504
  kUnavailable,      // 503: loading, draining or gone
  kInternal,         // 500: a bug or a device fault
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // The request field or file key at fault ("temperature", "tensor blk.0.attn_q.weight"), or empty.
  const std::string& param() const { return param_; }
  Status WithParam(std::string param) && {
    param_ = std::move(param);
    return std::move(*this);
  }
  // A name of the case for programs ("context_length_exceeded"), or nullptr: the code says it all.
  const char* reason() const { return reason_; }
  // `reason` must be a literal.
  Status WithReason(const char* reason) && {
    reason_ = reason;
    return std::move(*this);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string param_;
  const char* reason_ = nullptr;
};

inline Status Invalid(std::string message) {
  return {StatusCode::kInvalid, std::move(message)};
}
inline Status NotFound(std::string message) {
  return {StatusCode::kNotFound, std::move(message)};
}
inline Status Exhausted(std::string message) {
  return {StatusCode::kExhausted, std::move(message)};
}
inline Status Unavailable(std::string message) {
  return {StatusCode::kUnavailable, std::move(message)};
}
inline Status Internal(std::string message) {
  return {StatusCode::kInternal, std::move(message)};
}

// A value or the Status that explains its absence. Check ok() before value().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}           // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}   // NOLINT: implicit by design

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace deepinfer

#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)

// Returns the error of `expr` (a Status) from the enclosing function.
#define DI_TRY(expr)                                      \
  do {                                                    \
    if (::deepinfer::Status di_status = (expr); !di_status.ok()) return di_status; \
  } while (false)

// Assigns the value of `expr` (a Result<T>) to `lhs`, or returns its error.
#define DI_ASSIGN(lhs, expr)                                        \
  auto DI_CONCAT(di_result_, __LINE__) = (expr);                    \
  if (!DI_CONCAT(di_result_, __LINE__).ok()) {                      \
    return DI_CONCAT(di_result_, __LINE__).status();                \
  }                                                                 \
  lhs = std::move(DI_CONCAT(di_result_, __LINE__)).value()
