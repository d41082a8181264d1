// The seam of speculation: what proposes tokens that the next step of a row may verify. Siblings:
// NgramDrafter, ModelDrafter, ReplayDrafter (tests). Owned by the ModelRunner and called on its
// thread right after a step was sampled, so that the step after needs nothing from the host.
// A proposal is a guess: it changes how many tokens a step yields and never which.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cache_layout.h"
#include "deepinfer/config.h"
#include "deepinfer/request.h"

namespace deepinfer {

class RowSampler;

struct DraftTokens {
  int count = 0;
  std::array<TokenId, kDraftTokensMax> ids{};
};

// A sequence that goes on. `anchor` is the token sampled last; it stands at `position` and was not
// run yet. The drafts follow it.
struct DraftRow {
  int slot = 0;
  int32_t position = 0;
  TokenId anchor = 0;
  int32_t suffix_begin = 0;          // as in StepInput
  std::span<const TokenId> history;  // prompt and output up to the anchor; see NeedsHistory
  RowSampler* sampler = nullptr;     // of the row; left as it was found
  int drafts_max = 0;                // 1..kDraftTokensMax
  DraftTokens* drafts = nullptr;     // out
};

// Row slots of the cache, for drafters that keep state there.
struct DraftMemory {
  std::byte* cache_slots = nullptr;
  const CacheLayout* layout = nullptr;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Whether rows must come with their history.
  virtual bool NeedsHistory() const = 0;
  virtual void Propose(std::span<DraftRow> rows, const DraftMemory& memory) = 0;
};

}  // namespace deepinfer
