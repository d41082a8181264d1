// Residual streams mixed by hyper-connections: coefficients, collapse, expansion. Owned by
// CpuSparseOps; called on the runner thread. Each token alone.
#pragma once

#include "backend/cpu/cpu_context.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class HyperStage {
 public:
  explicit HyperStage(const CpuContext* context) : context_(context) {}
  void Start(const StreamShape& shape, const float* embedded, float* x, float* pre);
  void Mix(const StreamMixArgs& args);
  void Collapse(const StreamShape& shape, const float* x, const float* pre, float* out);
  void Expand(const StreamShape& shape, const float* y, const float* post, const float* comb,
              float* x);
  void Mean(const StreamShape& shape, const float* x, float* out, int64_t stride);
  void Gather(const float* from, const int32_t* index, int rows, int64_t cols, float* to);

 private:
  const CpuContext* context_;
};

}  // namespace deepinfer::cpu
