// N-gram memory: hashes of token ids into table rows, and the gate that adds what they
// say to the streams. Owned by CpuSparseOps; called on the runner thread.
#pragma once

#include "backend/cpu/cpu_context.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class NgramStage {
 public:
  explicit NgramStage(const CpuContext* context) : context_(context) {}
  void Rows(const StepInput& step, const NgramSpec& spec, std::span<int64_t* const> rows);
  void Gate(const NgramGateArgs& args);

 private:
  void LookBack(const StepInput& step, const NgramSpec& spec, int token, int32_t* ids) const;

  const CpuContext* context_;
};

}  // namespace deepinfer::cpu
