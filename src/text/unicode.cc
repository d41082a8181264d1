#include "text/unicode.h"

#include <bit>
#include <cstring>

namespace deepinfer {

#include "text/unicode_tables.inc"

void AppendCodePoint(char32_t cp, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (cp < 0x80) {
    put(cp);
  } else if (cp < 0x800) {
    put(0xC0 | (cp >> 6));
    put(0x80 | (cp & 0x3F));
  } else if (cp < 0x10000) {
    put(0xE0 | (cp >> 12));
    put(0x80 | ((cp >> 6) & 0x3F));
    put(0x80 | (cp & 0x3F));
  } else {
    put(0xF0 | (cp >> 18));
    put(0x80 | ((cp >> 12) & 0x3F));
    put(0x80 | ((cp >> 6) & 0x3F));
    put(0x80 | (cp & 0x3F));
  }
}

Utf8Step NextUtf8Step(std::string_view text) {
  const auto at = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return {Utf8Step::Kind::kCharacter, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::Kind::kInvalid, 1};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte has a narrower range after some leads (overlong forms, surrogates, the end).
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8Step::Kind::kIncomplete, i};
    const unsigned byte = at(static_cast<size_t>(i));
    if (byte < (i == 1 ? low : 0x80) || byte > (i == 1 ? high : 0xBF)) {
      return {Utf8Step::Kind::kInvalid, i};
    }
  }
  return {Utf8Step::Kind::kCharacter, length};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    uint64_t word = 0;
    if (text.size() - pos >= sizeof(word)) {
      std::memcpy(&word, text.data() + pos, sizeof(word));
      const uint64_t high = word & 0x8080808080808080U;
      if (high == 0) {
        pos += sizeof(word);
        continue;
      }
      pos += static_cast<size_t>(std::countr_zero(high)) / 8;
    }
    const Utf8Step step = NextUtf8Step(text.substr(pos));
    if (step.kind != Utf8Step::Kind::kCharacter) return pos;
    pos += static_cast<size_t>(step.length);
  }
  return pos;
}

}  // namespace deepinfer
