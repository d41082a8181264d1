// Builds an Engine around a loaded model: memory plan, runner, scheduler.
#pragma once

#include <memory>

#include "deepinfer/engine.h"
#include "engine/model_runner.h"
#include "models/loaded_model.h"

namespace deepinfer {

// `model` must outlive the engine, which is the only user of its backend and model from now on.
// Errors name the setting of `config` at fault.
Result<std::unique_ptr<Engine>> CreateEngine(const EngineConfig& config, LoadedModel* model,
                                             const RunnerTestMode& test = {});

// The same for parts that are not a LoadedModel; `tokenizer` may be nullptr.
Result<std::unique_ptr<Engine>> CreateEngine(const EngineConfig& config, Model* model,
                                             Backend* backend, const Tokenizer* tokenizer,
                                             const RunnerTestMode& test = {});

}  // namespace deepinfer
