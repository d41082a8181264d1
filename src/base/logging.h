// Log lines to stderr: "2026-11-30T13:11:04.123Z W message", always one line each.
// Any thread; a line is one write and never mixes with another. The level is the one piece of
// state that the whole process shares: set it once at start-up.
#pragma once

#include <string_view>

#include "base/format.h"

namespace deepinfer {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void SetLogLevel(LogLevel level);  // kInfo until set
bool LogEnabled(LogLevel level);
// Control characters are escaped, so nobody outside can forge a line.
void WriteLog(LogLevel level, std::string_view message);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> pattern, Args&&... args) {
  if (!LogEnabled(LogLevel::kDebug)) return;
  WriteLog(LogLevel::kDebug, fmt::vformat(pattern, fmt::make_format_args(args...)));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> pattern, Args&&... args) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  WriteLog(LogLevel::kInfo, fmt::vformat(pattern, fmt::make_format_args(args...)));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> pattern, Args&&... args) {
  if (!LogEnabled(LogLevel::kWarning)) return;
  WriteLog(LogLevel::kWarning, fmt::vformat(pattern, fmt::make_format_args(args...)));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> pattern, Args&&... args) {
  if (!LogEnabled(LogLevel::kError)) return;
  WriteLog(LogLevel::kError, fmt::vformat(pattern, fmt::make_format_args(args...)));
}

}  // namespace deepinfer
