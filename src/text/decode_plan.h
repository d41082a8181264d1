// How ids become text: the decoder steps, compiled into bytes per token and a few rules for the
// stream. Immutable after Compile, safe on any thread; owned by a Tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

class DecodePlan {
 public:
  // `vocab` holds every entry, added tokens included.
  static Result<DecodePlan> Compile(const TokenizerSpec& spec,
                                    const std::vector<std::string>& vocab);

  // Bytes of the token in the middle of a text; empty when out of range.
  std::string_view Bytes(TokenId id) const;
  // Bytes when the token opens the text; `piece` is its vocabulary entry.
  std::string FirstBytes(std::string_view piece) const { return Transform(piece, Place::kFirst); }
  // True when the opening token may differ from Bytes.
  bool first_differs() const { return first_differs_; }
  // No decoder: tokens are joined by spaces.
  bool joins_with_space() const { return joins_with_space_; }
  // The token ends with a word suffix: its closing space appears only if another token follows.
  bool EndsWord(std::string_view piece) const {
    return !word_suffix_.empty() && piece.ends_with(word_suffix_);
  }
  // This character is dropped from the text's start and end, up to so many times.
  const std::string& strip_character() const { return strip_character_; }
  int strip_start() const { return strip_start_; }
  int strip_stop() const { return strip_stop_; }

 private:
  enum class Place { kFirst, kInside };
  Status AddStep(const DecoderStep& step, bool* fused);
  std::string Transform(std::string_view piece, Place place) const;

  std::vector<DecoderStep> steps_;  // those that act on one token
  std::string arena_;
  std::vector<uint32_t> offsets_;  // vocab + 1
  std::string word_suffix_;
  std::string strip_character_;
  int strip_start_ = 0;
  int strip_stop_ = 0;
  bool first_differs_ = false;
  bool joins_with_space_ = false;
};

}  // namespace deepinfer
