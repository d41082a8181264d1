// Writes any checkpoint as one GGUF file of a chosen type, readable by llama.cpp too: names, head
// permutation of Llama, stacked experts, metadata and tokenizer are carried over.
// One owner, one thread; rows are encoded on the pool when one is given.
#pragma once

#include <cstdint>
#include <string>

#include "base/compute_pool.h"
#include "deepinfer/status.h"
#include "models/checkpoint.h"

namespace deepinfer {

// Called on the calling thread, at least once per tensor.
struct QuantizeProgress {
  void (*report)(void* context, uint64_t bytes_done, uint64_t bytes_total,
                 const std::string& tensor) = nullptr;
  void* context = nullptr;
};

// Encoding what is already quantised loses accuracy twice: refused unless asked for (speed tests).
enum class Requantize : uint8_t { kRefuse, kAllow };

struct QuantizeOptions {
  std::string type = "Q4_K_M";  // see QuantizationTypeNames
  Requantize requantize = Requantize::kRefuse;
  ComputePool* pool = nullptr;
  QuantizeProgress progress;
};

struct QuantizeSummary {
  int tensors = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;  // of tensor data
};

// `output` appears only when complete; an existing file is replaced.
Result<QuantizeSummary> QuantizeCheckpoint(const Checkpoint& checkpoint, const std::string& output,
                                           const QuantizeOptions& options);

}  // namespace deepinfer
