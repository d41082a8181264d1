#include "engine/memory_plan.h"

#include <algorithm>

#include "base/format.h"

namespace deepinfer {
namespace {

constexpr int kBlockSizeStep = 16;
constexpr int kBlockSizeMax = 256;
// Block ids are 32 bits and the accounting of a block costs about 150 bytes.
constexpr int64_t kBlocksMax = int64_t{1} << 24;
// Without num_kv_blocks or kv_cache_memory_bytes the cache takes this part of what is available.
constexpr int64_t kAvailableShare = 2;
constexpr int64_t kSnapshotsMax = 1 << 20;

// The compact mode replays instead of bringing state back, and without a prefix cache nothing is.
int32_t SnapshotsOf(const EngineConfig& config, int64_t slot_bytes) {
  if (slot_bytes == 0 || !config.enable_prefix_caching ||
      config.yoco_prefill_truncation_mode == "compact") {
    return 0;
  }
  return static_cast<int32_t>(
      std::min(config.state_cache_memory_bytes / slot_bytes, kSnapshotsMax));
}

}  // namespace

Status CheckBlockSize(int block_size) {
  if (block_size >= kBlockSizeStep && block_size <= kBlockSizeMax &&
      block_size % kBlockSizeStep == 0) {
    return {};
  }
  return Invalid(Format("block_size is {}; it must be a multiple of {} and at most {}", block_size,
                        kBlockSizeStep, kBlockSizeMax))
      .WithParam("block_size");
}

Result<CacheLayout> LayoutInBlocks(const CacheLayout& layout, int block_size) {
  DI_TRY(CheckBlockSize(block_size));
  CacheLayout result = layout;
  result.block_tokens = block_size;
  for (const HistoryGroup& group : layout.history) {
    if (block_size % group.ratio != 0) {
      return Invalid(Format("block_size {} is not a multiple of {}, the compression ratio of this "
                            "model's cache group '{}'",
                            block_size, group.ratio, group.name))
          .WithParam("block_size");
    }
  }
  return result;
}

Result<MemoryPlan> PlanMemory(const EngineConfig& config, const CacheLayout& layout,
                              int context_max, int64_t available_bytes) {
  if (config.max_model_len < 0 || config.max_model_len > context_max) {
    return Invalid(Format("max_model_len is {}; this model was made for 1 to {} positions "
                          "(0: choose automatically)",
                          config.max_model_len, context_max))
        .WithParam("max_model_len");
  }
  const int64_t bt = layout.block_tokens;
  const int64_t block_bytes = layout.block_bytes();
  const auto blocks_for = [bt](int64_t tokens) { return (tokens + bt - 1) / bt + 1; };
  const int64_t wanted = config.max_model_len > 0 ? config.max_model_len : context_max;
  MemoryPlan plan;
  plan.state_snapshots = SnapshotsOf(config, layout.slot_bytes());
  plan.state_bytes = (config.max_num_seqs + plan.state_snapshots) * layout.slot_bytes();
  int64_t blocks = 0;
  if (config.num_kv_blocks != 0) {
    blocks = config.num_kv_blocks;
  } else if (config.kv_cache_memory_bytes != 0) {
    blocks = config.kv_cache_memory_bytes / block_bytes;
  } else {
    blocks = std::min(
        blocks_for(wanted) * config.max_num_seqs,
        std::max<int64_t>(0, available_bytes - plan.state_bytes) / kAvailableShare / block_bytes);
  }
  blocks = std::min(blocks, kBlocksMax);
  if (blocks < 2) {
    const std::string state =
        plan.state_bytes == 0
            ? ""
            : Format(", lower state_cache_memory_bytes or max_num_seqs (row state takes {} bytes)",
                     plan.state_bytes);
    return Exhausted(Format("the KV cache would hold {} blocks of {} tokens and {} bytes; it needs "
                            "2 at least: set num_kv_blocks or kv_cache_memory_bytes{}, or free "
                            "memory",
                            blocks, bt, block_bytes, state))
        .WithParam("kv_cache_memory_bytes");
  }
  const int64_t longest = (blocks - 1) * bt;
  if (config.max_model_len > longest) {
    return Invalid(Format("one sequence of max_model_len {} needs {} KV blocks; the cache has {}, "
                          "enough for {}: lower max_model_len or enlarge the cache",
                          config.max_model_len, blocks_for(wanted), blocks, longest))
        .WithParam("max_model_len");
  }
  plan.num_blocks = blocks;
  plan.max_model_len = static_cast<int>(std::min(wanted, longest));
  plan.kv_bytes = blocks * block_bytes;
  return plan;
}

}  // namespace deepinfer
