// The tokens of a vocabulary as a trie in preorder, in flat arrays: a walk is one loop that jumps
// over what a grammar refuses. Beside it what masks of open texts are made of. Immutable, shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer {

class TokenTrie {
 public:
  static constexpr size_t kTokenBytesMax = 255;  // longer tokens are never allowed

  struct Node {
    uint32_t subtree_end = 0;   // the next node that is not below this one
    uint32_t tokens_begin = 0;  // in `tokens`; those of the next node begin where these end
    uint8_t byte = 0;
    uint8_t depth = 0;  // 1 for the first byte of a token
  };
  struct Tree {
    std::vector<Node> nodes;  // and a last one that only ends the tokens
    std::vector<TokenId> tokens;
    size_t size() const { return nodes.size() - 1; }
  };

  // Empty strings are tokens without bytes.
  explicit TokenTrie(const std::vector<std::string>& token_bytes);

  const Tree& all() const { return all_; }
  // Without the plain tokens: those of whole characters that are plain (CodePointDfa::IsPlain).
  const Tree& rest() const { return rest_; }
  size_t mask_words() const { return mask_words_; }
  // The plain tokens of at most `length` code points.
  void CopyPlain(uint32_t length, uint64_t* mask) const;

  std::string_view bytes(TokenId id) const { return token_bytes_[static_cast<size_t>(id)]; }

 private:
  static constexpr uint32_t kLengths = 16;  // masks kept by length

  std::vector<std::string> token_bytes_;
  size_t mask_words_ = 0;
  Tree all_;
  Tree rest_;
  std::vector<std::vector<uint64_t>> plain_up_to_;        // [0..kLengths]; the last: of any length
  std::vector<std::pair<uint32_t, TokenId>> plain_long_;  // longer than kLengths, by length
};

}  // namespace deepinfer
