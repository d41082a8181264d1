// What the tests of this folder share: compiling in one line, judging texts, a small vocabulary.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "text/grammar/grammar.h"

namespace deepinfer {

using Grammar = std::shared_ptr<const CompiledGrammar>;

inline Grammar CompileOrFail(GrammarSource::Kind kind, const std::string& text,
                             const GrammarOptions& options = {}) {
  Result<Grammar> grammar = CompiledGrammar::Compile({kind, text}, options);
  EXPECT_TRUE(grammar.ok()) << text << ": " << grammar.status().message();
  return grammar.ok() ? *grammar : nullptr;
}

// The message of the error, or "" when it compiles.
inline std::string ErrorOf(GrammarSource::Kind kind, const std::string& text,
                           const GrammarOptions& options = {}) {
  const Result<Grammar> grammar = CompiledGrammar::Compile({kind, text}, options);
  return grammar.status().message();
}

inline bool Accepts(const Grammar& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar, nullptr, 0);
  return matcher.AcceptText(text) == text.size() && matcher.IsComplete();
}

// A stream of numbers that is the same on every machine.
class TestRng {
 public:
  explicit TestRng(uint64_t key) : key_(key) {}
  size_t Next() { return Philox4x32(key_, {counter_++, 0, 0, 0})[0]; }

 private:
  uint64_t key_;
  uint32_t counter_ = 0;
};

// Every byte, and `words`; the stop token is the last id.
struct SmallVocabulary {
  explicit SmallVocabulary(const std::vector<std::string>& words) {
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.insert(bytes.end(), words.begin(), words.end());
    bytes.emplace_back();
    stop = static_cast<TokenId>(bytes.size() - 1);
    GrammarVocabulary::Options options;
    options.stop_ids = {stop};
    vocabulary = *GrammarVocabulary::Create(bytes, options);
  }
  std::vector<std::string> bytes;
  TokenId stop = 0;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
};

inline std::vector<std::string> JsonWords() {
  return {"{\"",   "\":", "\": ", "\",\"",    "\"}",  "\"]",      "},{",
          "[]",    "{}",  "true", "fal",      "null", "name",     "age",
          "value", "ing", "st",   " the",     "\"a",  "\":\"",    "12",
          "123",   "0.",  "-1",   ",",        ", \"", "\\n",      "\\u00",
          "\n  ",  "é",   "\xE4", "\xB8\xAD", "aaaa", "bbbbbbbb", "a long text of many words",
          "\"\"",  "e5",  "]}"};
}

}  // namespace deepinfer
