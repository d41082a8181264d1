// The request target of HTTP/1.1 split into a decoded path and a query. Pure, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "deepinfer/status.h"

namespace deepinfer {

struct HttpTarget {
  std::string path;   // percent-decoded; "*" for the asterisk form
  std::string query;  // raw, without '?'
};

// Accepts origin form ("/a?b"), absolute form ("http://host/a") and "*". The host of an absolute
// form is dropped: routing and authentication look at the path alone. Refuses NUL and other control
// characters, broken percent escapes and decoded paths with "." or ".." segments.
Result<HttpTarget> ParseHttpTarget(std::string_view target);

// Value of `name` in a query, percent-decoded ('+' is a space); nullopt when absent or broken.
std::optional<std::string> QueryValue(std::string_view query, std::string_view name);

}  // namespace deepinfer
