#include "text/grammar/regex_parser.h"

#include <cstdint>
#include <string>

#include "base/format.h"
#include "text/unicode.h"

namespace deepinfer {

namespace {

constexpr uint32_t kRepeatMax = 1'000'000;
constexpr int64_t kCategoryWork = 40'000;  // all of Unicode is looked through

class RegexParser {
 public:
  RegexParser(std::u32string text, int depth_max, WorkBudget* budget, SyntaxTree* tree)
      : text_(std::move(text)), depth_max_(depth_max), budget_(budget), tree_(tree) {}

  Result<SyntaxId> Parse() {
    DI_ASSIGN(const SyntaxId root, ParseAlternatives(0));
    if (at_ < text_.size()) return Error("unmatched ')'");
    return root;
  }

 private:
  static constexpr char32_t kEndOfText = UINT32_MAX;
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : kEndOfText;
  }
  bool Take(char32_t c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  Status Error(std::string_view what) const {
    return Invalid(Format("regular expression: {} at character {}", what, at_ + 1));
  }

  Result<SyntaxId> ParseAlternatives(int depth) {
    if (depth > depth_max_) return Error("too many nested groups");
    std::vector<SyntaxId> branches;
    do {
      DI_ASSIGN(const SyntaxId branch, ParseSequence(depth));
      branches.push_back(branch);
    } while (Take('|'));
    return tree_->Alternate(std::move(branches));
  }

  Result<SyntaxId> ParseSequence(int depth) {
    std::vector<SyntaxId> parts;
    while (at_ < text_.size() && Peek() != '|' && Peek() != ')') {
      const bool anchor = Peek() == '^' || Peek() == '$';
      DI_ASSIGN(SyntaxId part, ParseAtom(depth));
      DI_ASSIGN(part, ParseQuantifier(part, anchor));
      parts.push_back(part);
    }
    return tree_->Sequence(std::move(parts));
  }

  Result<SyntaxId> ParseQuantifier(SyntaxId part, bool anchor) {
    uint32_t min = 0;
    uint32_t max = kUnbounded;
    if (Take('*')) {
    } else if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (Peek() == '{' && IsDigit(Peek(1))) {
      ++at_;
      DI_ASSIGN(min, ParseCount());
      max = min;
      if (Take(',')) {
        max = kUnbounded;
        if (IsDigit(Peek())) {
          DI_ASSIGN(max, ParseCount());
        }
      }
      if (!Take('}')) return Error("'{' without its '}'");
      if (min > max) return Error("a repetition whose minimum exceeds its maximum");
    } else {
      return part;
    }
    if (anchor) return Error("an anchor cannot be repeated");
    Take('?');  // laziness does not change what matches
    if (Peek() == '*' || Peek() == '+') return Error("nothing to repeat");
    return tree_->Repeat(part, min, max);
  }

  Result<uint32_t> ParseCount() {
    uint64_t count = 0;
    while (IsDigit(Peek())) {
      count = count * 10 + (text_[at_++] - '0');
      if (count > kRepeatMax) return Error(Format("a repetition above {}", kRepeatMax));
    }
    return static_cast<uint32_t>(count);
  }

  Result<SyntaxId> ParseAtom(int depth) {
    const char32_t c = text_[at_++];
    switch (c) {
      case '^':
        return tree_->Anchor(SyntaxNode::Kind::kBegin);
      case '$':
        return tree_->Anchor(SyntaxNode::Kind::kEnd);
      case '.':
        return tree_->Set(
            CodePointSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement());
      case '(':
        return ParseGroup(depth);
      case '[':
        return ParseClass();
      case '\\':
        return ParseAtomEscape();
      case '*':
      case '+':
      case '?':
        --at_;
        return Error("nothing to repeat");
      default:
        return tree_->Set(CodePointSet::Single(c));
    }
  }

  Result<SyntaxId> ParseGroup(int depth) {
    if (Take('?')) {
      if (Peek() == '=' || Peek() == '!') return Error("lookahead is not supported");
      if (Peek() == '<' && (Peek(1) == '=' || Peek(1) == '!')) {
        return Error("lookbehind is not supported");
      }
      if (Take('<') || (Peek() == 'P' && Peek(1) == '<')) {
        while (at_ < text_.size() && text_[at_] != '>') ++at_;
        if (!Take('>')) return Error("a group name without '>'");
      } else if (!Take(':')) {
        return Error("group modifiers are not supported");
      }
    }
    DI_ASSIGN(const SyntaxId inner, ParseAlternatives(depth + 1));
    if (!Take(')')) return Error("'(' without its ')'");
    return inner;
  }

  static bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }

  Result<SyntaxId> ParseAtomEscape() {
    const char32_t c = Peek();
    if (c == 'b' || c == 'B') return Error("word boundaries are not supported");
    if (c == 'k' || (c >= '1' && c <= '9')) return Error("back-references are not supported");
    DI_ASSIGN(CodePointSet set, ParseEscape());
    return tree_->Set(std::move(set));
  }

  // After the backslash.
  Result<CodePointSet> ParseEscape() {
    if (at_ >= text_.size()) return Error("a lone backslash");
    const char32_t c = text_[at_++];
    switch (c) {
      case 'd':
      case 'w':
      case 's':
        return EcmaClass(static_cast<char>(c));
      case 'D':
      case 'W':
      case 'S':
        return EcmaClass(static_cast<char>(c + 32)).Complement();
      case 'p':
      case 'P':
        return ParseCategory(c == 'P');
      case 'n':
        return CodePointSet::Single('\n');
      case 'r':
        return CodePointSet::Single('\r');
      case 't':
        return CodePointSet::Single('\t');
      case 'v':
        return CodePointSet::Single('\v');
      case 'f':
        return CodePointSet::Single('\f');
      case '0':
        return CodePointSet::Single(0);
      case 'c': {
        const char32_t letter = Peek() | 0x20U;
        if (letter < 'a' || letter > 'z') return Error("\\c wants a letter");
        ++at_;
        return CodePointSet::Single(letter - 'a' + 1);
      }
      case 'x':
        return ParseHex(2);
      case 'u':
        return ParseUnicode();
      default:
        return CodePointSet::Single(c);
    }
  }

  Result<CodePointSet> ParseCategory(bool negated) {
    if (!Take('{')) return Error("\\p wants a name in braces");
    std::string name;
    while (at_ < text_.size() && text_[at_] != '}' && text_[at_] < 128) {
      name += static_cast<char>(text_[at_++]);
    }
    if (!Take('}')) return Error("\\p wants a name in braces");
    if (!budget_->Spend(kCategoryWork)) return WorkBudget::Error();
    CodePointSet set = UnicodeCategory(name);
    if (set.empty()) return Error(Format("unknown character class \\p{{{}}}", name));
    return negated ? set.Complement() : set;
  }

  Result<char32_t> HexValue(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = Peek();
      const char32_t low = c | 0x20U;
      if (IsDigit(c)) {
        value = value * 16 + (c - '0');
      } else if (c != kEndOfText && low >= 'a' && low <= 'f') {
        value = value * 16 + (low - 'a' + 10);
      } else {
        return Error("a hexadecimal digit is missing");
      }
      ++at_;
    }
    return value;
  }

  Result<CodePointSet> ParseHex(int digits) {
    DI_ASSIGN(const char32_t value, HexValue(digits));
    return CodePointSet::Single(value);
  }

  Result<CodePointSet> ParseUnicode() {
    if (Take('{')) {
      char32_t value = 0;
      int digits = 0;
      for (; Peek() != '}'; ++digits) {
        DI_ASSIGN(const char32_t digit, HexValue(1));
        value = value * 16 + digit;
        if (value > kCodePointMax) return Error("a code point above U+10FFFF");
      }
      if (digits == 0) return Error("a hexadecimal digit is missing");
      ++at_;
      return CodePointSet::Single(value);
    }
    DI_ASSIGN(char32_t value, HexValue(4));
    if (value >= 0xD800 && value < 0xDC00 && Peek() == '\\' && Peek(1) == 'u') {
      const size_t before = at_;
      at_ += 2;
      const Result<char32_t> low = HexValue(4);
      if (low.ok() && *low >= 0xDC00 && *low < 0xE000) {
        value = 0x10000 + ((value - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        at_ = before;
      }
    }
    return CodePointSet::Single(value);
  }

  Result<SyntaxId> ParseClass() {
    const bool negated = Take('^');
    CodePointSet set;
    std::vector<CodePointRange> ranges;
    while (Peek() != ']') {
      if (at_ >= text_.size()) return Error("'[' without its ']'");
      DI_ASSIGN(const CodePointSet first, ParseClassItem());
      const bool single =
          first.ranges().size() == 1 && first.ranges()[0].first == first.ranges()[0].last;
      if (Peek() == '-' && Peek(1) != ']' && Peek(1) != kEndOfText && single) {
        ++at_;
        DI_ASSIGN(const CodePointSet last, ParseClassItem());
        if (last.ranges().size() == 1 && last.ranges()[0].first == last.ranges()[0].last) {
          if (last.ranges()[0].first < first.ranges()[0].first) {
            return Error("a range of characters out of order");
          }
          ranges.push_back({first.ranges()[0].first, last.ranges()[0].first});
          continue;
        }
        ranges.push_back({'-', '-'});
        ranges.insert(ranges.end(), last.ranges().begin(), last.ranges().end());
      }
      ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
    }
    ++at_;
    set = CodePointSet(std::move(ranges));
    return tree_->Set(negated ? set.Complement() : set);
  }

  Result<CodePointSet> ParseClassItem() {
    const char32_t c = text_[at_++];
    if (c != '\\') return CodePointSet::Single(c);
    if (Take('b')) return CodePointSet::Single(8);
    return ParseEscape();
  }

  const std::u32string text_;
  const int depth_max_;
  WorkBudget* budget_;
  SyntaxTree* tree_;
  size_t at_ = 0;
};

}  // namespace

Result<SyntaxId> ParseRegex(std::string_view pattern, int depth_max, WorkBudget* budget,
                            SyntaxTree* tree) {
  if (ValidUtf8Prefix(pattern) != pattern.size()) {
    return Invalid("regular expression: it is not valid UTF-8");
  }
  std::u32string text;
  int length = 0;
  for (size_t at = 0; at < pattern.size(); at += static_cast<size_t>(length)) {
    text.push_back(DecodeUtf8(pattern.data() + at, &length));
  }
  return RegexParser(std::move(text), depth_max, budget, tree).Parse();
}

}  // namespace deepinfer
