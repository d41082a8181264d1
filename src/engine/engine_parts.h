// What an Engine is made of. CreateEngine builds it from a loaded model; tests and the simulator
// from a ScriptedRunner.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "deepinfer/engine.h"
#include "engine/scheduler.h"
#include "engine/step_runner.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct EngineParts {
  std::unique_ptr<StepRunner> runner;
  SchedulerConfig scheduler;
  EngineLimits limits;
  const Tokenizer* tokenizer = nullptr;  // nullptr: ids only; outlives the engine
  const Clock* clock = nullptr;          // nullptr: the real one; outlives the engine
};

// The scheduler's part of a configuration whose limits are known.
SchedulerConfig SchedulerConfigOf(const EngineConfig& config, const EngineLimits& limits,
                                  std::vector<TokenId> eos_ids);

// Parts around a scripted runner under `config`, for tests of what stands above the engine.
struct ScriptedRunnerOptions;
EngineParts ScriptedParts(const EngineConfig& config, ScriptedRunnerOptions options,
                          const Tokenizer* tokenizer, std::vector<TokenId> eos_ids);

}  // namespace deepinfer
