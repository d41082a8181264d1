// Scores every visible entry of the index and keeps the best, with candidate blocks.
// Owned by CpuSparseOps; called on the runner thread.
#pragma once

#include <atomic>
#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class IndexStage {
 public:
  explicit IndexStage(const CpuContext* context) : context_(context) {}
  void Select(const StepInput& step, const IndexSpec& spec, const IndexArgs& args);
  // Time of all scans so far; any thread.
  int64_t scan_us() const { return scan_ns_.load(std::memory_order_relaxed) / 1000; }

 private:
  // Reused lists of one thread.
  struct Workspace {
    std::vector<int32_t> order;
    std::vector<float> values;
    std::vector<float> block_score;
  };
  // Neighbouring tokens of a row that meet keys together.
  struct Span {
    int token = 0;
    int tokens = 1;
    int64_t stride = 0;  // between their scores
  };
  int SpanTokens(int tokens, int items) const;
  void ListSpans(const StepInput& step, int first, int count, int most);
  void PrepareQueries(const StepInput& step, const IndexSpec& spec, const IndexArgs& args);
  void ScoreEntries(const StepInput& step, const IndexSpec& spec, const IndexArgs& args,
                    const Span& span, int begin, int end, float* scores) const;
  void BuildCandidates(const IndexSpec& spec, const IndexArgs& args, int token, int visible,
                       const float* scores, Workspace* work) const;
  static int CandidateEntries(const IndexSpec& spec, const IndexArgs& args, int token, int visible,
                              int32_t* entries);
  void ScoreList(const StepInput& step, const IndexSpec& spec, const IndexArgs& args, int token,
                 const int32_t* entries, int begin, int end, float* scores) const;
  void ChooseEntries(const IndexSpec& spec, const IndexArgs& args, int token, int count,
                     const int32_t* entries, const float* scores, Workspace* work) const;

  void Scan(const StepInput& step, const IndexSpec& spec, const IndexArgs& args);

  const CpuContext* context_;
  std::atomic<int64_t> scan_ns_{0};
  RopeTable rope_;
  std::vector<int8_t> codes_;     // [tokens, heads, dim] of the queries
  std::vector<int32_t> sums_;     // [tokens, heads, blocks]
  Floats scales_;                 // [tokens, heads, blocks]
  Floats scores_;                 // [tokens in work, entries]
  std::vector<int> counts_;       // entries scored of each token in work
  std::vector<int32_t> entries_;  // of the candidates of each token in work
  std::vector<Span> spans_;       // of the tokens in work
  std::vector<Workspace> workspaces_;
};

}  // namespace deepinfer::cpu
