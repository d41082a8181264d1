#include "tests/api/test_file.h"

#include <charconv>

#include "base/format.h"

namespace deepinfer {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string Trim(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// "> name: value", and not "> GET /path".
bool IsHeader(const std::string& line, const std::string& mark) {
  const size_t colon = line.find(':');
  return line.starts_with(mark) && colon != std::string::npos && line.find(' ', 2) > colon;
}

// "Name: value" after the two characters that mark a line of a head.
Result<std::pair<std::string, std::string>> HeaderOf(const std::string& line, int number) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos || colon < 3) {
    return Invalid(Format("line {}: \"{}\" is not a header", number, line));
  }
  const size_t value = std::min(line.find_first_not_of(' ', colon + 1), line.size());
  return std::pair(line.substr(2, colon - 2), line.substr(value));
}

class Parser {
 public:
  explicit Parser(const std::string& text) : lines_(Lines(text)) {}

  Result<ApiFile> Parse() {
    ApiFile file;
    while (at_ < lines_.size()) {
      const std::string& line = lines_[at_];
      if (line.empty() || line.starts_with("#")) {
        preface_ += line + "\n";
        ++at_;
        continue;
      }
      if (line.starts_with("case ")) {
        case_name_ = line.substr(5);
        preface_ += line + "\n";
        ++at_;
        continue;
      }
      DI_ASSIGN(ApiStep step, ReadStep());
      file.steps.push_back(std::move(step));
    }
    file.rest = preface_;
    return file;
  }

 private:
  int number() const { return static_cast<int>(at_) + 1; }

  Result<ApiStep> ReadStep() {
    ApiStep step;
    step.line = number();
    step.preface = std::move(preface_);
    preface_.clear();
    step.case_name = case_name_;
    const std::string& line = lines_[at_];
    if (line == "load" || line == "leave") {
      step.kind = line == "load" ? ApiStep::Kind::kLoad : ApiStep::Kind::kLeave;
      ++at_;
      return step;
    }
    if (line == "server" || line.starts_with("server ")) {
      step.kind = ApiStep::Kind::kServer;
      step.options = line.substr(std::min<size_t>(7, line.size()));
      ++at_;
      return step;
    }
    if (!line.starts_with("> ") && !line.starts_with("~ ")) {
      return Invalid(
          Format("line {}: expected server, case, load, leave, >, ~ or #: \"{}\"", number(), line));
    }
    DI_ASSIGN(step.exchange, ReadExchange());
    return step;
  }

  Result<ApiExchange> ReadExchange() {
    ApiExchange exchange;
    exchange.line = number();
    const std::string& first = lines_[at_];
    if (first[0] == '~') exchange.kind = ApiExchange::Kind::kHold;
    const size_t space = first.find(' ', 2);
    if (space == std::string::npos) return Invalid(Format("line {}: no target", number()));
    exchange.method = first.substr(2, space - 2);
    exchange.target = first.substr(space + 1);
    for (++at_; at_ < lines_.size() && IsHeader(lines_[at_], first.substr(0, 2)); ++at_) {
      DI_ASSIGN(exchange.headers.emplace_back(), HeaderOf(lines_[at_], number()));
    }
    exchange.body = Trim(Until([](const std::string& line) { return line.starts_with("< "); }));
    if (exchange.kind == ApiExchange::Kind::kHold) return exchange;
    // No answer yet: an update writes it.
    if (at_ >= lines_.size() || !lines_[at_].starts_with("< ")) return exchange;
    exchange.status = lines_[at_].substr(2);
    for (++at_; at_ < lines_.size() && IsHeader(lines_[at_], "< "); ++at_) {
      DI_ASSIGN(exchange.answer_headers.emplace_back(), HeaderOf(lines_[at_], number()));
    }
    exchange.answer = Trim(Until([](const std::string&) { return false; }));
    return exchange;
  }

  // Lines up to one that opens something else.
  template <typename Stop>
  std::string Until(Stop stop) {
    std::string text;
    for (; at_ < lines_.size(); ++at_) {
      const std::string& line = lines_[at_];
      if (stop(line) || line.starts_with("> ") || line.starts_with("~ ") ||
          line.starts_with("case ") || line.starts_with("# ") || line.starts_with("server") ||
          line == "load" || line == "leave") {
        break;
      }
      text += line + "\n";
    }
    return text;
  }

  const std::vector<std::string> lines_;
  size_t at_ = 0;
  std::string preface_;
  std::string case_name_;
};

}  // namespace

Result<ApiFile> ParseApiFile(const std::string& text) { return Parser(text).Parse(); }

std::string FormatApiFile(const ApiFile& file) {
  std::string out;
  for (const ApiStep& step : file.steps) {
    // One blank line before whatever has a comment or a name, none elsewhere.
    if (!out.empty() && !step.preface.starts_with("\n") && !step.preface.empty()) out += "\n";
    out += step.preface;
    const ApiExchange& exchange = step.exchange;
    switch (step.kind) {
      case ApiStep::Kind::kServer:
        out += step.options.empty() ? "server\n" : "server " + step.options + "\n";
        continue;
      case ApiStep::Kind::kLoad:
        out += "load\n";
        continue;
      case ApiStep::Kind::kLeave:
        out += "leave\n";
        continue;
      case ApiStep::Kind::kExchange:
        break;
    }
    const char mark = exchange.kind == ApiExchange::Kind::kHold ? '~' : '>';
    out += Format("{} {} {}\n", mark, exchange.method, exchange.target);
    for (const auto& [name, value] : exchange.headers) {
      out += Format("{} {}: {}\n", mark, name, value);
    }
    if (!exchange.body.empty()) out += exchange.body + "\n";
    if (exchange.kind == ApiExchange::Kind::kHold) continue;
    out += Format("< {}\n", exchange.status);
    for (const auto& [name, value] : exchange.answer_headers) {
      out += Format("< {}: {}\n", name, value);
    }
    if (!exchange.answer.empty()) out += exchange.answer + "\n";
  }
  return out + file.rest;
}

Result<std::string> ExpandBody(const std::string& text) {
  std::string out;
  size_t at = 0;
  for (;;) {
    const size_t begin = text.find("@{", at);
    out += text.substr(at, begin == std::string::npos ? begin : begin - at);
    if (begin == std::string::npos) return out;
    const size_t end = text.find('}', begin);
    if (end == std::string::npos) return Invalid("@{ without }");
    const std::string inner = text.substr(begin + 2, end - begin - 2);
    at = end + 1;
    int number = 0;
    if (inner.starts_with("\\x")) {
      const auto [stop, error] =
          std::from_chars(inner.data() + 2, inner.data() + inner.size(), number, 16);
      if (error != std::errc()) return Invalid(Format("@{{{}}} is no byte", inner));
      out.push_back(static_cast<char>(number));
      continue;
    }
    const size_t star = inner.rfind('*');
    if (star == std::string::npos) return Invalid(Format("@{{{}}} is unknown", inner));
    const auto [stop, error] =
        std::from_chars(inner.data() + star + 1, inner.data() + inner.size(), number);
    if (error != std::errc()) return Invalid(Format("@{{{}}} has no count", inner));
    for (int i = 0; i < number; ++i) out += inner.substr(0, star);
  }
}

}  // namespace deepinfer
