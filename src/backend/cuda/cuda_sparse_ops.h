// The stages of sparse models (backend/sparse_ops.h) on the device: arguments to launches, on the
// backend's stream. Owned by CudaBackend; called on the runner thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/sparse/device_buffer.h"
#include "backend/cuda/sparse/grouped_rows.h"
#include "backend/cuda/sparse/index_kernel.h"
#include "backend/cuda/sparse/scan_clock.h"
#include "backend/cuda/sparse/shared_rows.h"
#include "backend/cuda/sparse/sub_step.h"
#include "backend/cuda/sparse/table_rows.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cuda {

class CudaSparseOps final : public SparseOps {
 public:
  explicit CudaSparseOps(CudaContext* context) : context_(context), grouped_(context) {}

  void StartStreams(const StreamShape& shape, const float* embedded, float* x, float* pre) override;
  void StreamMix(const StreamMixArgs& args) override;
  void Collapse(const StreamShape& shape, const float* x, const float* pre, float* out) override;
  void Expand(const StreamShape& shape, const float* y, const float* post, const float* comb,
              float* x) override;
  void StreamMean(const StreamShape& shape, const float* x, float* out, int64_t stride) override;

  void EncodeWindow(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) override;
  void WindowAttention(const StepInput& step, const WindowSpec& spec,
                       const WindowArgs& args) override;
  void StoreWindow(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) override;
  void DraftWindowAttention(const WindowSpec& spec, const DraftWindowArgs& args) override;

  void Compress(const StepInput& step, const CompressSpec& spec, const CompressArgs& args) override;
  void WriteEntries(const StepInput& step, const EntrySpec& spec, const EntryArgs& args) override;
  void IndexSelect(const StepInput& step, const IndexSpec& spec, const IndexArgs& args) override;
  int64_t index_scan_us() const override { return scan_clock_.us(); }
  void GroupedLinear(const GroupedLinearArgs& args) override;

  void NgramRows(const StepInput& step, const NgramSpec& spec,
                 std::span<int64_t* const> rows) override;
  void PrefetchRows(RowTable* table, const int64_t* ids, int64_t count) override {
    table_rows_.Prefetch(table, ids, count, context_->stream);
  }
  void GatherRows(RowTable* table, const int64_t*, int64_t count, float* out) override {
    table_rows_.Gather(table, count, out, context_->stream);
  }
  void NgramGate(const NgramGateArgs& args) override;

  Suffix TakeSuffix(const StepInput& step) override;
  void Gather(const float* from, const int32_t* index, int rows, int64_t cols, float* to) override;
  void Scatter(const float* from, const int32_t* index, int rows, int64_t cols, float* to,
               int to_rows) override;

 private:
  const int64_t* NgramConstants(const NgramSpec& spec);
  void StoreRows(const StepInput& step, const WindowSpec& spec, const WindowArgs& args);
  void IndexSlab(const IndexAt& slab, const IndexSpec& spec, const IndexArgs& args);

  CudaContext* context_;
  SharedRows attention_;
  SubStep suffix_;
  GroupedRows grouped_;
  DeviceBuffer joined_;           // [rows, groups * out]
  DeviceBuffer codes_, scales_;   // queries of an index
  DeviceBuffer scores_, blocks_;  // of entries, of candidate blocks
  DeviceBuffer ngram_constants_;  // of the tables of ngram_key_
  DeviceBuffer token_map_;
  const void* ngram_key_ = nullptr;
  TableRows table_rows_;
  ScanClock scan_clock_;
};

}  // namespace deepinfer::cuda
