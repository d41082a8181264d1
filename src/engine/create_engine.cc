#include "engine/create_engine.h"

#include <utility>

#include "base/format.h"
#include "base/topology.h"
#include "engine/engine_parts.h"
#include "engine/memory_plan.h"
#include "engine/spec/create_drafter.h"

namespace deepinfer {
namespace {

// The suffix must hold the window of every position that drafts may fall back to.
Status CheckReplay(const EngineConfig& config, const CacheLayout& layout, int draft_tokens_max) {
  if (config.yoco_prefill_truncation_mode != "compact" || !layout.has_state()) return {};
  if (layout.replay_window == 0) {
    return Invalid(
               "yoco_prefill_truncation_mode is compact; this model has no bounded replay: use "
               "exact")
        .WithParam("yoco_prefill_truncation_mode");
  }
  const int least = layout.replay_window + draft_tokens_max + 1;
  if (config.yoco_prefill_keep_tokens >= least) return {};
  return Invalid(Format("yoco_prefill_keep_tokens is {}; it must be at least {}: the window of {} "
                        "and the {} positions that a step may take back",
                        config.yoco_prefill_keep_tokens, least, layout.replay_window,
                        draft_tokens_max + 1))
      .WithParam("yoco_prefill_keep_tokens");
}

int64_t FreeBytes(const Backend& backend) {
  const int64_t of_device = backend.free_bytes();
  return of_device >= 0 ? of_device : ReadTopology().memory_available_bytes;
}

// Memory that experts which are packed as they are used may still take.
int64_t BytesToCome(const Backend& backend) {
  const WeightCacheStats cache = backend.weight_cache_stats();
  return std::min(cache.limit_bytes, cache.known_bytes) - cache.bytes;
}

}  // namespace

Result<std::unique_ptr<Engine>> CreateEngine(const EngineConfig& config, LoadedModel* model,
                                             const RunnerTestMode& test) {
  return CreateEngine(config, model->model.get(), model->backend.get(), model->tokenizer.get(),
                      test);
}

Result<std::unique_ptr<Engine>> CreateEngine(const EngineConfig& config, Model* model,
                                             Backend* backend, const Tokenizer* tokenizer,
                                             const RunnerTestMode& test) {
  DI_TRY(Engine::CheckConfig(config));
  const ModelInfo& info = model->info();
  DI_ASSIGN(const CacheLayout layout, LayoutInBlocks(model->cache_layout(), config.block_size));
  DI_ASSIGN(const MemoryPlan plan, PlanMemory(config, layout, info.context_max,
                                              FreeBytes(*backend) - BytesToCome(*backend)));
  DI_ASSIGN(DrafterChoice drafts, CreateDrafter(config.speculative, model));
  DI_TRY(CheckReplay(config, layout, drafts.draft_tokens_max));
  EngineParts parts;
  parts.limits = {.vocab = info.vocab,
                  .max_model_len = plan.max_model_len,
                  .max_num_seqs = config.max_num_seqs,
                  .block_size = config.block_size,
                  .num_kv_blocks = plan.num_blocks,
                  .kv_cache_bytes = plan.kv_bytes,
                  .max_logprobs = config.max_logprobs,
                  .embedding_size = model->embedding_size(),
                  .image_id = info.image_id};
  parts.scheduler = SchedulerConfigOf(config, parts.limits, info.eos_ids);
  parts.scheduler.draft_tokens_max = drafts.draft_tokens_max;
  const bool compact = layout.has_state() && config.yoco_prefill_truncation_mode == "compact";
  parts.scheduler.has_state = layout.has_state();
  if (compact) {
    parts.scheduler.replay_window = layout.replay_window;
    parts.scheduler.keep_tokens = config.yoco_prefill_keep_tokens;
  }
  parts.scheduler.state_snapshots = plan.state_snapshots;
  parts.tokenizer = tokenizer;
  DI_ASSIGN(parts.runner,
            ModelRunner::Create(
                model, backend,
                {.num_slots = config.max_num_seqs,
                 .max_num_batched_tokens = config.max_num_batched_tokens,
                 .max_model_len = plan.max_model_len,
                 .block_tokens = config.block_size,
                 .num_blocks = static_cast<int32_t>(plan.num_blocks),
                 .draft_tokens_max = drafts.draft_tokens_max,
                 .state_snapshots = parts.scheduler.state_snapshots,
                 .compact = compact,
                 .verify = config.speculative.verify == "rejection" ? VerifyMode::kRejection
                                                                    : VerifyMode::kShared,
                 .test = test},
                std::move(drafts.drafter)));
  return Engine::Create(config, std::move(parts));
}

}  // namespace deepinfer
