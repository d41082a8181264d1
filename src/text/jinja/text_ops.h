// String operations shared by filters and methods; trust marks are kept byte for byte.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/code_points.h"
#include "text/jinja/runtime.h"

namespace deepinfer::jinja {

// Builds a text code point by code point: `map(at, c, out)` appends what replaces code point c at
// byte `at`; the result carries the trust of its source.
template <typename Map>
MarkedText MapCodePoints(const MarkedText& text, Map&& map) {
  MarkedText result;
  std::string run;
  const auto& spans = text.trusted();
  size_t span = 0;
  bool run_trusted = false;
  for (size_t at = 0; at < text.size();) {
    while (span < spans.size() && spans[span].end <= at) ++span;
    const bool trusted = span < spans.size() && spans[span].begin <= at;
    if (trusted != run_trusted && !run.empty()) {
      result.Append(run, run_trusted ? Trust::kTrusted : Trust::kUntrusted);
      run.clear();
    }
    run_trusted = trusted;
    size_t next;
    const char32_t c = DecodeAt(text.view(), at, &next);
    map(at, c, &run);
    at = next;
  }
  result.Append(run, run_trusted ? Trust::kTrusted : Trust::kUntrusted);
  return result;
}

MarkedText UpperCase(const MarkedText& text);
MarkedText LowerCase(const MarkedText& text);
MarkedText Capitalize(const MarkedText& text);
MarkedText EscapeHtml(const MarkedText& text);

enum class Side : uint8_t { kLeft, kRight, kBoth };
// Removes the code points of `chars` (whitespace when it is null) from the ends.
MarkedText Strip(const MarkedText& text, const MarkedText* chars, Side side);

// str.replace; count < 0: all.
bool ReplaceText(Runtime& runtime, const MarkedText& text, const MarkedText& from,
                 const MarkedText& to, int64_t count, Value* out);
// Pads to `width` code points; where the text goes is `side` (kLeft: ljust).
bool PadText(Runtime& runtime, const MarkedText& text, int64_t width, const MarkedText& fill,
             Side side, Value* out);

struct Line {
  size_t begin, end, next;  // without its line break, and where the following line begins
};
std::vector<Line> SplitLines(std::string_view text);

// The argument as text: a string, or a failure that names it.
bool NeedText(Runtime& runtime, std::string_view what, const Value& value, const MarkedText** out);

}  // namespace deepinfer::jinja
