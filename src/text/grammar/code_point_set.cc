#include "text/grammar/code_point_set.h"

#include <algorithm>
#include <cstdint>

#include "text/unicode.h"

namespace deepinfer {

namespace {

struct CategoryName {
  std::string_view name;
  uint16_t bits;
};

constexpr CategoryName kCategories[] = {
    {"L", CharClass::kLetter},
    {"Letter", CharClass::kLetter},
    {"Alphabetic", CharClass::kLetter},
    {"Lu", CharClass::kLu},
    {"Uppercase_Letter", CharClass::kLu},
    {"Ll", CharClass::kLl},
    {"Lowercase_Letter", CharClass::kLl},
    {"Lt", CharClass::kLt},
    {"Titlecase_Letter", CharClass::kLt},
    {"Lm", CharClass::kLm},
    {"Modifier_Letter", CharClass::kLm},
    {"Lo", CharClass::kLo},
    {"Other_Letter", CharClass::kLo},
    {"M", CharClass::kMark},
    {"Mark", CharClass::kMark},
    {"N", CharClass::kNumber},
    {"Number", CharClass::kNumber},
    {"P", CharClass::kPunct},
    {"Punctuation", CharClass::kPunct},
    {"S", CharClass::kSymbol},
    {"Symbol", CharClass::kSymbol},
    {"White_Space", CharClass::kSpace},
};

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const CodePointRange& range : ranges) {
    if (range.first > range.last) continue;
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodePointSet::Contains(char32_t cp) const {
  for (const CodePointRange& range : ranges_) {
    if (cp <= range.last) return cp >= range.first;
  }
  return false;
}

CodePointSet CodePointSet::Complement() const {
  std::vector<CodePointRange> gaps;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kCodePointMax) gaps.push_back({next, kCodePointMax});
  return CodePointSet(std::move(gaps));
}

CodePointSet CodePointSet::Union(const CodePointSet& other) const {
  std::vector<CodePointRange> ranges = ranges_;
  ranges.insert(ranges.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(std::move(ranges));
}

CodePointSet EcmaClass(char letter) {
  switch (letter) {
    case 'd':
      return CodePointSet({{'0', '9'}});
    case 'w':
      return CodePointSet({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
    case 's':
      return CodePointSet({{9, 13},
                           {32, 32},
                           {0xA0, 0xA0},
                           {0x1680, 0x1680},
                           {0x2000, 0x200A},
                           {0x2028, 0x2029},
                           {0x202F, 0x202F},
                           {0x205F, 0x205F},
                           {0x3000, 0x3000},
                           {0xFEFF, 0xFEFF}});
    default:
      return {};
  }
}

CodePointSet UnicodeCategory(std::string_view name) {
  if (name.starts_with("gc=")) name.remove_prefix(3);
  if (name.starts_with("General_Category=")) name.remove_prefix(17);
  if (name == "ASCII") return CodePointSet({{0, 127}});
  if (name == "Any") return CodePointSet::All();
  if (name == "Nd" || name == "digit") {
    // Decimal digits are the numbers that are word characters.
    std::vector<CodePointRange> ranges;
    for (char32_t cp = 0; cp <= kCodePointMax; ++cp) {
      const uint16_t bits = CharClassOf(cp);
      if ((bits & CharClass::kNumber) != 0 && (bits & CharClass::kWord) != 0 &&
          !(cp >= 0x16EE && cp <= 0x16F0) && !(cp >= 0x2160 && cp <= 0x2188)) {
        ranges.push_back({cp, cp});
      }
    }
    return CodePointSet(std::move(ranges));
  }
  for (const CategoryName& category : kCategories) {
    if (category.name != name) continue;
    std::vector<CodePointRange> ranges;
    for (char32_t cp = 0; cp <= kCodePointMax; ++cp) {
      if ((CharClassOf(cp) & category.bits) == 0) continue;
      if (!ranges.empty() && ranges.back().last + 1 == cp) {
        ranges.back().last = cp;
      } else {
        ranges.push_back({cp, cp});
      }
    }
    return CodePointSet(std::move(ranges));
  }
  return {};
}

}  // namespace deepinfer
