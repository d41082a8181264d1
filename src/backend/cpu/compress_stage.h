// Compressed entries: pools groups of tokens into latents and writes entries and index keys.
// Owned by CpuSparseOps; called on the runner thread.
#pragma once

#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class CompressStage {
 public:
  explicit CompressStage(const CpuContext* context) : context_(context) {}
  void Compress(const StepInput& step, const CompressSpec& spec, const CompressArgs& args);
  void WriteEntries(const StepInput& step, const EntrySpec& spec, const EntryArgs& args);

 private:
  void Pool(const StepInput& step, const CompressSpec& spec, const CompressArgs& args,
            int token) const;

  const CpuContext* context_;
  RopeTable rope_;
  std::vector<int32_t> positions_;  // of the entry that each token completes
  Floats scratch_;                  // [threads, dim]
};

}  // namespace deepinfer::cpu
