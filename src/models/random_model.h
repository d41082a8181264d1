// Shape-true GGUF checkpoints with random weights, for benchmarks of speed: nothing they say means
// anything. The tokenizer is synthetic but valid here and for llama.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "deepinfer/status.h"
#include "models/quantize_model.h"

namespace deepinfer {

struct RandomModelOptions {
  std::string preset = "smol";  // see RandomModelPresets
  std::string type = "Q8_0";    // see QuantizationTypeNames
  uint64_t seed = 1;
  QuantizeProgress progress;
};

// "smol, qwen, moe, tiny"
std::string RandomModelPresets();

Result<QuantizeSummary> WriteRandomModel(const std::string& output,
                                         const RandomModelOptions& options);

}  // namespace deepinfer
