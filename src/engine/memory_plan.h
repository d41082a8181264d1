// How many KV blocks an engine gets and how long a sequence may become. A pure function.
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
};

// `layout` has the engine's block size; `available_bytes` is what the machine can still give after
// the model was loaded. Errors name the setting to change and a value that would work.
Result<MemoryPlan> PlanMemory(const EngineConfig& config, const CacheLayout& layout,
                              int context_max, int64_t available_bytes);

// The model's layout in blocks of config.block_size. Errors: a size the layout cannot have.
Result<CacheLayout> LayoutInBlocks(const CacheLayout& layout, int block_size);

}  // namespace deepinfer
