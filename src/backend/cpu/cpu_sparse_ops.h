// The stages of backend/sparse_ops.h on the CPU. Owned by CpuBackend; called on the runner thread.
#pragma once

#include <vector>

#include "backend/cpu/compress_stage.h"
#include "backend/cpu/cpu_context.h"
#include "backend/cpu/hyper_stage.h"
#include "backend/cpu/index_stage.h"
#include "backend/cpu/ngram_stage.h"
#include "backend/cpu/product_stage.h"
#include "backend/cpu/window_stage.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class CpuSparseOps final : public SparseOps {
 public:
  CpuSparseOps(const CpuContext* context, ProductStage* products)
      : context_(context),
        products_(products),
        hyper_(context),
        window_(context),
        compress_(context),
        index_(context),
        ngram_(context) {}

  void StartStreams(const StreamShape& shape, const float* embedded, float* x,
                    float* pre) override {
    hyper_.Start(shape, embedded, x, pre);
  }
  void StreamMix(const StreamMixArgs& args) override { hyper_.Mix(args); }
  void Collapse(const StreamShape& shape, const float* x, const float* pre, float* out) override {
    hyper_.Collapse(shape, x, pre, out);
  }
  void Expand(const StreamShape& shape, const float* y, const float* post, const float* comb,
              float* x) override {
    hyper_.Expand(shape, y, post, comb, x);
  }
  void StreamMean(const StreamShape& shape, const float* x, float* out, int64_t stride) override {
    hyper_.Mean(shape, x, out, stride);
  }
  void EncodeWindow(const StepInput& step, const WindowSpec& spec,
                    const WindowArgs& args) override {
    window_.Encode(step, spec, args);
  }
  void WindowAttention(const StepInput& step, const WindowSpec& spec,
                       const WindowArgs& args) override {
    window_.Attend(step, spec, args);
  }
  void StoreWindow(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) override {
    window_.Store(step, spec, args);
  }
  void DraftWindowAttention(const WindowSpec& spec, const DraftWindowArgs& args) override {
    window_.AttendDraft(spec, args);
  }
  void Compress(const StepInput& step, const CompressSpec& spec,
                const CompressArgs& args) override {
    compress_.Compress(step, spec, args);
  }
  void WriteEntries(const StepInput& step, const EntrySpec& spec, const EntryArgs& args) override {
    compress_.WriteEntries(step, spec, args);
  }
  void IndexSelect(const StepInput& step, const IndexSpec& spec, const IndexArgs& args) override {
    index_.Select(step, spec, args);
  }
  int64_t index_scan_us() const override { return index_.scan_us(); }
  void GroupedLinear(const GroupedLinearArgs& args) override;
  void NgramRows(const StepInput& step, const NgramSpec& spec,
                 std::span<int64_t* const> rows) override {
    ngram_.Rows(step, spec, rows);
  }
  void PrefetchRows(RowTable* table, const int64_t* ids, int64_t count) override {
    table->Prefetch({ids, static_cast<size_t>(count)});
  }
  void GatherRows(RowTable* table, const int64_t* ids, int64_t count, float* out) override {
    table->Gather(ids, count, out);
  }
  void NgramGate(const NgramGateArgs& args) override { ngram_.Gate(args); }
  Suffix TakeSuffix(const StepInput& step) override;
  void Gather(const float* from, const int32_t* index, int rows, int64_t cols, float* to) override {
    hyper_.Gather(from, index, rows, cols, to);
  }
  void Scatter(const float* from, const int32_t* index, int rows, int64_t cols, float* to,
               int to_rows) override;

 private:
  ActRows* GroupInput(const PackedMatrix& matrix);

  const CpuContext* context_;
  ProductStage* products_;
  HyperStage hyper_;
  WindowStage window_;
  CompressStage compress_;
  IndexStage index_;
  NgramStage ngram_;

  // GroupedLinear.
  std::vector<std::unique_ptr<ActRows>> group_inputs_;  // one per width and format
  std::vector<int32_t> group_rows_;                     // [groups, rows]
  std::vector<Product> group_products_;
  Floats group_out_;  // [groups, rows, out]
  Floats joined_;     // [threads, groups * out]

  // TakeSuffix: the arrays of the sub-step.
  std::vector<int32_t> index_list_, token_, position_, query_start_, token_row_;
  std::vector<TokenKind> kind_;
};

}  // namespace deepinfer::cpu
