// Text formatting: Format("{} of {}", a, b). fmt is compiled once, in format.cc.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace deepinfer {

template <typename... Args>
std::string Format(fmt::format_string<Args...> pattern, Args&&... args) {
  return fmt::vformat(pattern, fmt::make_format_args(args...));
}

}  // namespace deepinfer
