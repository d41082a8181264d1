// Attention over shared rows in as many tokens at once as its partial results have room. Owned by a
// set of operators; runner thread.
#pragma once

#include "backend/cuda/sparse/device_buffer.h"
#include "backend/cuda/sparse/row_attention_kernel.h"

namespace deepinfer::cuda {

class SharedRows {
 public:
  // All tokens of `at.step`.
  void Attend(RowAttentionAt at, cudaStream_t stream);

 private:
  DeviceBuffer partial_;
};

}  // namespace deepinfer::cuda
