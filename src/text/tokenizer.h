// Text to token ids and back, exactly as the Hugging Face `tokenizers` package does it.
// Immutable after Create; every method is safe on any thread. Time is linear in the text.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

class DecodePlan;

// A byte range [begin, end) of a prompt in which special tokens are recognised.
struct TrustedSpan {
  size_t begin = 0;
  size_t end = 0;
};

struct EncodeOptions {
  bool add_special_tokens = true;  // the post-processor's prefix and suffix
  // With `spans_only`, control tokens (flagged special, or spelled like markup: <think>, [INST])
  // are recognised only where one span holds them entirely; otherwise everywhere. Spans are
  // sorted and disjoint. Other added tokens are plain vocabulary and always recognised.
  bool spans_only = false;
  // Which added tokens `spans_only` binds: the control tokens, or every one.
  enum class Bound { kControl, kEveryAdded } bound = Bound::kControl;
  std::span<const TrustedSpan> spans;
};

class Tokenizer {
 public:
  // Errors name the offending entry. The merge list is not kept.
  static Result<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);
  ~Tokenizer();

  // Never fails on content: invalid UTF-8 is replaced by U+FFFD first.
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Whole-text decode; unknown ids add nothing.
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  int vocab_size() const;  // ids are 0 .. vocab_size()-1
  bool IsSpecial(TokenId id) const;
  // The vocabulary entry ("Ġhello", "<0x0A>"), empty when out of range.
  const std::string& Piece(TokenId id) const;
  // The bytes the token stands for in the middle of a text (" hello", "\n").
  std::string_view Bytes(TokenId id) const;
  // -1 when absent.
  TokenId Find(std::string_view piece) const;
  TokenId bos_id() const;
  TokenId eos_id() const;
  const TokenizerSpec& spec() const;  // without its merges
  const DecodePlan& decode_plan() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
