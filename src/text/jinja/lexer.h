// Template source to tokens, with Jinja2's whitespace control under trim_blocks and lstrip_blocks.
// Pure functions; a token's text views the normalised source, which must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer::jinja {

enum class TokenType : uint8_t {
  kData,           // template text
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  uint32_t offset = 0;    // into the normalised source
  std::string_view text;  // source text; strings: between the quotes, still escaped
};

// Newlines become "\n" and one newline at the end goes, as in Jinja2.
std::string NormalizeSource(std::string_view source);

// Errors name line and column. The last token is kEnd.
Result<std::vector<Token>> Tokenize(std::string_view source);

// "line 3, column 14" of a byte offset; columns count code points from 1.
std::string DescribePosition(std::string_view source, size_t offset);
Status ErrorAt(std::string_view source, size_t offset, std::string_view message);

// The value of a string literal's text, escapes resolved as Python does.
Result<std::string> Unescape(std::string_view literal);

}  // namespace deepinfer::jinja
