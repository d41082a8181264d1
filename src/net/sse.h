// Server-sent events: writing frames and reading a stream of them. Pure values, any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "deepinfer/status.h"

namespace deepinfer {

inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

// Appends "data: <data>\n\n"; `data` must not hold a newline (JSON text never does).
void AppendSseData(std::string* out, std::string_view data);
// Appends "event: <event>\ndata: <data>\n\n".
void AppendSseEvent(std::string* out, std::string_view event, std::string_view data);

struct SseEvent {
  std::string event;  // empty: "message"
  std::string data;   // several data lines joined by newlines
};

// Takes a byte stream cut anywhere and gives whole events. Comments are dropped.
class SseParser {
 public:
  explicit SseParser(size_t event_bytes_max = size_t{16} << 20)
      : event_bytes_max_(event_bytes_max) {}
  // Calls `on_event` for each event that `bytes` completes; its first error stops and is returned.
  Status Push(std::string_view bytes, const std::function<Status(const SseEvent&)>& on_event);

 private:
  Status Line(std::string_view line, const std::function<Status(const SseEvent&)>& on_event);

  const size_t event_bytes_max_;
  std::string line_;
  SseEvent event_;
  bool has_data_ = false;
  bool after_cr_ = false;
};

}  // namespace deepinfer
