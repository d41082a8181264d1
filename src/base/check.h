// Assertions for programmer errors. No input from outside can reach one.
#pragma once

#include "base/format.h"

namespace deepinfer {

// Prints "file:line: check failed: expr: message" with a stack trace and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expr,
                              const std::string& message);

}  // namespace deepinfer

// DI_CHECK(cond) or DI_CHECK(cond, "format {}", args...): on in every build.
#define DI_CHECK(cond, ...)                                                                     \
  do {                                                                                          \
    if (!(cond)) [[unlikely]] {                                                                 \
      ::deepinfer::CheckFailed(__FILE__, __LINE__, #cond, ::deepinfer::Format("" __VA_ARGS__)); \
    }                                                                                           \
  } while (false)

// For per-token loops: compiled out when NDEBUG is set.
#ifdef NDEBUG
#define DI_DCHECK(cond, ...) \
  do {                       \
  } while (false)
#else
#define DI_DCHECK(cond, ...) DI_CHECK(cond, ##__VA_ARGS__)
#endif
