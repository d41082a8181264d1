// Where one output stands in its grammar: which tokens may follow, forward by a token, back by
// some. Owned by one request and used by one thread at a time; holds no lock while it works except
// that of the shared mask cache. A state without a continuation is reported, never waited in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "deepinfer/request.h"
#include "text/grammar/compiled_grammar.h"
#include "text/grammar/grammar_vocabulary.h"

namespace deepinfer {

class GrammarMatcher {
 public:
  // `vocabulary` may be null where only AcceptText is used. `rollback_max`: accepted tokens that
  // can be taken back.
  GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar,
                 std::shared_ptr<const GrammarVocabulary> vocabulary, int rollback_max = 64);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Sets bit id % 64 of word id / 64 for each token that may come next, clears the others, those
  // beyond the vocabulary too. `mask` has at least vocabulary().mask_words() words. A stop token is
  // set where the output is complete. False: no token may follow (only after a stop token, or when
  // the grammar led into a dead end, which ends the request).
  bool FillMask(std::span<uint64_t> mask);
  // Masks for a draft: row i (of mask_words()) is the mask after draft[0..i), row 0 the current
  // one. Stops after the row in which the next draft token is not allowed. Returns the number of
  // rows filled, at most draft.size() + 1. The state does not change.
  size_t FillDraftMasks(std::span<const TokenId> draft, std::span<uint64_t> masks);
  // One token, as FillMask would show it, without the mask.
  bool Allows(TokenId id);

  // Moves on. False, and no change, where the grammar does not allow the token.
  bool Accept(TokenId id);
  // Takes back the last `tokens` accepted tokens. False, and no change, beyond rollback_max or
  // the beginning.
  bool Rollback(int tokens);
  int accepted() const;  // tokens since the beginning

  // The output may end here.
  bool IsComplete() const;
  // A stop token was accepted.
  bool IsTerminated() const;
  // No byte can follow and the output is not complete.
  bool IsDead() const;

  // The bytes that every continuation has next, at most `bytes_max`: for jump-forward. Empty where
  // there is a choice or the output may end.
  std::string ForcedBytes(size_t bytes_max = 256);
  // The one token that the mask allows, or -1.
  TokenId ForcedToken();

  // Bytes rather than tokens: moves over the longest prefix of `text` that the grammar allows and
  // returns its length. Rollback counts the call as one token.
  size_t AcceptText(std::string_view text);

  // Why the automaton refused to go on although the grammar may allow it ("too many ways to read
  // the output"), or nullptr.
  const char* limit_reached() const;

  const CompiledGrammar& grammar() const;
  const GrammarVocabulary* vocabulary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
