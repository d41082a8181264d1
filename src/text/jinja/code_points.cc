#include "text/jinja/code_points.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace deepinfer::jinja {
namespace {

int SequenceLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Code points whose upper case is more than one code point (Unicode SpecialCasing, unconditional).
struct Expansion {
  char32_t from;
  std::array<char32_t, 3> upper;
  std::array<char32_t, 3> title;
};
constexpr Expansion kExpansions[] = {
    {0xDF, {'S', 'S'}, {'S', 's'}},
    {0x149, {0x2BC, 'N'}, {0x2BC, 'N'}},
    {0x1F0, {'J', 0x30C}, {'J', 0x30C}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1E96, {'H', 0x331}, {'H', 0x331}},
    {0x1E97, {'T', 0x308}, {'T', 0x308}},
    {0x1E98, {'W', 0x30A}, {'W', 0x30A}},
    {0x1E99, {'Y', 0x30A}, {'Y', 0x30A}},
    {0x1E9A, {'A', 0x2BE}, {'A', 0x2BE}},
    {0xFB00, {'F', 'F'}, {'F', 'f'}},
    {0xFB01, {'F', 'I'}, {'F', 'i'}},
    {0xFB02, {'F', 'L'}, {'F', 'l'}},
    {0xFB03, {'F', 'F', 'I'}, {'F', 'f', 'i'}},
    {0xFB04, {'F', 'F', 'L'}, {'F', 'f', 'l'}},
    {0xFB05, {'S', 'T'}, {'S', 't'}},
    {0xFB06, {'S', 'T'}, {'S', 't'}},
};

const Expansion* FindExpansion(char32_t c) {
  for (const Expansion& expansion : kExpansions) {
    if (expansion.from == c) return &expansion;
  }
  return nullptr;
}

void AppendAll(std::string* out, const std::array<char32_t, 3>& code_points) {
  for (char32_t c : code_points) {
    if (c != 0) AppendUtf8(out, c);
  }
}

bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019;
  }
}

// Final_Sigma of Unicode: a cased letter before, none after, case-ignorable ones skipped.
bool IsFinalSigma(std::string_view text, size_t at) {
  bool before = false;
  for (size_t p = at; p > 0;) {
    size_t next;
    p = PreviousBoundary(text, p);
    const char32_t c = DecodeAt(text, p, &next);
    if (IsCaseIgnorable(c)) continue;
    before = IsCased(c);
    break;
  }
  if (!before) return false;
  size_t p;
  DecodeAt(text, at, &p);
  while (p < text.size()) {
    const char32_t c = DecodeAt(text, p, &p);
    if (IsCaseIgnorable(c)) continue;
    return !IsCased(c);
  }
  return true;
}

}  // namespace

char32_t DecodeAt(std::string_view text, size_t at, size_t* next) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned lead = byte(at);
  const int length = SequenceLength(static_cast<unsigned char>(lead));
  *next = std::min(at + static_cast<size_t>(length), text.size());
  switch (length) {
    case 1:
      return lead;
    case 2:
      return (lead & 0x1F) << 6 | (byte(at + 1) & 0x3F);
    case 3:
      return (lead & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
    default:
      return (lead & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 |
             (byte(at + 3) & 0x3F);
  }
}

void AppendUtf8(std::string* out, char32_t c) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

size_t PreviousBoundary(std::string_view text, size_t at) {
  --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool IsValidUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    if (bytes[at] < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t c;
    const utf8proc_ssize_t length =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    if (length <= 0) return false;
    at += static_cast<size_t>(length);
  }
  return true;
}

size_t FindText(std::string_view text, std::string_view pattern, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (pattern.empty()) return from;
  const void* found =
      memmem(text.data() + from, text.size() - from, pattern.data(), pattern.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::vector<size_t> FindFromRight(std::string_view text, std::string_view pattern, size_t count) {
  // Knuth-Morris-Pratt over both texts read backwards.
  const size_t n = pattern.size();
  const auto at = [&](size_t i) { return pattern[n - 1 - i]; };
  std::vector<size_t> border(n, 0);
  for (size_t i = 1, matched = 0; i < n; ++i) {
    while (matched > 0 && at(i) != at(matched)) matched = border[matched - 1];
    if (at(i) == at(matched)) ++matched;
    border[i] = matched;
  }
  std::vector<size_t> begins;
  for (size_t i = text.size(), matched = 0; i > 0 && begins.size() < count; --i) {
    const char c = text[i - 1];
    while (matched > 0 && c != at(matched)) matched = border[matched - 1];
    if (c == at(matched)) ++matched;
    if (matched < n) continue;
    begins.push_back(i - 1);
    matched = 0;
  }
  return begins;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += static_cast<size_t>(SequenceLength(static_cast<unsigned char>(text[at])));
    --index;
  }
  return std::min(at, text.size());
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

size_t SkipSpace(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next;
    if (!IsSpace(DecodeAt(text, at, &next))) break;
    at = next;
  }
  return at;
}

size_t TrimRightEnd(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t begin = PreviousBoundary(text, end);
    size_t next;
    if (!IsSpace(DecodeAt(text, begin, &next))) break;
    end = begin;
  }
  return end;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsAlpha(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsAlnum(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return IsAlpha(c) || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsIdentifierPart(char32_t c) { return c == '_' || IsAlnum(c); }

bool IsUpper(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
}

bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA; }

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c); }

void AppendUpper(std::string* out, char32_t c) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  } else if (const Expansion* expansion = FindExpansion(c)) {
    AppendAll(out, expansion->upper);
  } else {
    AppendUtf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void AppendTitle(std::string* out, char32_t c) {
  if (const Expansion* expansion = c < 0x80 ? nullptr : FindExpansion(c)) {
    AppendAll(out, expansion->title);
  } else {
    AppendUtf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

void AppendLower(std::string* out, std::string_view text, size_t at) {
  size_t next;
  const char32_t c = DecodeAt(text, at, &next);
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {  // İ becomes i and a combining dot
    out->append("i\xCC\x87");
  } else if (c == 0x3A3) {
    AppendUtf8(out, IsFinalSigma(text, at) ? 0x3C2 : 0x3C3);
  } else {
    AppendUtf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

}  // namespace deepinfer::jinja
