// Incremental token ids to text for one sample. Emits only complete UTF-8, holds back at most an
// incomplete character (3 bytes), and never stalls on invalid bytes (U+FFFD at once).
// The concatenation of all pieces equals Tokenizer::Decode of all ids. Owned by a Sequence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer {

class Detokenizer {
 public:
  // `tokenizer` must outlive this object.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens,
              bool spaces_between_special_tokens);
  // Appends the text that `id` makes available to `out`. Unknown ids add nothing.
  void Push(TokenId id, std::string* out);
  // Appends what is still held back (each maximal invalid prefix as one U+FFFD).
  void Finish(std::string* out);

 private:
  void PushBytes(std::string_view bytes, std::string* out);
  void Emit(std::string_view text, std::string* out);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool spaces_between_special_;
  std::string held_;      // bytes of an incomplete character
  bool at_start_ = true;  // no token was taken yet
  bool after_special_ = false;
  bool space_due_ = false;  // a word ended: a space if another token follows
  int strip_left_;          // characters that may still be stripped from the start
  int stripped_held_ = 0;   // strip characters that may turn out to be the end
};

}  // namespace deepinfer
