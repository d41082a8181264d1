// One replica: takes requests, schedules them in steps on one model, hands tokens to sinks.
// Every method may be called from any thread. The engine owns its loop thread and its runner; the
// model it was created with, and the sinks of unfinished requests, must outlive it.
// Created by CreateEngine (src/engine/create_engine.h) or inside LLM (llm.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deepinfer/config.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// A cumulative histogram snapshot; counts[i] holds values <= bounds[i] and > bounds[i-1], the last
// count those above every bound.
struct HistogramSnapshot {
  std::string name;  // vLLM's metric name without the prefix: "time_to_first_token_seconds"
  std::string help;
  std::vector<double> bounds;
  std::vector<uint64_t> counts;  // bounds.size() + 1
  double sum = 0;
  uint64_t count = 0;
};

// What the model has fetched and packed of its files. Totals since it was loaded, but for bytes.
struct WeightStats {
  int64_t packed_bytes = 0;   // now: weights packed at load, and experts in the cache
  int64_t touched_bytes = 0;  // packed size of weights that were ever used, and Engram rows read
  // Experts that are packed as they are used; no limit: all were packed at load.
  int64_t cache_limit_bytes = 0;
  int64_t cache_bytes = 0;    // now
  int64_t cache_lookups = 0;  // matrices that products needed
  int64_t cache_hits = 0;     // of these, packed already
  int64_t cache_streams = 0;  // of the lookups, those packed for one product and forgotten
  int64_t cache_loads = 0;
  int64_t cache_evictions = 0;
  int64_t cache_load_us = 0;  // time that products waited for packing
  // Rows of Engram tables.
  int64_t engram_tables = 0;
  int64_t engram_rows = 0;   // gathered, repeated ids of a step counted once
  int64_t engram_hits = 0;   // of these, in memory when they were asked for
  int64_t engram_reads = 0;  // rows read from files
  int64_t engram_read_bytes = 0;
  int64_t engram_errors = 0;    // rows that could not be read
  int64_t engram_stall_us = 0;  // time that layers waited for rows
};

// Totals since the engine was created unless the name says otherwise.
struct EngineStats {
  // Now.
  int64_t running = 0;         // sequences that hold a slot
  int64_t waiting = 0;         // requests before their first step, preempted or later samples
  int64_t waiting_tokens = 0;  // prompt tokens of the requests before their first step
  int64_t kv_blocks_total = 0;
  int64_t kv_blocks_used = 0;    // held by sequences or steps in flight
  int64_t kv_blocks_cached = 0;  // held by the prefix cache alone
  double kv_usage = 0;           // used / total
  int64_t steps = 0;
  // Time since the last finished step, or since work arrived at an idle engine. Work that waits
  // while this grows is a stuck engine.
  int64_t last_step_age_us = 0;

  int64_t prefix_cache_queries = 0;  // prompt tokens looked up
  int64_t prefix_cache_hits = 0;     // prompt tokens found
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;  // computed or found, once per request
  int64_t generation_tokens = 0;
  int64_t requests_stopped = 0;  // finished samples by reason
  int64_t requests_length = 0;
  int64_t requests_cancelled = 0;
  int64_t requests_failed = 0;
  int64_t corrupted_requests = 0;     // of the failed: NaN logits or a bad id
  int64_t rejected_queue_full = 0;    // max_num_queued_reqs
  int64_t rejected_queue_tokens = 0;  // max_num_queued_tokens
  // Speculation: rows that verified drafts, drafts they verified, drafts accepted, and accepted by
  // position in the draft.
  int64_t spec_drafts = 0;
  int64_t spec_draft_tokens = 0;
  int64_t spec_accepted_tokens = 0;
  std::vector<int64_t> spec_accepted_per_position;
  std::vector<HistogramSnapshot> histograms;
  WeightStats weights;
};

// Limits that follow from the model, the configuration and the memory.
struct EngineLimits {
  int vocab = 0;
  int max_model_len = 0;
  int max_num_seqs = 0;
  int block_size = 0;
  int64_t num_kv_blocks = 0;
  int64_t kv_cache_bytes = 0;  // reserved; touched only when used
  int max_logprobs = 0;
  int embedding_size = 0;  // values of an embedding; 0: the model gives none
  TokenId image_id = -1;  // stands for images: not allowed in a prompt without them; -1: none
};

struct EngineParts;  // src/engine/engine_parts.h

class Engine {
 public:
  // Ranges of the fields alone, without a model. Errors name the field.
  static Status CheckConfig(const EngineConfig& config);
  static Result<std::unique_ptr<Engine>> Create(const EngineConfig& config, EngineParts parts);
  // Ends what is unfinished as kCancelled, then returns.
  ~Engine();

  // Queues a request. Errors, at once and before any output: kInvalid with the parameter at fault;
  // kExhausted naming the queue limit and its value; kUnavailable while draining.
  // Unseeded requests get a seed here. After success the sink receives deltas until one has `last`.
  Result<RequestId> Submit(Request request, OutputSink* sink);
  // Ends a request as kCancelled; its blocks are free within one step. Unknown or finished: no-op.
  void Cancel(RequestId id);
  // Refuses new requests and waits until all are finished. What still runs after `timeout_ms`
  // (negative: no limit) is cancelled, and the status says how many.
  Status Drain(int64_t timeout_ms);

  EngineStats Stats() const;
  const EngineLimits& limits() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
