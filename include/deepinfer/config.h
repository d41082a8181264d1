// Configuration of one engine: fields carry the names of vLLM's flags (docs/configuration.md).
// A plain value, parsed once in apps/ and handed to CreateEngine or LLM::Create.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer {

// Most drafts of one verification.
inline constexpr int kDraftTokensMax = 16;

// Speculative decoding; names and meanings of vLLM's --speculative-config.
struct SpeculativeConfig {
  // "none"; "ngram": continue as the same tokens were continued earlier in prompt and output;
  // "dspark": the draft layers of the checkpoint; "auto": dspark where there are draft layers.
  std::string method = "none";
  // Drafts of one verification, 0..kDraftTokensMax; 0: no speculation.
  int num_speculative_tokens = 5;
  // Longest and shortest run of tokens that ngram looks up, at most 64. 0: as the other one; both
  // 0: 5.
  int prompt_lookup_max = 0;
  int prompt_lookup_min = 0;
  // "shared": a draft is accepted when it is the very token that would have been sampled, so no
  // token changes; "rejection": rejection sampling, which keeps the distribution alone.
  std::string verify = "shared";
};

struct EngineConfig {
  // Sequences that run at once (row slots). 1..4096.
  int max_num_seqs = 128;
  // Query tokens of one step; prompts are cut into chunks to fit. 1..65536.
  int max_num_batched_tokens = 512;
  // Most prompt tokens of one sequence in one step; 0: only max_num_batched_tokens limits.
  int long_prefill_token_threshold = 0;
  // Cap on the summed key length that the prefill rows of one step attend to (their end positions
  // added up); bounds how long decodes wait for attention over long prompts. The first prefill
  // row of a step is exempt, so that any prompt advances. 0: no cap.
  int64_t prefill_max_sum_seqlen_k = 0;
  // Steps that a prompt may get no token because decode rows filled the step; then it goes first.
  int prefill_delay_steps_max = 4;
  // Longest prompt + completion. 0: the model's context, shortened to what the KV cache holds.
  int max_model_len = 0;
  // Tokens of a KV block: a multiple of 16, at most 256.
  int block_size = 16;
  // Blocks of the KV cache. 0: from kv_cache_memory_bytes.
  int64_t num_kv_blocks = 0;
  // Size of the KV cache. 0: half of the memory that is available after the model was loaded, but
  // never more than max_num_seqs sequences of full length need. The pool is reserved as address
  // space; a page costs memory once a block in it was used.
  int64_t kv_cache_memory_bytes = 0;
  // No new sequence is started while more than this share of the blocks is in use, nor when its
  // prompt would pass it; the rest is room for running sequences to grow.
  double kv_cache_watermark = 0.9;
  // Reuse the KV blocks of equal prompt prefixes.
  bool enable_prefix_caching = true;
  // Plan and launch step N+1 while step N runs.
  bool async_scheduling = true;
  // Requests and prompt tokens that may wait for a slot; a request beyond is refused (429).
  int64_t max_num_queued_reqs = 100'000;
  int64_t max_num_queued_tokens = 64'000'000;
  // Most top log-probabilities a request may ask for; -1: up to the vocabulary.
  int max_logprobs = 20;
  // Threads that compile the grammars of requests, 1..256.
  int so_builder_cpus = 1;
  SpeculativeConfig speculative;

  // Models with row state (windows, compressor tails) only.
  // Room for snapshots of that state. In the exact mode a cached prefix is used up to a point where
  // one was taken (ends of chunks, the last whole block of a prompt). 0: none, no prefix is reused.
  int64_t state_cache_memory_bytes = int64_t{256} << 20;
  // "exact": a cached prefix changes nothing. "compact": bounded replay as published: layers behind
  // the boundary run only the last yoco_prefill_keep_tokens of a prompt, and a cached prefix is
  // followed by one recomputed window; faster, and not the same numbers.
  std::string yoco_prefill_truncation_mode = "exact";
  int yoco_prefill_keep_tokens = 140;

  // "auto": the device's fast arithmetic; "float32": reference arithmetic everywhere.
  std::string dtype = "auto";
  // "auto" or "cpu".
  std::string device = "auto";
  // Compute threads; 0: one per available core.
  int threads = 0;
  // Limit of packed experts of a sparse model: one is packed when first chosen, and the least used
  // makes room. 0: by the model. Files whose experts have scale tensors (FP8, packed FP4) and that
  // hold more than 4 GiB besides Engram tables are packed as they are used; others when the model
  // loads, if they fit the memory (80 % of what is free). Beyond that the limit is 40 % of it.
  int64_t weight_cache_bytes = 0;
  // How rows of Engram tables are read: "io_uring", "pread", or "auto": the first that the system
  // allows.
  std::string engram_io = "auto";
  // Forces a CPU path: scalar, avx2, avx512, amx; empty: the best of this machine.
  std::string cpu_isa;
};

}  // namespace deepinfer
