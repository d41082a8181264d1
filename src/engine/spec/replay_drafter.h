// For tests: proposes the continuation of texts it was told, right for some depth and wrong behind
// it, so that every number of accepted drafts occurs. Runner thread.
#pragma once

#include <vector>

#include "engine/spec/drafter.h"

namespace deepinfer {

struct ReplayOptions {
  // Whole sequences, prompt and output. A row goes on with the first of which its history is a
  // prefix; one that knows nothing gets wrong drafts.
  std::vector<std::vector<TokenId>> texts;
  // Right drafts of a proposal; -1: 0, 1, ... kDraftTokensMax in turn, by position.
  int depth = -1;
  // Drafts behind the right ones: wrong ones up to the row's limit, or none.
  bool wrong_tail = true;
  int vocab = 1;
};

class ReplayDrafter final : public Drafter {
 public:
  explicit ReplayDrafter(ReplayOptions options) : options_(std::move(options)) {}
  bool NeedsHistory() const override { return true; }
  void Propose(std::span<DraftRow> rows, const DraftMemory& memory) override;

 private:
  void ProposeRow(DraftRow* row) const;

  const ReplayOptions options_;
};

}  // namespace deepinfer
