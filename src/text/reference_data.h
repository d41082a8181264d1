// Reads the reference data of tests/tokenizer for this folder's tests and benchmark: tokenizers in
// the form that tools/tokenizer_reference.py writes, and the mixed text that they are compared on.
// Not part of the product; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

// Paths are relative to the repository's root. Failures abort the program with a message.
std::string ReadReferenceFile(const std::string& name);
Json ReadReferenceJson(const std::string& name);
TokenizerSpec ReadReferenceSpec(const std::string& name);

// Steps as tokenizer.json spells them.
std::vector<PreTokenizerStep> PreTokenizerStepsOf(const Json& json);
std::vector<NormalizerStep> NormalizerStepsOf(const Json& json);
std::vector<DecoderStep> DecoderStepsOf(const Json& json);

// The generator of tools/tokenizer_reference.py.
std::string MixedText(const Json& mix, uint64_t seed, size_t size);
inline constexpr uint64_t kReferenceTextSeed = 1;
inline constexpr size_t kReferenceTextBytes = size_t{1} << 20;
inline constexpr uint64_t kReferenceSplitSeed = 2;
inline constexpr size_t kReferenceSplitBytes = size_t{1} << 17;

// SplitMix64, as in that tool.
class ReferenceRng {
 public:
  explicit ReferenceRng(uint64_t seed) : state_(seed) {}
  uint64_t Below(uint64_t n);

 private:
  uint64_t state_;
};

std::string HashOfIds(std::span<const TokenId> ids);
// Of texts fed one after the other.
class TextsHash {
 public:
  void Add(std::string_view text);
  std::string Hex() const;

 private:
  uint64_t value_ = 0xCBF29CE484222325U;
};

std::vector<std::string_view> SplitText(std::string_view text, std::string_view separator);

}  // namespace deepinfer
