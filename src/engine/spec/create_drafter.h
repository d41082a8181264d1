// The explicit table of drafters.
#pragma once

#include <memory>

#include "deepinfer/config.h"
#include "deepinfer/status.h"
#include "engine/spec/drafter.h"
#include "models/model.h"

namespace deepinfer {

// Ranges of the fields, without a model. Errors name the field.
Status CheckSpeculative(const SpeculativeConfig& config);

struct DrafterChoice {
  std::unique_ptr<Drafter> drafter;  // nullptr: no speculation
  int draft_tokens_max = 0;
};

// Errors: a method that this model has no layers for.
Result<DrafterChoice> CreateDrafter(const SpeculativeConfig& config, Model* model);

}  // namespace deepinfer
