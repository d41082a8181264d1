// Windows of tokens to history entries, and the choice among entries. A window's tokens come from
// the step or, before its first one, from the ring in the row's slot, which is written once every
// entry is done. Owned by CpuBackend; called on the runner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/compressed_ops.h"
#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"

namespace deepinfer::cpu {

class CompressorStage {
 public:
  explicit CompressorStage(const CpuContext* context) : context_(context) {}
  // kv and gate [tokens, width]
  void Compress(const StepInput& step, const CompressorSpec& spec, const float* kv,
                const float* gate);

 private:
  struct Entry {
    int row;
    int window;
  };
  void WriteEntry(const StepInput& step, const CompressorSpec& spec, const float* kv,
                  const float* gate, size_t index, float* scratch) const;
  void WriteRing(const StepInput& step, const CompressorSpec& spec, const float* kv,
                 const float* gate, int row) const;

  const CpuContext* context_;
  std::vector<Entry> entries_;      // that the step's tokens complete
  std::vector<int32_t> positions_;  // of their rotation
  RopeTable rope_;
  Floats scratch_;  // [threads, dim]
};

}  // namespace deepinfer::cpu
