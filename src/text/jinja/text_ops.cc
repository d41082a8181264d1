#include "text/jinja/text_ops.h"

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace deepinfer::jinja {

MarkedText UpperCase(const MarkedText& text) {
  return MapCodePoints(text, [](size_t, char32_t c, std::string* out) { AppendUpper(out, c); });
}

MarkedText LowerCase(const MarkedText& text) {
  return MapCodePoints(
      text, [&](size_t at, char32_t, std::string* out) { AppendLower(out, text.view(), at); });
}

MarkedText Capitalize(const MarkedText& text) {
  return MapCodePoints(text, [&](size_t at, char32_t c, std::string* out) {
    if (at == 0) {
      AppendTitle(out, c);
    } else {
      AppendLower(out, text.view(), at);
    }
  });
}

MarkedText EscapeHtml(const MarkedText& text) {
  return MapCodePoints(text, [](size_t, char32_t c, std::string* out) {
    switch (c) {
      case '&':
        out->append("&amp;");
        break;
      case '<':
        out->append("&lt;");
        break;
      case '>':
        out->append("&gt;");
        break;
      case '"':
        out->append("&#34;");
        break;
      case '\'':
        out->append("&#39;");
        break;
      default:
        AppendUtf8(out, c);
    }
  });
}

MarkedText Strip(const MarkedText& text, const MarkedText* chars, Side side) {
  const auto drops = [&](size_t at, size_t* next) {
    const char32_t c = DecodeAt(text.view(), at, next);
    if (chars == nullptr) return IsSpace(c);
    const std::string_view one = text.view().substr(at, *next - at);
    return chars->view().find(one) != std::string_view::npos;
  };
  size_t begin = 0;
  size_t end = text.size();
  size_t next;
  if (side != Side::kRight) {
    while (begin < end && drops(begin, &next)) begin = next;
  }
  if (side != Side::kLeft) {
    while (end > begin) {
      const size_t last = PreviousBoundary(text.view(), end);
      if (!drops(last, &next)) break;
      end = last;
    }
  }
  return text.Slice(begin, end);
}

bool ReplaceText(Runtime& runtime, const MarkedText& text, const MarkedText& from,
                 const MarkedText& to, int64_t count, Value* out) {
  if (!runtime.ChargeBytes(text.size())) return false;
  size_t left = count < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(count);
  MarkedText result;
  size_t at = 0;
  // An empty pattern matches before every code point and at the end.
  for (size_t search = 0; left > 0; --left) {
    const size_t found = FindText(text.view(), from.view(), search);
    if (found == std::string_view::npos || found > text.size()) break;
    result.Append(text, at, found);
    result.Append(to);
    if (!runtime.Charge(1 + static_cast<int64_t>(to.size() / 64)) ||
        !runtime.CheckSize(result.size())) {
      return false;
    }
    at = found + from.size();
    search = at;
    if (from.empty()) {
      if (found == text.size()) break;
      DecodeAt(text.view(), found, &search);
    }
  }
  result.Append(text, at, text.size());
  return runtime.MakeString(std::move(result), out);
}

bool PadText(Runtime& runtime, const MarkedText& text, int64_t width, const MarkedText& fill,
             Side side, Value* out) {
  if (!runtime.ChargeBytes(text.size())) return false;
  const auto length = static_cast<int64_t>(CountCodePoints(text.view()));
  if (CountCodePoints(fill.view()) != 1) {
    return runtime.Fail("the fill character must be exactly one character long");
  }
  if (width <= length) return runtime.MakeString(text, out);
  const int64_t total = width - length;
  constexpr int64_t kPadMax = 1 << 20;
  if (total > kPadMax) return runtime.Fail(Format("padding to more than {} characters", kPadMax));
  const int64_t left = side == Side::kLeft    ? 0
                       : side == Side::kRight ? total
                                              : total / 2 + (total & width & 1);
  MarkedText result;
  for (int64_t i = 0; i < left; ++i) result.Append(fill);
  result.Append(text);
  for (int64_t i = left; i < total; ++i) result.Append(fill);
  return runtime.MakeString(std::move(result), out);
}

std::vector<Line> SplitLines(std::string_view text) {
  std::vector<Line> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t next;
    const char32_t c = DecodeAt(text, at, &next);
    if (!IsLineBreak(c)) {
      at = next;
      continue;
    }
    if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
    lines.push_back({begin, at, next});
    begin = at = next;
  }
  if (begin < text.size()) lines.push_back({begin, text.size(), text.size()});
  return lines;
}

bool NeedText(Runtime& runtime, std::string_view what, const Value& value, const MarkedText** out) {
  if (value.is_string()) {
    *out = &value.text();
    return true;
  }
  if (value.is_undefined()) return runtime.Fail(std::string(value.why()));
  return runtime.Fail(Format("{} must be str, not {}", what, TypeName(value)));
}

}  // namespace deepinfer::jinja
