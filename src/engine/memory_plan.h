// How many KV blocks and snapshots of row state an engine gets and how long a sequence may become.
// Pure functions.
#pragma once

#include <cstdint>

#include "backend/cache_layout.h"
#include "deepinfer/config.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct MemoryPlan {
  int64_t num_blocks = 0;
  int max_model_len = 0;
  int64_t kv_bytes = 0;
  int32_t state_snapshots = 0;  // exact mode of models with row state
  int64_t state_bytes = 0;      // of the row slots and the snapshots of them
};

// `layout` has the engine's block size; `available_bytes` is what the machine can still give after
// the model was loaded; row state comes off it before the KV cache takes its part. Errors name the
// setting to change and a value that would work.
Result<MemoryPlan> PlanMemory(const EngineConfig& config, const CacheLayout& layout,
                              int context_max, int64_t available_bytes);

// A size that some layout can have.
Status CheckBlockSize(int block_size);

// The model's layout in blocks of config.block_size. Errors: a size the layout cannot have.
Result<CacheLayout> LayoutInBlocks(const CacheLayout& layout, int block_size);

}  // namespace deepinfer
