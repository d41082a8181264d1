// The seam between the engine loop and what executes steps: ModelRunner, ScriptedRunner (tests).
#pragma once

#include <cstdint>

#include "deepinfer/request.h"
#include "engine/step_plan.h"

namespace deepinfer {

// Per-sequence data the runner needs to sample, sent with the first plan of a slot.
struct SlotSetup {
  int slot = 0;
  int64_t sequence = 0;
  const Request* request = nullptr;   // alive until the slot is released
  int sample_index = 0;
  uint64_t seed = 0;
  std::vector<TokenId> emitted;       // output tokens before a preemption, for penalties
};

class StepRunner {
 public:
  using Ticket = int64_t;
  virtual ~StepRunner() = default;
  // Prepares a slot for a new sequence. Takes effect before the next launched plan.
  virtual void SetupSlot(SlotSetup setup) = 0;
  // Never blocks: the plan is queued for the runner thread.
  virtual Ticket Launch(StepPlan plan) = 0;
  // Blocks until the step is done.
  virtual StepResult Collect(Ticket ticket) = 0;
};

}  // namespace deepinfer
