// A row of every token through each matrix of a group (BindGroups): the projections of heads or of
// output groups. Owned by a stage; runner thread.
#pragma once

#include <cstdint>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/sparse/device_buffer.h"

namespace deepinfer::cuda {

class GroupedRows {
 public:
  explicit GroupedRows(const CudaContext* context) : context_(context) {}
  // out[t, g] (rows of `out_stride` floats) = matrix g * x[t, g], the leading weight.cols of
  // `stride` floats.
  void Run(const Weight& weight, const float* x, int64_t stride, int tokens, float* out,
           int64_t out_stride);

 private:
  const CudaContext* context_;
  DeviceBuffer input_;  // [groups, tokens, padded columns]
};

}  // namespace deepinfer::cuda
