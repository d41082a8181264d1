#include "engine/spec/replay_drafter.h"

#include <algorithm>

namespace deepinfer {

void ReplayDrafter::ProposeRow(DraftRow* row) const {
  const size_t length = row->history.size();
  const auto text = std::find_if(
      options_.texts.begin(), options_.texts.end(), [&](const std::vector<TokenId>& known) {
        return known.size() >= length &&
               std::equal(row->history.begin(), row->history.end(), known.begin());
      });
  const int limit = row->drafts_max;
  const int depth = options_.depth >= 0 ? options_.depth
                                        : static_cast<int>(length % static_cast<size_t>(limit + 1));
  int right = 0;
  if (text != options_.texts.end()) {
    right = std::min({depth, limit, static_cast<int>(text->size() - length)});
    std::copy_n(text->begin() + static_cast<ptrdiff_t>(length), right, row->drafts->ids.begin());
  }
  row->drafts->count = right;
  if (!options_.wrong_tail) return;
  for (int i = right; i < limit; ++i) {
    const size_t at = length + static_cast<size_t>(i);
    const TokenId truth = text != options_.texts.end() && at < text->size() ? (*text)[at] : 0;
    row->drafts->ids[static_cast<size_t>(i)] = (truth + 1) % options_.vocab;
    row->drafts->count = i + 1;
  }
}

void ReplayDrafter::Propose(std::span<DraftRow> rows, const DraftMemory& /*memory*/) {
  for (DraftRow& row : rows) ProposeRow(&row);
}

}  // namespace deepinfer
