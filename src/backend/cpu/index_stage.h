// Scores every visible entry of the index and keeps the best, with candidate blocks.
// Owned by CpuSparseOps; called on the runner thread.
#pragma once

#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class IndexStage {
 public:
  explicit IndexStage(const CpuContext* context) : context_(context) {}
  void Select(const StepInput& step, const IndexSpec& spec, const IndexArgs& args);

 private:
  // Reused lists of one thread.
  struct Workspace {
    std::vector<int32_t> order;
    std::vector<float> block_score;
  };
  void PrepareQueries(const StepInput& step, const IndexSpec& spec, const IndexArgs& args);
  void ScoreEntries(const StepInput& step, const IndexSpec& spec, const IndexArgs& args, int token,
                    int begin, int end, float* scores) const;
  void BuildCandidates(const IndexSpec& spec, const IndexArgs& args, int token, int visible,
                       const float* scores, Workspace* work) const;
  void LimitToCandidates(const IndexSpec& spec, const IndexArgs& args, int token, int visible,
                         float* scores) const;
  void ChooseEntries(const IndexSpec& spec, const IndexArgs& args, int token, int visible,
                     const float* scores, Workspace* work) const;

  const CpuContext* context_;
  RopeTable rope_;
  Floats scores_;  // [tokens in work, visible entries]
  std::vector<Workspace> workspaces_;
};

}  // namespace deepinfer::cpu
