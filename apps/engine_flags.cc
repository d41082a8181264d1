#include "apps/engine_flags.h"

namespace deepinfer {

void AddEngineFlags(CommandLine* line, EngineConfig* config) {
  line->Group("Engine");
  line->AddChoice("--dtype", {"auto", "float32"}, &config->dtype,
                  "arithmetic; float32 is the reference everywhere");
  line->AddChoice("--device", {"auto", "cpu"}, &config->device, "where the model runs");
  line->AddAuto("-c,--max-model-len", &config->max_model_len,
                "longest prompt and completion together; auto fits the memory");
  line->Add("--max-num-seqs", &config->max_num_seqs, "sequences that run at once");
  line->Add("--max-num-batched-tokens", &config->max_num_batched_tokens,
            "tokens of one step; prompts are cut into chunks to fit");
  line->Add("--long-prefill-token-threshold", &config->long_prefill_token_threshold,
            "most prompt tokens of one sequence in a step; 0: no own limit");
  line->Add("--prefill-max-sum-seqlen-k", &config->prefill_max_sum_seqlen_k,
            "cap on the summed key lengths of a step's prefill rows; 0: none");
  line->Add("--prefill-delay-steps-max", &config->prefill_delay_steps_max,
            "steps a prompt may be passed over before it goes first");
  line->Add("--block-size", &config->block_size, "tokens of a KV block, a multiple of 16");
  line->Add("--num-gpu-blocks-override,--num-kv-blocks", &config->num_kv_blocks,
            "blocks of the KV cache; 0: from --kv-cache-memory-bytes");
  line->AddBytes("--kv-cache-memory-bytes", &config->kv_cache_memory_bytes,
                 "size of the KV cache, for example 4GiB; 0: from the memory that is free");
  line->Add("--kv-cache-watermark", &config->kv_cache_watermark,
            "share of blocks in use above which no new sequence starts");
  line->AddSwitch("--enable-prefix-caching", &config->enable_prefix_caching,
                  "reuse the KV blocks of equal prompt prefixes");
  line->AddSwitch("--async-scheduling", &config->async_scheduling,
                  "plan the next step while one runs");
  line->AlsoFromEnvironment("async-scheduling", "DEEPINFER_ZERO_OVERHEAD_SCHEDULING");
  line->Add("--max-num-queued-reqs", &config->max_num_queued_reqs,
            "requests that may wait; more are refused with 429");
  line->Add("--max-num-queued-tokens", &config->max_num_queued_tokens,
            "prompt tokens that may wait; more are refused with 429");
  line->Add("--max-logprobs", &config->max_logprobs,
            "most top log-probabilities of a request; -1: the vocabulary");
  line->Add("-t,--threads", &config->threads, "compute threads; 0: one per core");
  line->AddChoice("--cpu-isa", {"", "scalar", "avx2", "avx512", "amx"}, &config->cpu_isa,
                  "forces the CPU kernels of an instruction set");
}

}  // namespace deepinfer
