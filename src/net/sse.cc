#include "net/sse.h"

#include "base/format.h"

namespace deepinfer {

void AppendSseData(std::string* out, std::string_view data) {
  out->append("data: ").append(data).append("\n\n");
}

void AppendSseEvent(std::string* out, std::string_view event, std::string_view data) {
  out->append("event: ").append(event).append("\n");
  AppendSseData(out, data);
}

Status SseParser::Push(std::string_view bytes,
                       const std::function<Status(const SseEvent&)>& on_event) {
  for (const char c : bytes) {
    const bool joined = after_cr_ && c == '\n';  // CRLF is one line end
    after_cr_ = c == '\r';
    if (joined) continue;
    if (c != '\n' && c != '\r') {
      if (line_.size() + event_.data.size() >= event_bytes_max_) {
        return Invalid(Format("a server-sent event is larger than {} bytes", event_bytes_max_));
      }
      line_.push_back(c);
      continue;
    }
    const std::string line = std::move(line_);
    line_.clear();
    DI_TRY(Line(line, on_event));
  }
  return {};
}

Status SseParser::Line(std::string_view line,
                       const std::function<Status(const SseEvent&)>& on_event) {
  if (line.empty()) {
    SseEvent event = std::move(event_);
    event_ = SseEvent();
    const bool complete = has_data_;
    has_data_ = false;
    return complete ? on_event(event) : Status();
  }
  if (line[0] == ':') return {};
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (has_data_) event_.data.push_back('\n');
    event_.data.append(value);
    has_data_ = true;
  } else if (field == "event") {
    event_.event = value;
  }
  return {};
}

}  // namespace deepinfer
