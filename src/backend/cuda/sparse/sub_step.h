// Some tokens of a step as a step of their own, built on the device without the host reading a row:
// the host knows how many there may be, and what is left over are dead tokens of the last row.
// Owned by a set of operators; runner thread.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sparse/device_buffer.h"
#include "backend/step_input.h"

namespace deepinfer::cuda {

class SubStep {
 public:
  // Turns *step into its tokens at or after suffix_begin. Returns their index in the whole step.
  // What it returns and points the step at is valid until the next call.
  const int32_t* TakeSuffix(StepInput* step, cudaStream_t stream);
  // Turns *step into its neighbouring pairs (PairStep, backend/compressed_ops.h). Returns sources.
  const int32_t* TakePairs(StepInput* step, cudaStream_t stream);

 private:
  enum class Tokens { kSuffix, kPairs };
  const int32_t* Take(Tokens which, int bound, StepInput* step, cudaStream_t stream);

  DeviceBuffer memory_;
};

}  // namespace deepinfer::cuda
