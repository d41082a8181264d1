#include "net/http_target.h"

#include "base/format.h"

namespace deepinfer {

namespace {

enum class Plus { kLiteral, kSpace };

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> PercentDecode(std::string_view text, Plus plus) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus == Plus::kSpace) {
      out.push_back(' ');
    } else if (text[i] != '%') {
      out.push_back(text[i]);
    } else {
      if (text.size() - i < 3) return std::nullopt;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    }
  }
  return out;
}

bool HasControl(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return true;
  }
  return false;
}

bool HasDotSegment(std::string_view path) {
  size_t begin = 0;
  while (begin <= path.size()) {
    size_t end = path.find('/', begin);
    if (end == std::string_view::npos) end = path.size();
    const std::string_view segment = path.substr(begin, end - begin);
    if (segment == "." || segment == "..") return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Result<HttpTarget> ParseHttpTarget(std::string_view target) {
  if (target == "*") return HttpTarget{"*", ""};
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.substr(0, scheme.size()) != scheme) continue;
    const size_t slash = target.find_first_of("/?", scheme.size());
    if (slash == std::string_view::npos) return HttpTarget{"/", ""};
    if (target[slash] == '?') return HttpTarget{"/", std::string(target.substr(slash + 1))};
    target.remove_prefix(slash);
    break;
  }
  if (target.empty() || target[0] != '/') {
    return Invalid("the request target must be a path that starts with '/'");
  }
  if (const size_t fragment = target.find('#'); fragment != std::string_view::npos) {
    return Invalid("the request target must not hold a fragment ('#')");
  }
  HttpTarget out;
  const size_t question = target.find('?');
  if (question != std::string_view::npos) out.query = target.substr(question + 1);
  std::optional<std::string> path = PercentDecode(target.substr(0, question), Plus::kLiteral);
  if (!path) return Invalid("the request target has a broken percent escape");
  if (HasControl(*path)) return Invalid("the request target holds a control character");
  if (HasDotSegment(*path)) return Invalid("the request target holds a '.' or '..' segment");
  out.path = std::move(*path);
  return out;
}

std::optional<std::string> QueryValue(std::string_view query, std::string_view name) {
  size_t begin = 0;
  while (begin < query.size()) {
    size_t end = query.find('&', begin);
    if (end == std::string_view::npos) end = query.size();
    const std::string_view pair = query.substr(begin, end - begin);
    const size_t equals = pair.find('=');
    const std::optional<std::string> key = PercentDecode(pair.substr(0, equals), Plus::kSpace);
    if (key && *key == name) {
      if (equals == std::string_view::npos) return std::string();
      return PercentDecode(pair.substr(equals + 1), Plus::kSpace);
    }
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace deepinfer
