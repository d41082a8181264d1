// The tokens of a vocabulary as tries in preorder, in flat arrays: a walk is one loop that jumps
// over what a grammar refuses. Beside them what masks inside of texts are made of. Immutable,
// shared by all matchers of a vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer {

class TokenTrie {
 public:
  static constexpr size_t kTokenBytesMax = 255;  // longer tokens are never allowed
  // Tokens of more characters are rare and kept apart.
  static constexpr uint32_t kCommonLength = 32;

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

  size_t mask_words() const { return mask_words_; }
  std::string_view bytes(TokenId id) const { return token_bytes_[static_cast<size_t>(id)]; }

  const Tree& all() const { return all_; }
  // Plain tokens are those of whole characters that are plain (CodePointDfa::IsPlain).
  const Tree& not_plain() const { return not_plain_; }
  // Read from inside a JSON string, tokens close it or leave it open (or cannot stand there).
  // Those that close it, whole; and what follows the quote in them.
  const Tree& closing() const { return closing_; }
  const Tree& after_quote() const { return after_quote_; }
  uint32_t before_quote_max() const { return before_quote_max_; }  // characters
  // Those that leave it open, of up to kCommonLength characters; the same but for the plain ones;
  // and longer ones.
  const Tree& inside() const { return inside_tree_; }
  const Tree& inside_not_plain() const { return inside_not_plain_; }
  const Tree& inside_long() const { return inside_long_; }

  // Adds the plain tokens of at most `length` characters; those that leave a JSON string open with
  // at most so many (one begun counts); those that end with its closing quote.
  void AddPlain(uint32_t length, std::span<uint64_t> mask) const { plain_.AddTo(length, mask); }
  void AddInside(uint32_t length, std::span<uint64_t> mask) const { inside_.AddTo(length, mask); }
  void AddEnds(std::span<uint64_t> mask) const;

 private:
  // Tokens by their number of characters, as masks.
  class LengthMasks {
   public:
    void Create(size_t words);
    void Insert(TokenId id, uint32_t length);
    void Finish();
    void AddTo(uint32_t length, std::span<uint64_t> mask) const;

   private:
    static constexpr uint32_t kLengths = 16;
    std::vector<std::vector<uint64_t>> up_to_;  // [0..kLengths]; the last: of any length
    std::vector<std::pair<uint32_t, TokenId>> longer_;
  };
  void SortByQuote(const std::vector<TokenId>& ids);

  std::vector<std::string> token_bytes_;
  size_t mask_words_ = 0;
  Tree all_;
  Tree not_plain_;
  Tree closing_;
  Tree after_quote_;
  Tree inside_tree_;
  Tree inside_not_plain_;
  Tree inside_long_;
  LengthMasks plain_;
  LengthMasks inside_;
  std::vector<uint64_t> ends_;
  uint32_t before_quote_max_ = 0;
};

}  // namespace deepinfer
