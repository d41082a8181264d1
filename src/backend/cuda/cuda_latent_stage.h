// Attention over a latent cache (backend/latent_ops.h) on the device. Owned by CudaBackend; runner
// thread.
#pragma once

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/sparse/grouped_rows.h"
#include "backend/cuda/sparse/shared_rows.h"
#include "backend/latent_ops.h"

namespace deepinfer::cuda {

class CudaLatentStage {
 public:
  explicit CudaLatentStage(const CudaContext* context)
      : context_(context), absorb_(context), raise_(context) {}
  void Run(const StepInput& step, const LatentAttentionSpec& spec, const LatentAttentionArgs& args);

 private:
  const CudaContext* context_;
  GroupedRows absorb_, raise_;
  SharedRows attention_;
  DeviceBuffer queries_;  // [tokens, heads, latent + rope]
  DeviceBuffer values_;   // [tokens, heads, latent]
};

}  // namespace deepinfer::cuda
