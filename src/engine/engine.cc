#include "deepinfer/engine.h"

#include <atomic>
#include <new>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "engine/engine_loop.h"
#include "engine/engine_parts.h"
#include "text/grammar/grammar_compiler.h"
#include "engine/memory_plan.h"
#include "engine/sampling_check.h"
#include "engine/spec/create_drafter.h"

namespace deepinfer {
namespace {

// Messages beyond the queued requests: cancellations of running ones.
constexpr size_t kInboxSlack = 65536;
constexpr int kThreadsMax = 1024;

}  // namespace

Status Engine::CheckConfig(const EngineConfig& config) {
  const auto range = [](const char* name, int64_t value, int64_t low, int64_t high) -> Status {
    if (value >= low && value <= high) return {};
    return Invalid(Format("{} is {}; it must be between {} and {}", name, value, low, high))
        .WithParam(name);
  };
  DI_TRY(range("max_num_seqs", config.max_num_seqs, 1, 4096));
  DI_TRY(range("max_num_batched_tokens", config.max_num_batched_tokens, 1, 65536));
  DI_TRY(range("long_prefill_token_threshold", config.long_prefill_token_threshold, 0, 65536));
  DI_TRY(range("max_model_len", config.max_model_len, 0, int64_t{1} << 30));
  DI_TRY(CheckBlockSize(config.block_size));
  DI_TRY(range("threads", config.threads, 0, kThreadsMax));
  DI_TRY(range("prefill_max_sum_seqlen_k", config.prefill_max_sum_seqlen_k, 0, int64_t{1} << 40));
  DI_TRY(range("prefill_delay_steps_max", config.prefill_delay_steps_max, 0, 1'000'000));
  DI_TRY(range("max_num_queued_reqs", config.max_num_queued_reqs, 1, 10'000'000));
  DI_TRY(range("max_num_queued_tokens", config.max_num_queued_tokens, 1, int64_t{1} << 40));
  DI_TRY(range("so_builder_cpus", config.so_builder_cpus, 1, 256));
  DI_TRY(range("max_logprobs", config.max_logprobs, -1, 1'000'000));
  DI_TRY(range("num_kv_blocks", config.num_kv_blocks, 0, int64_t{1} << 24));
  DI_TRY(range("kv_cache_memory_bytes", config.kv_cache_memory_bytes, 0, int64_t{1} << 50));
  DI_TRY(range("weight_cache_bytes", config.weight_cache_bytes, 0, int64_t{1} << 50));
  if (!(config.kv_cache_watermark > 0.0 && config.kv_cache_watermark <= 1.0)) {
    return Invalid(Format("kv_cache_watermark is {}; it must be above 0 and at most 1",
                          config.kv_cache_watermark))
        .WithParam("kv_cache_watermark");
  }
  DI_TRY(range("state_cache_memory_bytes", config.state_cache_memory_bytes, 0, int64_t{1} << 50));
  DI_TRY(range("yoco_prefill_keep_tokens", config.yoco_prefill_keep_tokens, 1, 1 << 20));
  if (config.yoco_prefill_truncation_mode != "exact" &&
      config.yoco_prefill_truncation_mode != "compact") {
    return Invalid(Format("yoco_prefill_truncation_mode is '{}'; it must be exact or compact",
                          config.yoco_prefill_truncation_mode))
        .WithParam("yoco_prefill_truncation_mode");
  }
  return CheckSpeculative(config.speculative);
}

struct Engine::Impl {
  Impl(const EngineConfig& engine_config, EngineParts parts)
      : config(engine_config),
        limits(parts.limits),
        scheduler_config(parts.scheduler),
        tokenizer(parts.tokenizer),
        clock(parts.clock == nullptr ? &real_clock : parts.clock),
        metrics(parts.limits.max_model_len),
        runner(parts.runner.get()),
        loop(parts.scheduler, config.async_scheduling,
             static_cast<size_t>(config.max_num_queued_reqs) + kInboxSlack, std::move(parts.runner),
             tokenizer, clock, &metrics),
        grammars(tokenizer,
                 {.threads = engine_config.so_builder_cpus,
                  .vocab = limits.vocab,
                  .eos_ids = scheduler_config.eos_ids},
                 clock) {
    std::random_device device;
    seed_secret = (uint64_t{device()} << 32) | device();
    metrics.progress_us = clock->NowUs();
  }

  uint64_t DrawSeed(RequestId id) const { return HashBytes64(&id, sizeof id, seed_secret); }

  Status Reserve(int64_t prompt_tokens);
  void Release(int64_t prompt_tokens);
  Status OrderGrammar(RequestState* state);
  void Run();

  const EngineConfig config;
  const EngineLimits limits;
  const SchedulerConfig scheduler_config;
  const Tokenizer* const tokenizer;
  const RealClock real_clock;
  const Clock* const clock;
  EngineMetrics metrics;
  const StepRunner* const runner;  // the loop's
  EngineLoop loop;
  uint64_t seed_secret = 0;
  std::atomic<RequestId> next_id{1};
  std::atomic<bool> accepting{true};
  std::thread thread;
  GrammarCompiler grammars;  // its threads post to the loop
};

// Counts the request towards the queue limits, or says which of them is reached.
Status Engine::Impl::Reserve(int64_t prompt_tokens) {
  const int64_t waiting = metrics.waiting.fetch_add(1, std::memory_order_relaxed);
  if (waiting >= config.max_num_queued_reqs) {
    metrics.waiting.fetch_sub(1, std::memory_order_relaxed);
    metrics.rejected_queue_full.fetch_add(1, std::memory_order_relaxed);
    return Exhausted(Format("{} requests are waiting and max_num_queued_reqs is {}; try again "
                            "later",
                            waiting, config.max_num_queued_reqs))
        .WithParam("max_num_queued_reqs");
  }
  const int64_t tokens = metrics.waiting_tokens.fetch_add(prompt_tokens, std::memory_order_relaxed);
  if (tokens + prompt_tokens > config.max_num_queued_tokens) {
    metrics.waiting_tokens.fetch_sub(prompt_tokens, std::memory_order_relaxed);
    metrics.waiting.fetch_sub(1, std::memory_order_relaxed);
    metrics.rejected_queue_tokens.fetch_add(1, std::memory_order_relaxed);
    return Exhausted(Format("{} prompt tokens are waiting, this request has {} and "
                            "max_num_queued_tokens is {}; try again later",
                            tokens, prompt_tokens, config.max_num_queued_tokens))
        .WithParam("max_num_queued_tokens");
  }
  if (waiting == 0 && metrics.running.load(std::memory_order_relaxed) == 0) {
    metrics.progress_us.store(clock->NowUs(), std::memory_order_relaxed);
  }
  return {};
}

void Engine::Impl::Release(int64_t prompt_tokens) {
  metrics.waiting.fetch_sub(1, std::memory_order_relaxed);
  metrics.waiting_tokens.fetch_sub(prompt_tokens, std::memory_order_relaxed);
}

// A message may overtake the request that it is about: the scheduler looks at the ticket itself
// when the request comes.
Status Engine::Impl::OrderGrammar(RequestState* state) {
  const std::optional<GrammarSource>& source = state->request.sampling.grammar;
  if (!source.has_value()) return {};
  DI_ASSIGN(state->grammar, grammars.Order(*source, [this, id = state->id] {
    loop.Post({EngineMessage::Kind::kGrammarReady, nullptr, id});
  }));
  return state->grammar.ErrorNow(*source);
}

void Engine::Impl::Run() {
  while (!loop.closed()) {
    if (loop.Step() == StepOutcome::kIdle && !loop.closed()) loop.Wait();
  }
  loop.Shutdown();
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineConfig& config, EngineParts parts) {
  DI_TRY(CheckConfig(config));
  DI_CHECK(parts.runner != nullptr);
  auto impl = std::make_unique<Impl>(config, std::move(parts));
  impl->thread = std::thread([raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  impl_->accepting = false;
  impl_->loop.Close();
  impl_->thread.join();
}

Result<RequestId> Engine::Submit(Request request, OutputSink* sink) {
  Impl& impl = *impl_;
  if (!impl.accepting.load(std::memory_order_relaxed)) {
    return Unavailable("the engine is shutting down and takes no new requests");
  }
  try {
    DI_TRY(ValidateIds(request.prompt, impl.limits.vocab, "prompt"));
    DI_TRY(ValidateImages(request.prompt, impl.limits.image_id));
    DI_TRY(ValidateSampling(&request.sampling,
                            {.vocab = impl.limits.vocab, .max_logprobs = impl.limits.max_logprobs},
                            impl.tokenizer));
    if (request.embed && impl.limits.embedding_size == 0) {
      return Invalid("this model gives no embeddings").WithParam("embed");
    }
    DI_ASSIGN(const int max_output, Scheduler::CheckFits(impl.scheduler_config, request));
    DI_TRY(impl.Reserve(static_cast<int64_t>(request.prompt.size())));
    auto state = std::make_unique<RequestState>();
    const RequestId id = impl.next_id.fetch_add(1, std::memory_order_relaxed);
    state->id = id;
    state->seed = request.sampling.seed.has_value() ? static_cast<uint64_t>(*request.sampling.seed)
                                                    : impl.DrawSeed(id);
    state->request = std::move(request);
    state->sink = sink;
    state->max_output = max_output;
    state->arrival_us = impl.clock->NowUs();
    if (const Status status = impl.OrderGrammar(state.get()); !status.ok()) {
      impl.Release(static_cast<int64_t>(state->request.prompt.size()));
      return status;
    }
    const auto prompt_tokens = static_cast<int64_t>(state->request.prompt.size());
    if (!impl.loop.Post({EngineMessage::Kind::kSubmit, std::move(state), 0})) {
      impl.Release(prompt_tokens);
      return Unavailable("the engine is shutting down and takes no new requests");
    }
    return id;
  } catch (const std::bad_alloc&) {
    return Exhausted("there is not enough memory to take the request");
  }
}

void Engine::Cancel(RequestId id) { impl_->loop.Post({EngineMessage::Kind::kCancel, nullptr, id}); }

Status Engine::Drain(int64_t timeout_ms) {
  impl_->accepting = false;
  impl_->loop.Post({EngineMessage::Kind::kDrain, nullptr, 0});
  if (impl_->loop.WaitDrained(timeout_ms < 0 ? -1 : timeout_ms * 1000).has_value()) return {};
  impl_->loop.Post({EngineMessage::Kind::kCancelAll, nullptr, 0});
  const int64_t cancelled = impl_->loop.WaitDrained(-1).value_or(0);
  if (cancelled == 0) return {};
  return {StatusCode::kDeadline,
          Format("{} requests were not finished within {} ms and were cancelled", cancelled,
                 timeout_ms)};
}

EngineStats Engine::Stats() const {
  EngineStats stats = impl_->metrics.Snapshot(impl_->clock->NowUs());
  stats.weights = impl_->runner->Stats();
  return stats;
}

const EngineLimits& Engine::limits() const { return impl_->limits; }

}  // namespace deepinfer
