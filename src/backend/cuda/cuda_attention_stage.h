// Attention with keys and values per head on the device. Owned by CudaBackend; runner thread.
#pragma once

#include "backend/cuda/cuda_context.h"

namespace deepinfer::cuda {

class CudaAttentionStage {
 public:
  explicit CudaAttentionStage(const CudaContext* context) : context_(context) {}
  void RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q, float* k,
                    const float* v);
  void Attention(const StepInput& step, const AttentionSpec& spec, const float* q, float* out);

 private:
  const CudaContext* context_;
  DeviceBuffer partial_;
};

}  // namespace deepinfer::cuda
