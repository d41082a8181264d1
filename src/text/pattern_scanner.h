// Hand-written linear scanners for the split patterns of popular models. Each finds the same
// matches as the regular expression it stands for, leftmost alternative first.
// Pure functions over valid UTF-8, safe on any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace deepinfer {

enum class PatternKind {
  kGpt2,             // also the ByteLevel pre-tokenizer's own pattern
  kLlama3,           // numbers in groups of three
  kQwen2,            // as kLlama3, each number alone
  kQwen35,           // as kQwen2, marks count as letters
  kDeepSeekNumbers,  // stages one to three of DeepSeek V3
  kDeepSeekCjk,
  kDeepSeekMain,
};

// The scanner for `pattern` as spelled in tokenizer.json; none: not one of the known patterns.
std::optional<PatternKind> RecognisePattern(std::string_view pattern);

struct PatternMatch {
  size_t begin = 0;
  size_t end = 0;
};

// The first match that begins at or after `from`; false when there is none. Matches are not empty.
bool NextPatternMatch(PatternKind kind, std::string_view text, size_t from, PatternMatch* match);

}  // namespace deepinfer
