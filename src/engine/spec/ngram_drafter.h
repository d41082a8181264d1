// Prompt lookup: the last tokens of a sequence stood somewhere before; what followed there is
// proposed again. Needs no model. Runner thread.
#pragma once

#include "engine/spec/drafter.h"

namespace deepinfer {

// The proposal for `history`: the longest run of lookup_min..lookup_max tokens at its end that also
// stands earlier, the latest such place, and what follows there (going round when that reaches the
// end of history). At most `count` tokens; none when nothing matches. O(history).
void LookUpContinuation(std::span<const TokenId> history, int lookup_min, int lookup_max, int count,
                        DraftTokens* drafts);

class NgramDrafter final : public Drafter {
 public:
  // 1 <= lookup_min <= lookup_max.
  NgramDrafter(int lookup_min, int lookup_max) : min_(lookup_min), max_(lookup_max) {}
  bool NeedsHistory() const override { return true; }
  void Propose(std::span<DraftRow> rows, const DraftMemory& memory) override;

 private:
  const int min_;
  const int max_;
};

}  // namespace deepinfer
