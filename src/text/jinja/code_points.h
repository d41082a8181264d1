// Code point helpers with Python's str semantics: whitespace, letter case, classes, indexing.
// Input is valid UTF-8 (templates are checked when compiled, JSON when parsed). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::jinja {

// The code point at `at` (< text.size()); `*next` is where the following one begins.
char32_t DecodeAt(std::string_view text, size_t at, size_t* next);
void AppendUtf8(std::string* out, char32_t code_point);
// Where the code point that ends before `at` (> 0) begins.
size_t PreviousBoundary(std::string_view text, size_t at);
bool IsValidUtf8(std::string_view text);

// std::string_view::find in linear time, whatever the pattern.
size_t FindText(std::string_view text, std::string_view pattern, size_t from = 0);
// Begins of the matches of a pattern that is not empty, from the right, not overlapping, at most
// `count` of them; linear time.
std::vector<size_t> FindFromRight(std::string_view text, std::string_view pattern, size_t count);

size_t CountCodePoints(std::string_view text);
// Byte offset of code point `index`; text.size() when past the end.
size_t ByteOffset(std::string_view text, size_t index);

bool IsSpace(char32_t c);      // str.isspace
bool IsLineBreak(char32_t c);  // boundaries of str.splitlines
size_t SkipSpace(std::string_view text, size_t at);
size_t TrimRightEnd(std::string_view text);  // end of text.rstrip()

bool IsPrintable(char32_t c);  // str.isprintable
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsAlnum(char32_t c);
bool IsIdentifierPart(char32_t c);  // \w
bool IsUpper(char32_t c);           // upper- or titlecase
bool IsLower(char32_t c);
bool IsCased(char32_t c);

// Full case mappings of Python's str methods (ß becomes SS; a final sigma in lower()).
void AppendUpper(std::string* out, char32_t c);
void AppendTitle(std::string* out, char32_t c);
// Lowercase of the code point at `at` of `text`, whose context decides about sigma.
void AppendLower(std::string* out, std::string_view text, size_t at);

}  // namespace deepinfer::jinja
