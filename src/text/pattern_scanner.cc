#include "text/pattern_scanner.h"

#include <iterator>
#include <string>

#include "text/unicode.h"

namespace deepinfer {
namespace {

struct KnownPattern {
  std::string_view text;
  PatternKind kind;
};

constexpr KnownPattern kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     PatternKind::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     PatternKind::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     PatternKind::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     PatternKind::kQwen2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
     R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     PatternKind::kQwen35},
    {R"(\p{N}{1,3})", PatternKind::kDeepSeekNumbers},
    {"[一-龥぀-ゟ゠-ヿ]+", PatternKind::kDeepSeekCjk},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
     R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     PatternKind::kDeepSeekMain},
};

struct Cursor {
  const char* p;
  const char* end;
};

const char* RunOf(const char* p, const char* end, uint16_t mask) {
  int length = 0;
  while (p < end && (CharClassAt(p, &length) & mask) != 0) p += length;
  return p;
}

const char* RunNotOf(const char* p, const char* end, uint16_t mask) {
  int length = 0;
  while (p < end && (CharClassAt(p, &length) & mask) == 0) p += length;
  return p;
}

bool IsNewline(char c) { return c == '\r' || c == '\n'; }

const char* NewlinesFrom(const char* p, const char* end) {
  while (p < end && IsNewline(*p)) ++p;
  return p;
}

// \s+(?!\S)|\s+ at a white space character: the whole run at the end of the text, else the run
// without its last character, else that one character.
const char* SpacesFrom(const char* p, const char* end) {
  const char* last = p;
  const char* at = p;
  int length = 0;
  while (at < end && (CharClassAt(at, &length) & CharClass::kSpace) != 0) {
    last = at;
    at += length;
  }
  return at == end || last == p ? at : last;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ in one pass: the first alternative ends after the run's last newline.
const char* SpacesOrLinesFrom(const char* p, const char* end) {
  const char* last = p;
  const char* newline_end = nullptr;
  const char* at = p;
  int length = 0;
  while (at < end && (CharClassAt(at, &length) & CharClass::kSpace) != 0) {
    if (IsNewline(*at)) newline_end = at + 1;
    last = at;
    at += length;
  }
  if (newline_end != nullptr) return newline_end;
  return at == end || last == p ? at : last;
}

// 's|'t|'re|'ve|'m|'ll|'d after an apostrophe at `p`; nullptr when none matches.
const char* Contraction(const char* p, const char* end) {
  if (end - p < 2) return nullptr;
  const char a = p[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (end - p < 3) return nullptr;
  const char b = p[2];
  if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  return nullptr;
}

// The same in any letter case; U+017F folds to s.
const char* ContractionAnyCase(const char* p, const char* end) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  if (end - p < 2) return nullptr;
  const char a = lower(p[1]);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (end - p < 3) return nullptr;
  if (p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
  const char b = lower(p[2]);
  if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  return nullptr;
}

const char* Gpt2Piece(const char* p, const char* end) {
  constexpr uint16_t kNotOther = CharClass::kSpace | CharClass::kLetter | CharClass::kNumber;
  if (*p == '\'') {
    if (const char* stop = Contraction(p, end); stop != nullptr) return stop;
  }
  int length = 0;
  const char* start = p;
  uint16_t cls = CharClassAt(p, &length);
  if (*p == ' ' && p + 1 < end) {
    start = p + 1;
    cls = CharClassAt(start, &length);
  }
  if ((cls & CharClass::kLetter) != 0) return RunOf(start + length, end, CharClass::kLetter);
  if ((cls & CharClass::kNumber) != 0) return RunOf(start + length, end, CharClass::kNumber);
  if ((cls & CharClass::kSpace) == 0) return RunNotOf(start + length, end, kNotOther);
  return SpacesFrom(p, end);
}

// The family of Llama 3: numbers in groups of at most kNumberRun, letters are kLetters.
template <int kNumberRun, uint16_t kLetters>
const char* Llama3Piece(const char* p, const char* end) {
  constexpr uint16_t kNotOther = CharClass::kSpace | kLetters | CharClass::kNumber;
  if (*p == '\'') {
    if (const char* stop = ContractionAnyCase(p, end); stop != nullptr) return stop;
  }
  int length = 0;
  const uint16_t cls = CharClassAt(p, &length);
  const char* next = p + length;
  if ((cls & CharClass::kLetter) != 0) return RunOf(next, end, kLetters);
  int next_length = 0;
  const uint16_t next_class = next < end ? CharClassAt(next, &next_length) : uint16_t{0};
  if ((cls & CharClass::kNumber) == 0 && !IsNewline(*p) && (next_class & kLetters) != 0) {
    return RunOf(next + next_length, end, kLetters);
  }
  if ((cls & kLetters) != 0) return RunOf(next, end, kLetters);
  if ((cls & CharClass::kNumber) != 0) {
    for (int i = 1; i < kNumberRun && next < end; ++i) {
      if ((CharClassAt(next, &length) & CharClass::kNumber) == 0) break;
      next += length;
    }
    return next;
  }
  if ((cls & CharClass::kSpace) == 0) return NewlinesFrom(RunNotOf(next, end, kNotOther), end);
  if (*p == ' ' && next < end && (next_class & kNotOther) == 0) {
    return NewlinesFrom(RunNotOf(next + next_length, end, kNotOther), end);
  }
  return SpacesOrLinesFrom(p, end);
}

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// nullptr: no match begins at `p`.
const char* DeepSeekPiece(const char* p, const char* end) {
  constexpr uint16_t kWordParts = CharClass::kLetter | CharClass::kMark;
  constexpr uint16_t kSigns = CharClass::kPunct | CharClass::kSymbol;
  int length = 0;
  const uint16_t cls = CharClassAt(p, &length);
  const char* next = p + length;
  if ((cls & kWordParts) != 0) return RunOf(next, end, kWordParts);
  if ((cls & kSigns) != 0) {
    if (length == 1 && next < end && IsAsciiLetter(*next)) {
      while (next < end && IsAsciiLetter(*next)) ++next;
      return next;
    }
    return NewlinesFrom(RunOf(next, end, kSigns), end);
  }
  if (next < end && !IsNewline(*p)) {
    int next_length = 0;
    const uint16_t next_class = CharClassAt(next, &next_length);
    if ((next_class & kWordParts) != 0) return RunOf(next + next_length, end, kWordParts);
    if (*p == ' ' && (next_class & kSigns) != 0) {
      return NewlinesFrom(RunOf(next + next_length, end, kSigns), end);
    }
  }
  if ((cls & CharClass::kSpace) != 0) return SpacesOrLinesFrom(p, end);
  return nullptr;
}

// [一-龥぀-ゟ゠-ヿ]: U+4E00..U+9FA5, U+3040..U+30FF; all take three bytes.
bool IsDeepSeekCjk(const char* p) {
  const auto lead = static_cast<unsigned char>(*p);
  if (lead < 0xE3 || lead > 0xE9) return false;
  int length = 0;
  const char32_t cp = DecodeUtf8(p, &length);
  return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

bool NextDeepSeekMain(const char* base, Cursor at, PatternMatch* match) {
  while (at.p < at.end) {
    if (const char* stop = DeepSeekPiece(at.p, at.end); stop != nullptr) {
      *match = {static_cast<size_t>(at.p - base), static_cast<size_t>(stop - base)};
      return true;
    }
    at.p += Utf8Length(*at.p);
  }
  return false;
}

bool NextDeepSeekCjk(const char* base, Cursor at, PatternMatch* match) {
  while (at.p < at.end && !IsDeepSeekCjk(at.p)) at.p += Utf8Length(*at.p);
  if (at.p >= at.end) return false;
  const char* stop = at.p;
  while (stop < at.end && IsDeepSeekCjk(stop)) stop += 3;
  *match = {static_cast<size_t>(at.p - base), static_cast<size_t>(stop - base)};
  return true;
}

bool NextNumbers(const char* base, Cursor at, PatternMatch* match) {
  const char* begin = RunNotOf(at.p, at.end, CharClass::kNumber);
  if (begin >= at.end) return false;
  const char* stop = begin;
  int length = 0;
  for (int i = 0; i < 3 && stop < at.end; ++i) {
    if ((CharClassAt(stop, &length) & CharClass::kNumber) == 0) break;
    stop += length;
  }
  *match = {static_cast<size_t>(begin - base), static_cast<size_t>(stop - base)};
  return true;
}

}  // namespace

std::optional<PatternKind> RecognisePattern(std::string_view pattern) {
  // Some files spell carriage return and line feed as the characters themselves.
  std::string spelled;
  for (const char c : pattern) {
    if (c == '\r') {
      spelled += "\\r";
    } else if (c == '\n') {
      spelled += "\\n";
    } else {
      spelled += c;
    }
  }
  for (const KnownPattern& known : kKnown) {
    if (known.text == spelled) return known.kind;
  }
  return std::nullopt;
}

bool NextPatternMatch(PatternKind kind, std::string_view text, size_t from, PatternMatch* match) {
  if (from >= text.size()) return false;
  const char* base = text.data();
  const Cursor at = {base + from, base + text.size()};
  const char* stop = nullptr;
  switch (kind) {
    case PatternKind::kGpt2:
      stop = Gpt2Piece(at.p, at.end);
      break;
    case PatternKind::kLlama3:
      stop = Llama3Piece<3, CharClass::kLetter>(at.p, at.end);
      break;
    case PatternKind::kQwen2:
      stop = Llama3Piece<1, CharClass::kLetter>(at.p, at.end);
      break;
    case PatternKind::kQwen35:
      stop = Llama3Piece<1, CharClass::kLetter | CharClass::kMark>(at.p, at.end);
      break;
    case PatternKind::kDeepSeekNumbers:
      return NextNumbers(base, at, match);
    case PatternKind::kDeepSeekCjk:
      return NextDeepSeekCjk(base, at, match);
    case PatternKind::kDeepSeekMain:
      return NextDeepSeekMain(base, at, match);
  }
  *match = {from, static_cast<size_t>(stop - base)};
  return true;
}

}  // namespace deepinfer
