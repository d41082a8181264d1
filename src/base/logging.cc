#include "base/logging.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>

namespace deepinfer {
namespace {

std::atomic<LogLevel>& Level() {
  static std::atomic<LogLevel> level{LogLevel::kInfo};
  return level;
}

void AppendEscaped(std::string* out, std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else {
      out->append(Format("\\x{:02x}", byte));
    }
  }
}

}  // namespace

void SetLogLevel(LogLevel level) { Level().store(level, std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) { return level >= Level().load(std::memory_order_relaxed); }

void WriteLog(LogLevel level, std::string_view message) {
  using std::chrono::duration_cast;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = static_cast<std::time_t>(duration_cast<std::chrono::seconds>(now).count());
  const auto millis = duration_cast<std::chrono::milliseconds>(now).count() % 1000;
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  std::string line = Format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} ", utc.tm_year + 1900,
                            utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                            millis, "DIWE"[static_cast<int>(level) & 3]);
  AppendEscaped(&line, message);
  line.push_back('\n');
  // Nothing sensible can be done when stderr is gone.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace deepinfer
