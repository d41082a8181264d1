#include "engine/create_engine.h"

#include <utility>

#include "base/topology.h"
#include "engine/engine_parts.h"
#include "engine/memory_plan.h"
#include "engine/spec/create_drafter.h"

namespace deepinfer {

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
  DI_ASSIGN(const MemoryPlan plan,
            PlanMemory(config, layout, info.context_max, ReadTopology().memory_available_bytes));
  DI_ASSIGN(DrafterChoice drafts, CreateDrafter(config.speculative, model));
  EngineParts parts;
  parts.limits = {.vocab = info.vocab,
                  .max_model_len = plan.max_model_len,
                  .max_num_seqs = config.max_num_seqs,
                  .block_size = config.block_size,
                  .num_kv_blocks = plan.num_blocks,
                  .kv_cache_bytes = plan.kv_bytes,
                  .max_logprobs = config.max_logprobs};
  parts.scheduler = SchedulerConfigOf(config, parts.limits, info.eos_ids);
  parts.scheduler.draft_tokens_max = drafts.draft_tokens_max;
  // Blocks alone do not bring back what a row keeps in its slot: such models compute every prompt.
  if (layout.has_state()) parts.scheduler.prefix_caching = false;
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
                 .verify = config.speculative.verify == "rejection" ? VerifyMode::kRejection
                                                                    : VerifyMode::kShared,
                 .test = test},
                std::move(drafts.drafter)));
  return Engine::Create(config, std::move(parts));
}

}  // namespace deepinfer
