#include "engine/engine_loop.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace deepinfer {

EngineLoop::EngineLoop(const SchedulerConfig& config, bool overlap, size_t inbox_capacity,
                       std::unique_ptr<StepRunner> runner, const Tokenizer* tokenizer,
                       const Clock* clock, EngineMetrics* metrics)
    : overlap_(overlap),
      runner_(std::move(runner)),
      clock_(clock),
      metrics_(metrics),
      scheduler_(config, tokenizer, metrics),
      inbox_(inbox_capacity),
      drained_(1) {}

bool EngineLoop::Post(EngineMessage message) {
  return inbox_.Push(std::move(message)) == PushResult::kOk;
}

void EngineLoop::Handle(EngineMessage message) {
  switch (message.kind) {
    case EngineMessage::Kind::kSubmit:
      scheduler_.Admit(std::move(message.request));
      break;
    case EngineMessage::Kind::kGrammarReady:
      scheduler_.GrammarReady(message.id, clock_->NowUs());
      break;
    case EngineMessage::Kind::kCancel:
      scheduler_.Cancel(message.id, clock_->NowUs());
      break;
    case EngineMessage::Kind::kPreempt:
      scheduler_.PreemptRequest(message.id);
      break;
    case EngineMessage::Kind::kCancelAll:
      cancelled_ += scheduler_.num_requests();
      scheduler_.CancelAll(clock_->NowUs());
      break;
    case EngineMessage::Kind::kDrain:
      draining_ = true;
      cancelled_ = 0;
      break;
  }
}

void EngineLoop::TakeMessages() {
  for (EngineMessage& message : inbox_.PopAll()) Handle(std::move(message));
}

void EngineLoop::ApplyPrevious() {
  const StepPlan* plan = std::exchange(previous_, nullptr);
  if (plan == nullptr) return;
  const StepResult& result = runner_->Collect(previous_ticket_);
  scheduler_.Apply(*plan, result, clock_->NowUs());
}

void EngineLoop::FeedLate(StepRunner::Ticket ticket, const StepPlan& plan) {
  static const StepDrafts kNone;
  const StepDrafts& drafts = plan.wants_drafts ? runner_->DraftsOf(ticket) : kNone;
  runner_->Feed(ticket, scheduler_.LateInputsOf(plan, drafts, clock_->NowUs()));
}

StepOutcome EngineLoop::Step() {
  TakeMessages();
  const StepPlan& plan = scheduler_.Plan(clock_->NowUs());
  if (plan.empty() && previous_ == nullptr) {
    if (draining_ && scheduler_.idle()) {
      draining_ = false;
      drained_.TryPush(int64_t{cancelled_});
    }
    return StepOutcome::kIdle;
  }
  StepRunner::Ticket ticket = 0;
  if (!plan.empty()) ticket = runner_->Launch(plan);  // the device is busy
  ApplyPrevious();                                    // and so is the host
  if (plan.empty()) return StepOutcome::kBusy;
  FeedLate(ticket, plan);
  previous_ = &plan;
  previous_ticket_ = ticket;
  if (!overlap_) ApplyPrevious();
  return StepOutcome::kBusy;
}

void EngineLoop::Wait() {
  const int64_t deadline = scheduler_.NextDeadlineUs();
  std::optional<EngineMessage> message =
      deadline < 0 ? inbox_.Pop() : inbox_.PopFor(std::max<int64_t>(0, deadline - clock_->NowUs()));
  if (message.has_value()) Handle(*std::move(message));
}

void EngineLoop::Shutdown() {
  TakeMessages();
  scheduler_.CancelAll(clock_->NowUs());
  ApplyPrevious();
  drained_.TryPush(int64_t{cancelled_});
}

std::optional<int64_t> EngineLoop::WaitDrained(int64_t timeout_us) {
  return timeout_us < 0 ? drained_.Pop() : drained_.PopFor(timeout_us);
}

}  // namespace deepinfer
