// The choice of the entries that a token attends to, by scores against index keys.
// Owned by CpuBackend; called on the runner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/compressed_ops.h"
#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"

namespace deepinfer::cpu {

class EntryChoiceStage {
 public:
  explicit EntryChoiceStage(const CpuContext* context) : context_(context) {}
  // q [tokens, heads, dim] is rotated and rounded in place; weights [tokens, heads]; selected
  // [tokens, top_k] ascending, count [tokens].
  void Select(const StepInput& step, const EntryChoiceSpec& spec, float* q, const float* weights,
              int32_t* selected, int32_t* count);

 private:
  struct Scored {
    float score;
    int32_t entry;
  };
  void SelectToken(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                   const float* weights, int token, std::vector<Scored>* scored, int32_t* selected,
                   int32_t* count) const;

  const CpuContext* context_;
  RopeTable rope_;
  std::vector<std::vector<Scored>> scored_;  // [threads]
};

}  // namespace deepinfer::cpu
