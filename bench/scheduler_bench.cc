// Times Scheduler::Plan with 256 running sequences and 1,000 to 100,000 waiting, prefix lookup on,
// one thread, and counts its allocations. Two loads: decode (every slot is taken) and churn (one
// sample ends and one request is admitted every step, with prompts that share a prefix). "cold":
// between plans the processor's caches are swept, as a large forward pass does. Exit status 1 when
// a warm median is above 50 us or grows by more than 1.5 from 1,000 to 100,000 waiting.
//   scheduler_bench [--steps N] [--json]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/metrics.h"
#include "engine/scheduler.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = malloc(bytes);
  if (memory == nullptr) abort();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { free(memory); }

namespace deepinfer {
namespace {

constexpr int kRunning = 256;
constexpr int kPromptTokens = 512;
constexpr size_t kSweepBytes = size_t{64} << 20;

class NullSink final : public OutputSink {
 public:
  void OnOutput(OutputDelta /*delta*/) override {}
};

struct Options {
  int steps = 2000;
  bool json = false;
};

struct Figures {
  double median_us = 0;
  double p99_us = 0;
  double allocations = 0;  // per plan
};

double Percentile(std::vector<double>* values, double share) {
  const auto at = static_cast<ptrdiff_t>(share * static_cast<double>(values->size() - 1));
  std::nth_element(values->begin(), values->begin() + at, values->end());
  return (*values)[static_cast<size_t>(at)];
}

class Bench {
 public:
  Bench(int64_t waiting, bool churn, bool cold)
      : churn_(churn), cold_(cold), metrics_(kMaxLen), sweep_(kSweepBytes / 8) {
    SchedulerConfig config;
    config.max_num_seqs = kRunning;
    config.max_num_batched_tokens = 8192;
    config.max_model_len = kMaxLen;
    config.num_blocks = 1 << 17;
    scheduler_ = std::make_unique<Scheduler>(config, nullptr, &metrics_);
    for (int64_t i = 0; i < waiting + kRunning; ++i) Add();
  }

  Figures Run(const Options& options) {
    for (int i = 0; i < 300; ++i) Step(nullptr);
    DI_CHECK(scheduler_->num_running() == (churn_ ? kRunning - 1 : kRunning));
    std::vector<double> times;
    times.reserve(static_cast<size_t>(options.steps));
    plan_allocations_ = 0;
    for (int i = 0; i < options.steps; ++i) Step(&times);
    Figures figures;
    figures.allocations = static_cast<double>(plan_allocations_) / options.steps;
    figures.median_us = Percentile(&times, 0.5);
    figures.p99_us = Percentile(&times, 0.99);
    return figures;
  }

 private:
  static constexpr int kMaxLen = 8192;

  void Add() {
    auto state = std::make_unique<RequestState>();
    state->id = next_id_++;
    for (int i = 0; i < kPromptTokens; ++i) {
      // Half of the prompt is shared with every eighth request.
      const int id = static_cast<int>(state->id);
      state->request.prompt.push_back(i < kPromptTokens / 2 ? id % 8 : id * 7 + i);
    }
    state->sink = &sink_;
    state->request.sampling.max_tokens = kMaxLen - kPromptTokens;
    state->max_output = kMaxLen - kPromptTokens;
    state->request.priority = static_cast<int>(state->id % 3);
    metrics_.waiting += 1;
    metrics_.waiting_tokens += kPromptTokens;
    scheduler_->Admit(std::move(state));
  }

  void Step(std::vector<double>* times) {
    if (cold_ && times != nullptr) {
      for (size_t i = 0; i < sweep_.size(); i += 8) sweep_[i] += 1;
    }
    const int64_t allocations = num_allocations.load(std::memory_order_relaxed);
    const auto begin = std::chrono::steady_clock::now();
    const StepPlan& plan = scheduler_->Plan(++now_us_);
    const auto end = std::chrono::steady_clock::now();
    plan_allocations_ += num_allocations.load(std::memory_order_relaxed) - allocations;
    if (times != nullptr) {
      times->push_back(std::chrono::duration<double, std::micro>(end - begin).count());
    }
    result_.rows.assign(plan.rows.size(), {});
    result_.emitted.assign(plan.rows.size(), {});
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      result_.rows[i].sequence = plan.rows[i].sequence;
      result_.rows[i].slot = plan.rows[i].slot;
      result_.rows[i].num_emitted = plan.rows[i].sample ? 1 : 0;
      result_.rows[i].emitted_begin = static_cast<int>(i);
      result_.emitted[i].id = static_cast<TokenId>((now_us_ + plan.rows[i].slot) % 1000);
    }
    scheduler_->Apply(plan, result_, ++now_us_);
    if (!churn_) return;
    // One slot is free for the next plan. The sequence id is the request id, see next_id_.
    scheduler_->Cancel(static_cast<RequestId>(plan.rows.front().sequence), now_us_);
    Add();
  }

  const bool churn_;
  const bool cold_;
  NullSink sink_;
  EngineMetrics metrics_;
  std::unique_ptr<Scheduler> scheduler_;
  StepResult result_;
  std::vector<int64_t> sweep_;
  RequestId next_id_ = 1;  // as the scheduler numbers sequences, since each request has one sample
  int64_t now_us_ = 0;
  int64_t plan_allocations_ = 0;
};

int Run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--json") == 0) {
      options.json = true;
    } else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
      options.steps = atoi(argv[++i]);
    } else {
      fprintf(stderr, "usage: scheduler_bench [--steps N] [--json]\n");
      return 2;
    }
  }
  bool fits = true;
  for (const bool cold : {false, true}) {
    for (const bool churn : {false, true}) {
      double first = 0;
      for (const int64_t waiting : {int64_t{1000}, int64_t{10'000}, int64_t{100'000}}) {
        const Figures figures = Bench(waiting, churn, cold).Run(options);
        if (first == 0) first = figures.median_us;
        const double growth = figures.median_us / first;
        if (!cold) fits = fits && figures.median_us <= 50 && growth <= 1.5;
        printf(options.json ? "{\"caches\":\"%s\",\"load\":\"%s\",\"running\":%d,"
                              "\"waiting\":%ld,\"plan_us\":%.2f,\"plan_us_p99\":%.2f,"
                              "\"growth\":%.2f,\"allocations\":%.3f}\n"
                            : "%s %-7s %d running %7ld waiting  plan %6.2f us  p99 %8.2f us  "
                              "growth %.2f  allocations %.3f\n",
               cold ? "cold" : "warm", churn ? "churn" : "decode", kRunning,
               static_cast<long>(waiting), figures.median_us, figures.p99_us, growth,
               figures.allocations);
        fflush(stdout);
      }
    }
  }
  return fits ? 0 : 1;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Run(argc, argv); }
