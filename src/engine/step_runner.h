// The seam between the engine loop and what executes steps: ModelRunner, ScriptedRunner (tests).
// Called by the engine thread alone, but for Stats. Steps run in launch order; every launched step
// is fed once and collected once, in that order.
#pragma once

#include <cstdint>

#include "deepinfer/engine.h"
#include "engine/step_plan.h"

namespace deepinfer {

class StepRunner {
 public:
  using Ticket = int64_t;
  virtual ~StepRunner() = default;
  // Never blocks: the plan is queued for the runner. It must stay alive and unchanged until it was
  // collected.
  virtual Ticket Launch(const StepPlan& plan) = 0;
  // The drafts of the newest launched step, whose plan wants them; once. Blocks until those after
  // the step before were made.
  virtual const StepDrafts& DraftsOf(Ticket ticket) = 0;
  // Late inputs of a launched step; the runner waits for them where it uses them. Never blocks.
  virtual void Feed(Ticket ticket, const LateInputs& late) = 0;
  // Blocks until the step is done. The result is valid until the next Collect.
  virtual const StepResult& Collect(Ticket ticket) = 0;
  // Any thread.
  virtual WeightStats Stats() const { return {}; }
};

}  // namespace deepinfer
