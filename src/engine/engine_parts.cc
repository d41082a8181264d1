#include "engine/engine_parts.h"

#include <algorithm>
#include <utility>

#include "engine/scripted_runner.h"

namespace deepinfer {

SchedulerConfig SchedulerConfigOf(const EngineConfig& config, const EngineLimits& limits,
                                  std::vector<TokenId> eos_ids) {
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = config.max_num_seqs;
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens;
  scheduler.long_prefill_token_threshold = config.long_prefill_token_threshold;
  scheduler.prefill_max_sum_seqlen_k = config.prefill_max_sum_seqlen_k;
  scheduler.prefill_delay_steps_max = config.prefill_delay_steps_max;
  scheduler.max_model_len = limits.max_model_len;
  scheduler.block_tokens = limits.block_size;
  scheduler.num_blocks = static_cast<int32_t>(limits.num_kv_blocks);
  scheduler.watermark = config.kv_cache_watermark;
  scheduler.prefix_caching = config.enable_prefix_caching;
  scheduler.eos_ids = std::move(eos_ids);
  return scheduler;
}

EngineParts ScriptedParts(const EngineConfig& config, ScriptedRunnerOptions options,
                          const Tokenizer* tokenizer, std::vector<TokenId> eos_ids) {
  EngineParts parts;
  const int max_model_len = config.max_model_len > 0 ? config.max_model_len : 4096;
  const int64_t blocks = config.num_kv_blocks > 0 ? config.num_kv_blocks
                                                  : int64_t{config.max_num_seqs} *
                                                        (max_model_len / config.block_size + 2);
  parts.limits = {.vocab = options.vocab,
                  .max_model_len = max_model_len,
                  .max_num_seqs = config.max_num_seqs,
                  .block_size = config.block_size,
                  .num_kv_blocks = blocks,
                  .kv_cache_bytes = 0,
                  .max_logprobs = config.max_logprobs};
  parts.scheduler = SchedulerConfigOf(config, parts.limits, std::move(eos_ids));
  parts.scheduler.draft_tokens_max = options.draft_tokens_max;
  options.num_slots = config.max_num_seqs;
  options.num_blocks = static_cast<int32_t>(blocks);
  options.block_tokens = config.block_size;
  parts.runner = std::make_unique<ScriptedRunner>(std::move(options));
  parts.tokenizer = tokenizer;
  return parts;
}

}  // namespace deepinfer
