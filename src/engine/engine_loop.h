// The loop of one engine: inbox -> plan -> launch -> apply the step before -> feed.
// Step() is the body; whoever owns the object calls it from one thread, a real one (Engine) or a
// simulator's. Post may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "engine/scheduler.h"
#include "engine/step_runner.h"

namespace deepinfer {

struct EngineMessage {
  enum class Kind : uint8_t { kSubmit, kGrammarReady, kCancel, kPreempt, kCancelAll, kDrain };
  Kind kind = Kind::kSubmit;
  std::unique_ptr<RequestState> request;  // kSubmit
  RequestId id = 0;                       // kGrammarReady, kCancel, kPreempt
};

enum class StepOutcome : uint8_t { kBusy, kIdle };

class EngineLoop {
 public:
  EngineLoop(const SchedulerConfig& config, bool overlap, size_t inbox_capacity,
             std::unique_ptr<StepRunner> runner, const Tokenizer* tokenizer, const Clock* clock,
             EngineMetrics* metrics);

  // False when the loop is closing.
  bool Post(EngineMessage message);
  void Close() { inbox_.Close(); }

  // kIdle: nothing was planned and nothing is in flight; call Wait before the next Step.
  StepOutcome Step();
  // Until a message, the next deadline, or Close.
  void Wait();
  // After Close: ends every request and collects what is in flight.
  void Shutdown();
  bool closed() const { return inbox_.closed(); }
  // Waits until the loop, told to drain, has no request left; the number of requests that
  // kCancelAll ended since, or nothing after `timeout_us` (negative: no limit).
  std::optional<int64_t> WaitDrained(int64_t timeout_us);

  const Scheduler& scheduler() const { return scheduler_; }

 private:
  void Handle(EngineMessage message);
  void TakeMessages();
  void ApplyPrevious();
  void FeedLate(StepRunner::Ticket ticket, const StepPlan& plan);

  const bool overlap_;
  const std::unique_ptr<StepRunner> runner_;
  const Clock* const clock_;
  EngineMetrics* const metrics_;
  Scheduler scheduler_;
  BoundedQueue<EngineMessage> inbox_;
  BoundedQueue<int64_t> drained_;
  const StepPlan* previous_ = nullptr;
  StepRunner::Ticket previous_ticket_ = 0;
  bool draining_ = false;
  int64_t cancelled_ = 0;
};

}  // namespace deepinfer
