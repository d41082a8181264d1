#include "engine/spec/ngram_drafter.h"

#include <algorithm>

namespace deepinfer {
namespace {

// Tokens before `end` and before the end of history that are equal, at most `most`.
int MatchLength(std::span<const TokenId> history, size_t end, int most) {
  int length = 0;
  while (length < most && static_cast<size_t>(length) < end &&
         history[end - 1 - static_cast<size_t>(length)] ==
             history[history.size() - 1 - static_cast<size_t>(length)]) {
    ++length;
  }
  return length;
}

}  // namespace

void LookUpContinuation(std::span<const TokenId> history, int lookup_min, int lookup_max, int count,
                        DraftTokens* drafts) {
  drafts->count = 0;
  if (history.empty()) return;
  const TokenId last = history.back();
  int longest = lookup_min - 1;
  size_t from = 0;
  for (size_t end = history.size() - 1; end > 0 && longest < lookup_max; --end) {
    if (history[end - 1] != last) continue;
    const int length = MatchLength(history, end, lookup_max);
    if (length <= longest) continue;
    longest = length;
    from = end;
  }
  if (from == 0) return;
  const size_t period = history.size() - from;
  for (int i = 0; i < count; ++i) {
    drafts->ids[static_cast<size_t>(i)] = history[from + static_cast<size_t>(i) % period];
  }
  drafts->count = count;
}

void NgramDrafter::Propose(std::span<DraftRow> rows, const DraftMemory& /*memory*/) {
  for (DraftRow& row : rows) {
    LookUpContinuation(row.history, min_, max_, row.drafts_max, row.drafts);
  }
}

}  // namespace deepinfer
