// The tokens of one tokenizer as bytes, in the order of a trie, with what masks need precomputed;
// and the cache of masks that all grammars of this tokenizer share. One per tokenizer, shared by
// its matchers; everything but the cache is immutable, and every method is safe on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

class Tokenizer;
class MaskCache;
class TokenTrie;

class GrammarVocabulary {
 public:
  struct Options {
    std::vector<TokenId> stop_ids;  // end the output; allowed where it is complete
    // Control tokens that grammars may spell nevertheless (the marks of tool calls).
    std::vector<TokenId> text_ids;
    size_t mask_cache_bytes_max = size_t{256} << 20;
    int mask_width = 0;  // ids of the model's logits; 0: the tokenizer's vocabulary
  };
  // Control tokens (special, or markup such as <think>) that are in neither list are never allowed.
  // Errors name an id out of range.
  static Result<std::shared_ptr<const GrammarVocabulary>> Create(const Tokenizer& tokenizer,
                                                                 const Options& options);
  // The same from bare bytes: an empty string is a token that is never allowed.
  static Result<std::shared_ptr<const GrammarVocabulary>> Create(
      const std::vector<std::string>& token_bytes, const Options& options);
  ~GrammarVocabulary();

  int size() const { return size_; }
  size_t mask_words() const { return mask_words_; }
  std::span<const TokenId> stop_ids() const { return stop_ids_; }
  bool IsStop(TokenId id) const;
  const TokenTrie& trie() const { return *trie_; }
  MaskCache& cache() const { return *cache_; }

 private:
  GrammarVocabulary();
  int size_ = 0;
  size_t mask_words_ = 0;
  std::vector<TokenId> stop_ids_;
  std::unique_ptr<const TokenTrie> trie_;
  std::unique_ptr<MaskCache> cache_;
};

}  // namespace deepinfer
