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
  static int CandidateEntries(const IndexSpec& spec, const IndexArgs& args, int token, int visible,
                              int32_t* entries);
  void ScoreList(const StepInput& step, const IndexSpec& spec, const IndexArgs& args, int token,
                 const int32_t* entries, int begin, int end, float* scores) const;
  void ChooseEntries(const IndexSpec& spec, const IndexArgs& args, int token, int count,
                     const int32_t* entries, const float* scores, Workspace* work) const;

  const CpuContext* context_;
  RopeTable rope_;
  std::vector<int8_t> codes_;     // [tokens, heads, dim] of the queries
  std::vector<int32_t> sums_;     // [tokens, heads, blocks]
  Floats scales_;                 // [tokens, heads, blocks]
  Floats scores_;                 // [tokens in work, entries]
  std::vector<int> counts_;       // entries scored of each token in work
  std::vector<int32_t> entries_;  // of the candidates of each token in work
  std::vector<Workspace> workspaces_;
};

}  // namespace deepinfer::cpu
