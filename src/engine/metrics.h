// Counters of one engine. Written by the engine thread (and by Submit for rejections), read by
// any thread: relaxed atomics, so a snapshot is never torn within one value.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer {

class Histogram {
 public:
  // `name` is vLLM's, without the prefix. bounds ascend.
  Histogram(std::string name, std::string help, std::vector<double> bounds);
  void Record(double value);
  HistogramSnapshot Snapshot() const;

 private:
  const std::string name_;
  const std::string help_;
  const std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

struct EngineMetrics {
  explicit EngineMetrics(int max_model_len);

  using Counter = std::atomic<int64_t>;
  Counter running{0};
  Counter waiting{0};   // requests before their first step: what the queue limits count
  Counter requeued{0};  // samples that wait and belong to a request that was started
  Counter waiting_tokens{0};
  Counter kv_blocks_total{0};
  Counter kv_blocks_used{0};
  Counter kv_blocks_cached{0};
  Counter steps{0};
  Counter progress_us{0};  // last finished step, or arrival of work at an idle engine
  Counter prefix_cache_queries{0};
  Counter prefix_cache_hits{0};
  Counter preemptions{0};
  Counter prompt_tokens{0};
  Counter generation_tokens{0};
  Counter requests_stopped{0};
  Counter requests_length{0};
  Counter requests_cancelled{0};
  Counter requests_failed{0};
  Counter corrupted_requests{0};
  Counter rejected_queue_full{0};
  Counter rejected_queue_tokens{0};
  Counter spec_drafts{0};
  Counter spec_draft_tokens{0};
  Counter spec_accepted_tokens{0};
  std::array<Counter, kDraftTokensMax> spec_accepted_per_position{};

  Histogram time_to_first_token;
  Histogram inter_token_latency;
  Histogram time_per_output_token;
  Histogram e2e_latency;
  Histogram queue_time;
  Histogram prefill_time;
  Histogram decode_time;
  Histogram inference_time;
  Histogram prompt_length;
  Histogram generation_length;
  Histogram generation_length_max;
  Histogram params_n;
  Histogram params_max_tokens;
  Histogram prefill_computed;
  Histogram num_preemptions;
  Histogram iteration_tokens;

  EngineStats Snapshot(int64_t now_us) const;
};

// Adds without the cost of a locked instruction; only for counters that one thread writes.
inline void AddRelaxed(std::atomic<int64_t>* counter, int64_t amount) {
  counter->store(counter->load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace deepinfer
