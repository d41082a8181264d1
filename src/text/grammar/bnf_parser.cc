#include "text/grammar/bnf_parser.h"

#include <unordered_map>

#include "base/format.h"
#include "text/unicode.h"

namespace deepinfer {

namespace {

constexpr uint32_t kRepeatMax = 1'000'000;
constexpr size_t kEndsMax = 8;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class BnfParser {
 public:
  BnfParser(std::string_view text, int depth_max) : text_(text), depth_max_(depth_max) {}

  Result<BnfGrammar> Parse() {
    SkipSpace(Lines::kCross);
    while (at_ < text_.size()) {
      DI_TRY(ParseRule());
      SkipSpace(Lines::kCross);
    }
    for (size_t i = 0; i < grammar_.names.size(); ++i) {
      if (!defined_[i]) {
        return Invalid(Format("grammar: rule \"{}\" is used but not defined", grammar_.names[i]));
      }
    }
    const auto root = ids_.find("root");
    if (root == ids_.end()) return Invalid("grammar: there is no rule \"root\"");
    grammar_.root = root->second;
    return std::move(grammar_);
  }

 private:
  enum class Lines { kStay, kCross };

  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  Status Error(std::string_view what) const {
    size_t line = 1;
    size_t start = 0;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
      if (text_[i] != '\n') continue;
      ++line;
      start = i + 1;
    }
    return Invalid(Format("grammar: {} in line {}, column {}", what, line, at_ - start + 1));
  }

  void SkipSpace(Lines lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == '(' && Peek(1) == '*') {  // EBNF's comment
        const size_t end = text_.find("*)", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else if (c == ' ' || c == '\t' || (lines == Lines::kCross && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string TakeName() {
    const size_t begin = at_;
    if (Peek() == '<') {  // BNF's <name>
      const size_t end = text_.find('>', at_);
      if (end != std::string_view::npos) {
        at_ = end + 1;
        return std::string(text_.substr(begin + 1, end - begin - 1));
      }
    }
    while (at_ < text_.size() && IsNameByte(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  uint32_t RuleId(const std::string& name) {
    const auto [entry, is_new] =
        ids_.try_emplace(name, static_cast<uint32_t>(grammar_.names.size()));
    if (is_new) {
      grammar_.names.push_back(name);
      grammar_.rules.push_back(0);
      grammar_.specials.emplace_back();
      defined_.push_back(false);
    }
    return entry->second;
  }

  // Moves over the sign of a definition; false when there is none.
  bool TakeSign() {
    for (const std::string_view sign : {"::=", ":=", "=", ":"}) {
      if (text_.substr(at_).starts_with(sign)) {
        at_ += sign.size();
        return true;
      }
    }
    return false;
  }

  Status ParseRule() {
    const std::string name = TakeName();
    if (name.empty()) return Error("the name of a rule is wanted");
    SkipSpace(Lines::kStay);
    if (!TakeSign()) return Error("::= is wanted");
    const uint32_t id = RuleId(name);
    if (defined_[id]) return Error(Format("rule \"{}\" is defined twice", name));
    DI_ASSIGN(grammar_.rules[id], ParseAlternatives(0));
    defined_[id] = true;
    SkipSpace(Lines::kCross);
    if (Peek() == ';') ++at_;
    return {};
  }

  // A name followed by a sign begins the next rule.
  bool AtNextRule() {
    const size_t saved = at_;
    const bool named = !TakeName().empty();
    SkipSpace(Lines::kStay);
    const bool next = named && TakeSign();
    at_ = saved;
    return next;
  }

  Result<SyntaxId> ParseAlternatives(int depth) {
    if (depth > depth_max_) return Error("too many nested groups");
    std::vector<SyntaxId> branches;
    while (true) {
      DI_ASSIGN(const SyntaxId branch, ParseSequence(depth));
      branches.push_back(branch);
      SkipSpace(Lines::kCross);
      if (Peek() != '|') break;
      ++at_;
    }
    return grammar_.tree.Alternate(std::move(branches));
  }

  Result<SyntaxId> ParseSequence(int depth) {
    std::vector<SyntaxId> parts;
    while (true) {
      SkipSpace(Lines::kCross);
      if (Peek() == ',' && !parts.empty()) {  // EBNF's separator
        ++at_;
        SkipSpace(Lines::kCross);
      }
      const char c = Peek();
      if (at_ >= text_.size() || c == '|' || c == ')' || c == ';' || c == '}') break;
      if ((IsNameByte(c) || c == '<') && AtNextRule()) break;
      DI_ASSIGN(SyntaxId part, ParseAtom(depth));
      DI_ASSIGN(part, ParseQuantifiers(part));
      parts.push_back(part);
    }
    return grammar_.tree.Sequence(std::move(parts));
  }

  Result<SyntaxId> ParseQuantifiers(SyntaxId part) {
    while (true) {
      SkipSpace(Lines::kStay);
      const char c = Peek();
      if (c == '*') {
        part = grammar_.tree.Repeat(part, 0, kUnbounded);
      } else if (c == '+') {
        part = grammar_.tree.Repeat(part, 1, kUnbounded);
      } else if (c == '?') {
        part = grammar_.tree.Repeat(part, 0, 1);
      } else if (c == '{' && (Peek(1) == ',' || (Peek(1) >= '0' && Peek(1) <= '9'))) {
        ++at_;
        DI_ASSIGN(part, ParseCounts(part));
        continue;
      } else {
        return part;
      }
      ++at_;
      if (++quantifiers_ > 10'000) return Error("too many repetitions");
      if (grammar_.tree.node(part).height > 4 * depth_max_) return Error("too much nesting");
    }
  }

  Result<SyntaxId> ParseCounts(SyntaxId part) {
    const auto number = [&](uint32_t fallback) -> Result<uint32_t> {
      uint64_t value = 0;
      const size_t begin = at_;
      while (Peek() >= '0' && Peek() <= '9') {
        value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
        if (value > kRepeatMax) return Error(Format("a repetition above {}", kRepeatMax));
      }
      return at_ == begin ? fallback : static_cast<uint32_t>(value);
    };
    DI_ASSIGN(const uint32_t min, number(0));
    uint32_t max = min;
    SkipSpace(Lines::kStay);
    if (Peek() == ',') {
      ++at_;
      SkipSpace(Lines::kStay);
      DI_ASSIGN(max, number(kUnbounded));
      SkipSpace(Lines::kStay);
    }
    if (Peek() != '}') return Error("'{' without its '}'");
    ++at_;
    if (min > max) return Error("a repetition whose minimum exceeds its maximum");
    if (grammar_.tree.node(part).height > 4 * depth_max_) return Error("too much nesting");
    return grammar_.tree.Repeat(part, min, max);
  }

  Result<SyntaxId> ParseAtom(int depth) {
    const char c = Peek();
    switch (c) {
      case '"':
      case '\'':
        return ParseText(c);
      case '[':
        return ParseClass();
      case '.':
        ++at_;
        return grammar_.tree.Set(CodePointSet::All());
      case '%':
        return ParseSpecial();
      case '(':
      case '{': {
        ++at_;
        DI_ASSIGN(const SyntaxId inner, ParseAlternatives(depth + 1));
        SkipSpace(Lines::kCross);
        if (Peek() != (c == '(' ? ')' : '}')) return Error("a group is not closed");
        ++at_;
        return c == '(' ? inner : grammar_.tree.Repeat(inner, 0, kUnbounded);
      }
      default:
        break;
    }
    const std::string name = TakeName();
    if (name.empty()) return Error(Format("unexpected '{}'", c));
    return grammar_.tree.Call(RuleId(name));
  }

  Result<SyntaxId> ParseSpecial() {
    BnfSpecial special;
    const auto take = [&](std::string_view word) {
      if (!text_.substr(at_).starts_with(word)) return false;
      at_ += word.size();
      SkipSpace(Lines::kCross);
      return true;
    };
    if (take("%json")) {
      special.kind = BnfSpecial::Kind::kSchema;
      DI_ASSIGN(special.text, TakeObject());
    } else if (take("%grammar")) {
      special.kind = BnfSpecial::Kind::kGrammar;
      DI_ASSIGN(special.text, TakeObject());
    } else if (take("%until")) {
      special.kind = BnfSpecial::Kind::kUntil;
      DI_ASSIGN(special.ends, TakeEnds());
    } else {
      return Error("%json{...}, %grammar{...} or %until\"...\" is wanted");
    }
    const uint32_t id = RuleId(Format("%{}", grammar_.names.size()));  // no source can write it
    defined_[id] = true;
    grammar_.rules[id] = grammar_.tree.Sequence({});
    grammar_.specials[id] = std::move(special);
    return grammar_.tree.Call(id);
  }

  // One text in quotes, or some of them in parentheses.
  Result<std::vector<std::string>> TakeEnds() {
    std::vector<std::string> ends;
    const bool several = Peek() == '(';
    if (several) ++at_;
    do {
      SkipSpace(Lines::kCross);
      if (Peek() != '"') return Error("%until wants a text in quotes");
      ++at_;
      std::string end;
      while (Peek() != '"') {
        if (at_ >= text_.size()) return Error("a text without its closing quote");
        DI_ASSIGN(const char32_t cp, TakeCharacter());
        AppendCodePoint(cp, &end);
      }
      ++at_;
      if (end.empty()) return Error("%until wants a text that is not empty");
      ends.push_back(std::move(end));
      SkipSpace(Lines::kCross);
    } while (several && Peek() != ')' && ends.size() < kEndsMax);
    if (several && Peek() != ')') return Error(Format("%until takes at most {} texts", kEndsMax));
    if (several) ++at_;
    return ends;
  }

  // From { to the } that belongs to it.
  Result<std::string> TakeObject() {
    if (Peek() != '{') return Error("a schema or grammar in braces is wanted");
    const size_t begin = at_;
    int open = 0;
    bool quoted = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (quoted) {
        if (c == '\\') {
          ++at_;
        } else if (c == '"') {
          quoted = false;
        }
      } else if (c == '"') {
        quoted = true;
      } else if (c == '{') {
        ++open;
      } else if (c == '}' && --open == 0) {
        ++at_;
        return std::string(text_.substr(begin, at_ - begin));
      }
    }
    at_ = text_.size();
    return Error("a schema without its last brace");
  }

  // One character, escapes resolved. `at_` is not at the end.
  Result<char32_t> TakeCharacter() {
    if (Peek() != '\\') {
      const Utf8Step step = NextUtf8Step(text_.substr(at_));
      if (step.kind != Utf8Step::Kind::kCharacter) return Error("invalid UTF-8");
      int length = 0;
      const char32_t cp = DecodeUtf8(text_.data() + at_, &length);
      at_ += static_cast<size_t>(length);
      return cp;
    }
    ++at_;
    if (at_ >= text_.size()) return Error("a lone backslash");
    const char c = text_[at_++];
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      default:
        if (IsNameByte(c) && c != '-' && c != '_') {
          return Error(Format("unknown escape \\{}", c));
        }
        return static_cast<char32_t>(static_cast<unsigned char>(c));
    }
  }

  Result<char32_t> Hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const int c = Peek();
      const int low = c | 0x20;
      const int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 87 : -1;
      if (digit < 0) return Error("a hexadecimal digit is missing");
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    if (value > kCodePointMax) return Error("a code point above U+10FFFF");
    if (value >= 0xD800 && value <= 0xDFFF) {
      return Error(Format("U+{:04X}, half of a surrogate pair and no character,",
                          static_cast<uint32_t>(value)));
    }
    return value;
  }

  Result<SyntaxId> ParseText(char quote) {
    ++at_;
    std::vector<SyntaxId> parts;
    while (Peek() != quote) {
      if (at_ >= text_.size()) return Error("a text without its closing quote");
      DI_ASSIGN(const char32_t cp, TakeCharacter());
      parts.push_back(grammar_.tree.Set(CodePointSet::Single(cp)));
    }
    ++at_;
    return grammar_.tree.Sequence(std::move(parts));
  }

  Result<SyntaxId> ParseClass() {
    ++at_;
    const bool negated = Peek() == '^';
    if (negated) ++at_;
    std::vector<CodePointRange> ranges;
    while (Peek() != ']') {
      if (at_ >= text_.size()) return Error("'[' without its ']'");
      DI_ASSIGN(const char32_t first, TakeCharacter());
      char32_t last = first;
      if (Peek() == '-' && Peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        DI_ASSIGN(last, TakeCharacter());
        if (last < first) return Error("a range of characters out of order");
      }
      ranges.push_back({first, last});
    }
    ++at_;
    const CodePointSet set(std::move(ranges));
    return grammar_.tree.Set(negated ? set.Complement() : set);
  }

  const std::string_view text_;
  const int depth_max_;
  size_t at_ = 0;
  int quantifiers_ = 0;
  BnfGrammar grammar_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<bool> defined_;
};

}  // namespace

Result<BnfGrammar> ParseBnf(std::string_view text, int depth_max) {
  return BnfParser(text, depth_max).Parse();
}

}  // namespace deepinfer
