#include "text/jinja/lexer.h"

#include <algorithm>

#include "base/format.h"
#include "text/jinja/code_points.h"

namespace deepinfer::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Digits with single underscores between them; returns the end, or `at` when there are none.
size_t SkipDigits(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size()) {
    if (IsDigit(text[end])) {
      ++end;
    } else if (text[end] == '_' && end > at && end + 1 < text.size() && IsDigit(text[end + 1])) {
      ++end;
    } else {
      break;
    }
  }
  return end;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size()) DI_TRY(Root());
    Emit(TokenType::kEnd, source_.size(), source_.size());
    return std::move(tokens_);
  }

 private:
  void Emit(TokenType type, size_t begin, size_t end) {
    tokens_.push_back({type, static_cast<uint32_t>(begin), source_.substr(begin, end - begin)});
  }

  bool At(std::string_view text) const { return source_.substr(at_).starts_with(text); }

  void EmitData(size_t begin, size_t end) {
    if (end > begin) Emit(TokenType::kData, begin, end);
  }

  // Consumes a sign after a tag's opening and returns it, or 0.
  char TakeSign() {
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) {
      return source_[at_++];
    }
    return 0;
  }

  // Where the data [begin, end) before a tag stops once the tag's whitespace control is applied.
  size_t DataEnd(size_t begin, size_t end, char sign, bool lstrip) const {
    const std::string_view data = source_.substr(begin, end - begin);
    if (sign == '-') return begin + TrimRightEnd(data);
    if (sign == '+' || !lstrip) return end;
    const size_t newline = data.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return end;
    // As Jinja2's pattern for whitespace needs a character, nothing changes when there is none.
    return SkipSpace(data, line) == data.size() ? begin + line : end;
  }

  // Consumes the end of a tag at at_ ("-%}" and whitespace, "+%}", "%}" and a newline).
  bool TakeEnd(std::string_view close) {
    const size_t start = at_;
    if (At("-") && source_.substr(at_ + 1).starts_with(close)) {
      at_ = SkipSpace(source_, at_ + 1 + close.size());
    } else if (At("+") && source_.substr(at_ + 1).starts_with(close)) {
      at_ += 1 + close.size();
    } else if (At(close)) {
      at_ += close.size();
      if (at_ < source_.size() && source_[at_] == '\n') ++at_;
    } else {
      return false;
    }
    line_starting_ = at_ > start && source_[at_ - 1] == '\n';
    return true;
  }

  Status Root() {
    const size_t begin = at_;
    size_t tag = begin;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        EmitData(begin, source_.size());
        at_ = source_.size();
        return {};
      }
      const char next = source_[tag + 1];
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    const char sign = TakeSign();
    EmitData(begin, DataEnd(begin, tag, sign, kind != '{'));
    line_starting_ = false;
    if (kind == '#') return Comment(tag);
    if (kind == '{') {
      Emit(TokenType::kVariableBegin, tag, at_);
      return Tag(tag, TokenType::kVariableEnd);
    }
    size_t raw_body;
    if (IsRawTag(at_, "raw", &raw_body)) return Raw(tag, raw_body);
    Emit(TokenType::kBlockBegin, tag, at_);
    return Tag(tag, TokenType::kBlockEnd);
  }

  Status Comment(size_t tag) {
    const size_t close = source_.find("#}", at_);
    if (close == std::string_view::npos) {
      return ErrorAt(source_, tag, "this comment is not closed; add #}");
    }
    const bool sign = close > at_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    at_ = sign ? close - 1 : close;
    TakeEnd("#}");
    return {};
  }

  // After "{%" and its sign: the word and the end of the tag. `*after` is where the tag ends.
  bool IsRawTag(size_t at, std::string_view word, size_t* after) const {
    at = SkipSpace(source_, at);
    if (!source_.substr(at).starts_with(word)) return false;
    at = SkipSpace(source_, at + word.size());
    if (source_.substr(at).starts_with("-%}")) {
      *after = SkipSpace(source_, at + 3);
      return true;
    }
    *after = at + 2;
    return source_.substr(at).starts_with("%}");
  }

  Status Raw(size_t tag, size_t body) {
    line_starting_ = source_[body - 1] == '\n';
    for (size_t close = body;; close += 2) {
      close = source_.find("{%", close);
      if (close == std::string_view::npos) {
        return ErrorAt(source_, tag, "this raw block is not closed; add {% endraw %}");
      }
      at_ = close + 2;
      const char sign = TakeSign();
      at_ = SkipSpace(source_, at_);
      if (!At("endraw")) continue;
      at_ = SkipSpace(source_, at_ + 6);
      if (!At("%}") && !At("-%}") && !At("+%}")) continue;
      EmitData(body, DataEnd(body, close, sign, true));
      TakeEnd("%}");
      return {};
    }
  }

  // The inside of {{ }} or {% %} up to and including its end.
  Status Tag(size_t tag, TokenType end_type) {
    const bool variable = end_type == TokenType::kVariableEnd;
    std::string open;  // brackets that are waiting for their partner
    while (at_ < source_.size()) {
      const size_t begin = at_;
      if (open.empty() && (variable ? TakeVariableEnd() : TakeEnd("%}"))) {
        Emit(end_type, begin, at_);
        return {};
      }
      at_ = SkipSpace(source_, at_);
      if (at_ > begin) continue;
      DI_TRY(Inner(&open));
    }
    return ErrorAt(
        source_, tag,
        variable ? "this expression is not closed; add }}" : "this tag is not closed; add %}");
  }

  bool TakeVariableEnd() {
    if (At("-}}")) {
      at_ = SkipSpace(source_, at_ + 3);
    } else if (At("}}")) {
      at_ += 2;
    } else {
      return false;
    }
    line_starting_ = source_[at_ - 1] == '\n';
    return true;
  }

  Status Inner(std::string* open) {
    const size_t begin = at_;
    const char c = source_[at_];
    if (IsDigit(c)) {
      Number();
      return {};
    }
    if (c == '"' || c == '\'') return StringLiteral(c);
    size_t next = at_;
    while (at_ < source_.size() && IsIdentifierPart(DecodeAt(source_, at_, &next))) at_ = next;
    if (at_ > begin) {
      Emit(TokenType::kName, begin, at_);
      return {};
    }
    for (std::string_view op : kOperators) {
      if (!At(op)) continue;
      DI_TRY(Balance(op[0], open));
      at_ += op.size();
      Emit(TokenType::kOperator, begin, at_);
      return {};
    }
    DecodeAt(source_, at_, &next);
    return ErrorAt(source_, at_,
                   Format("unexpected character '{}'", source_.substr(at_, next - at_)));
  }

  Status Balance(char c, std::string* open) const {
    if (c == '{') open->push_back('}');
    if (c == '(') open->push_back(')');
    if (c == '[') open->push_back(']');
    if (c != '}' && c != ')' && c != ']') return {};
    if (open->empty()) return ErrorAt(source_, at_, Format("unexpected '{}'", c));
    if (open->back() != c) {
      return ErrorAt(source_, at_, Format("unexpected '{}', expected '{}'", c, open->back()));
    }
    open->pop_back();
    return {};
  }

  void Number() {
    const size_t begin = at_;
    if (begin == 0 || source_[begin - 1] != '.') {
      const size_t whole = SkipDigits(source_, at_);
      size_t end = whole;
      if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
        end = SkipDigits(source_, end + 1);
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t digits = end + 1;
        if (digits < source_.size() && (source_[digits] == '+' || source_[digits] == '-')) ++digits;
        const size_t exponent = SkipDigits(source_, digits);
        if (exponent > digits) end = exponent;
      }
      if (end > whole) {
        at_ = end;
        Emit(TokenType::kFloat, begin, end);
        return;
      }
    }
    at_ = IntegerEnd(begin);
    Emit(TokenType::kInteger, begin, at_);
  }

  size_t IntegerEnd(size_t begin) const {
    if (source_[begin] != '0') return SkipDigits(source_, begin);
    const auto skip = [&](std::string_view digits) {
      size_t end = begin + 2;
      const auto is_digit = [&](size_t i) {
        return i < source_.size() &&
               digits.find(static_cast<char>(source_[i] | 0x20)) != std::string_view::npos;
      };
      while (is_digit(end) || (end < source_.size() && source_[end] == '_' && is_digit(end + 1))) {
        ++end;
      }
      return end;
    };
    const char base = begin + 1 < source_.size() ? static_cast<char>(source_[begin + 1] | 0x20) : 0;
    const size_t end = base == 'x'   ? skip("0123456789abcdef")
                       : base == 'o' ? skip("01234567")
                       : base == 'b' ? skip("01")
                                     : 0;
    if (end > begin + 2) return end;
    size_t zeros = begin + 1;
    while (zeros < source_.size() && source_[zeros] == '0') ++zeros;
    return zeros;
  }

  Status StringLiteral(char quote) {
    const size_t begin = at_;
    for (size_t i = begin + 1; i < source_.size(); ++i) {
      if (source_[i] == '\\') {
        ++i;
      } else if (source_[i] == quote) {
        tokens_.push_back({TokenType::kString, static_cast<uint32_t>(begin),
                           source_.substr(begin + 1, i - begin - 1)});
        at_ = i + 1;
        return {};
      }
    }
    return ErrorAt(source_, begin, Format("this string is not closed; add {}", quote));
  }

  std::string_view source_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// \xhh, \uhhhh, \Uhhhhhhhh. `*at` is past the letter.
Status AppendHexEscape(std::string_view text, size_t digits, size_t* at, std::string* out) {
  char32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const int digit = *at < text.size() ? HexValue(text[*at]) : -1;
    if (digit < 0) return Invalid(Format("an escape in this string needs {} hex digits", digits));
    value = value << 4 | static_cast<char32_t>(digit);
    ++*at;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    return Invalid(
        Format("escape U+{:X} in this string is not a character", static_cast<uint32_t>(value)));
  }
  AppendUtf8(out, value);
  return {};
}

char SimpleEscape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return 0;
  }
}

}  // namespace

std::string NormalizeSource(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

Result<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

std::string DescribePosition(std::string_view source, size_t offset) {
  const std::string_view before = source.substr(0, std::min(offset, source.size()));
  const size_t newline = before.rfind('\n');
  const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
  return Format("line {}, column {}", std::count(before.begin(), before.end(), '\n') + 1,
                CountCodePoints(before.substr(line_begin)) + 1);
}

Status ErrorAt(std::string_view source, size_t offset, std::string_view message) {
  return Invalid(Format("chat template: {}: {}", DescribePosition(source, offset), message));
}

Result<std::string> Unescape(std::string_view literal) {
  std::string out;
  out.reserve(literal.size());
  for (size_t i = 0; i < literal.size();) {
    const char c = literal[i++];
    if (c != '\\' || i == literal.size()) {
      out.push_back(c);
      continue;
    }
    const char escape = literal[i++];
    if (const char simple = SimpleEscape(escape)) {
      out.push_back(simple);
    } else if (escape == 'x' || escape == 'u' || escape == 'U') {
      DI_TRY(AppendHexEscape(literal, escape == 'x' ? 2 : escape == 'u' ? 4 : 8, &i, &out));
    } else if (escape >= '0' && escape <= '7') {
      char32_t value = static_cast<char32_t>(escape - '0');
      for (int n = 1; n < 3 && i < literal.size() && literal[i] >= '0' && literal[i] <= '7'; ++n) {
        value = value * 8 + static_cast<char32_t>(literal[i++] - '0');
      }
      AppendUtf8(&out, value);
    } else if (escape == 'N' && i < literal.size() && literal[i] == '{') {
      return Invalid("\\N{...} escapes are not supported; write the character itself");
    } else if (escape != '\n') {
      out.push_back('\\');
      out.push_back(escape);
    }
  }
  return out;
}

}  // namespace deepinfer::jinja
