// Attention of all heads over one shared row per key: chosen (or all visible) history entries, then
// the window, in steps of 64 keys of that list. A token's list depends on its position and its
// choice alone. Window rows come from the step or, before its first one, from the ring in the row's
// slot, which is written at the end. Owned by CpuBackend; called on the runner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/compressed_ops.h"
#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"

namespace deepinfer::cpu {

class WindowAttentionStage {
 public:
  explicit WindowAttentionStage(const CpuContext* context) : context_(context) {}
  void Run(const StepInput& step, const WindowAttentionSpec& spec, const WindowAttentionArgs& args);
  // Writes rows into the ring without attending.
  void Store(const StepInput& step, const WindowAttentionSpec& spec, float* kv);

 private:
  struct Workspace;  // of one thread

  void Begin(const StepInput& step, const WindowAttentionSpec& spec);
  void PrepareToken(const StepInput& step, const WindowAttentionSpec& spec,
                    const WindowAttentionArgs& args, int token) const;
  // Heads [head, head + heads) of a token.
  void Attend(const StepInput& step, const WindowAttentionSpec& spec,
              const WindowAttentionArgs& args, int token, int head, int heads,
              const Workspace& work) const;
  // Where key `index` of the token's list lies.
  struct Keys;
  void GatherStep(const Keys& keys, int first, int count, const Workspace& work) const;
  void StoreOutput(const WindowAttentionSpec& spec, const WindowAttentionArgs& args, int token,
                   int head, int heads, const Workspace& work) const;
  void WriteRing(const StepInput& step, const WindowAttentionSpec& spec, int row) const;

  const CpuContext* context_;
  RopeTable rope_;
  std::vector<float> ones_;
  int dim_ = 0;  // head_dim up to a multiple of 16
  int element_ = 0;
  std::vector<std::byte> step_rows_;  // [tokens, dim_] as the ring holds them
  Floats scratch_;
  std::vector<std::byte> key_rows_;
};

}  // namespace deepinfer::cpu
