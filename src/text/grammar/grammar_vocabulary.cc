#include "text/grammar/grammar_vocabulary.h"

#include <algorithm>

#include "base/format.h"
#include "text/added_tokens.h"
#include "text/grammar/mask_cache.h"
#include "text/grammar/token_trie.h"
#include "text/tokenizer.h"

namespace deepinfer {

GrammarVocabulary::GrammarVocabulary() = default;
GrammarVocabulary::~GrammarVocabulary() = default;

Result<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::Create(
    const Tokenizer& tokenizer, const Options& options) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) bytes[static_cast<size_t>(id)] = tokenizer.Bytes(id);
  }
  for (const AddedToken& added : tokenizer.spec().added) {
    if (IsControlToken(added) && added.id >= 0 && added.id < tokenizer.vocab_size()) {
      bytes[static_cast<size_t>(added.id)].clear();
    }
  }
  for (const TokenId id : options.text_ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return Invalid(
          Format("token {} is outside the vocabulary 0..{}", id, tokenizer.vocab_size() - 1));
    }
    bytes[static_cast<size_t>(id)] = tokenizer.Bytes(id);
  }
  return Create(bytes, options);
}

Result<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::Create(
    const std::vector<std::string>& token_bytes, const Options& options) {
  std::shared_ptr<GrammarVocabulary> vocabulary(new GrammarVocabulary());
  vocabulary->size_ = static_cast<int>(token_bytes.size());
  vocabulary->mask_words_ =
      (std::max(token_bytes.size(), static_cast<size_t>(std::max(options.mask_width, 0))) + 63) /
      64;
  std::vector<std::string> bytes = token_bytes;
  for (const TokenId id : options.stop_ids) {
    if (id < 0 || id >= vocabulary->size_) {
      return Invalid(
          Format("stop token {} is outside the vocabulary 0..{}", id, vocabulary->size_ - 1));
    }
    bytes[static_cast<size_t>(id)].clear();  // never part of the text
  }
  vocabulary->stop_ids_ = options.stop_ids;
  vocabulary->trie_ = std::make_unique<const TokenTrie>(bytes);
  vocabulary->cache_ = std::make_unique<MaskCache>(options.mask_cache_bytes_max);
  return std::shared_ptr<const GrammarVocabulary>(std::move(vocabulary));
}

bool GrammarVocabulary::IsStop(TokenId id) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
}

}  // namespace deepinfer
