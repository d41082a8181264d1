// Checkpoints of DeepSeek V4.1's kind at any size with random weights, in the released format:
// nested config.json, tokenizer, engram.json and safetensors shards with FP8, packed MXFP4 and
// Engram tables. For tests of speed and of loading: nothing that they say means anything.
#pragma once

#include <cstdint>
#include <string>

#include "deepinfer/status.h"
#include "models/quantize_model.h"

namespace deepinfer {

struct RandomDeepseekOptions {
  uint64_t bytes = uint64_t{4} << 30;  // of all tensors, met within a few percent
  double expert_share = 0.55;          // of the bytes, in routed experts
  double engram_share = 0.35;          // of the bytes, in Engram tables
  uint64_t seed = 1;
  QuantizeProgress progress;
};

// Writes into `directory`, which may not hold safetensors files yet. The same options give the
// same bytes on every machine.
Result<QuantizeSummary> WriteRandomDeepseek(const std::string& directory,
                                            const RandomDeepseekOptions& options);

// "4G", "300M", "12.5GiB": powers of 1024.
Result<uint64_t> ParseByteSize(const std::string& text);

}  // namespace deepinfer
