// Attention over a sliding window of FP8 rows and selected FP4 entries, with sink and inverse rope.
// Keys are values; all heads share them. A token's rows are decoded once, in the order window
// ascending, then entries ascending, and every sum runs in that order.
// Owned by CpuSparseOps; called on the runner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class WindowStage {
 public:
  explicit WindowStage(const CpuContext* context) : context_(context) {}
  void Encode(const StepInput& step, const WindowSpec& spec, const WindowArgs& args);
  void Attend(const StepInput& step, const WindowSpec& spec, const WindowArgs& args);
  void Store(const StepInput& step, const WindowSpec& spec, const WindowArgs& args);
  void AttendDraft(const WindowSpec& spec, const DraftWindowArgs& args);

 private:
  // One query token under all heads; its rows decoded to [rows, dim].
  struct Query {
    const float* q = nullptr;
    float* out = nullptr;
    int rope = 0;  // index in rope_
  };
  void EncodeToken(const WindowSpec& spec, int token, float* q, const float* kv, std::byte* row,
                   float* scratch) const;
  int DecodeRows(const StepInput& step, const WindowSpec& spec, const WindowArgs& args, int token,
                 float* rows) const;
  void AttendHeads(const WindowSpec& spec, const Query& query, const float* rows, int count,
                   int head_begin, int head_end, float* scores) const;
  void StoreRows(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) const;
  void ReserveScratch(const WindowSpec& spec, int rows_max);

  const CpuContext* context_;
  RopeTable rope_;
  std::vector<int32_t> positions_;
  std::vector<int> counts_;  // decoded rows of each token or row
  Floats rows_;              // [tokens in work or threads, rows_max, dim]
  Floats scratch_;           // [threads, scores]
  int64_t scratch_stride_ = 0;
};

}  // namespace deepinfer::cpu
