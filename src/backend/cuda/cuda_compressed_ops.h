// The stages of models with a plain window and compressed past (backend/compressed_ops.h) on the
// device. Owned by CudaBackend; called on the runner thread.
#pragma once

#include <cstdint>

#include "backend/compressed_ops.h"
#include "backend/cuda/cuda_context.h"
#include "backend/cuda/sparse/device_buffer.h"
#include "backend/cuda/sparse/shared_rows.h"
#include "backend/cuda/sparse/sub_step.h"

namespace deepinfer::cuda {

class CudaCompressedOps final : public CompressedOps {
 public:
  explicit CudaCompressedOps(CudaContext* context) : context_(context) {}
  void CollapseHead(const HeadCollapseArgs& args) override;
  void WriteWindows(const StepInput& step, const CompressorSpec& spec, const float* kv,
                    const float* gate) override;
  void ChooseEntries(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                     const float* weight, int32_t* selected, int32_t* count) override;
  void Attend(const StepInput& step, const WindowAttentionSpec& spec,
              const WindowAttentionArgs& args) override;
  void StoreWindow(const StepInput& step, const WindowAttentionSpec& spec, float* kv) override;
  PairStep TakePairs(const StepInput& step) override;
  void GatherPairs(const PairStep& pairs, const WindowRing& ring, int64_t width, const float* x,
                   float* out) override;
  void StorePairs(const StepInput& step, const WindowRing& ring, int64_t width,
                  const float* x) override;
  void AddToStreams(const StreamShape& shape, const float* row, float* x) override;

 private:
  // Norms, rotates and rounds; the rows of the step as the ring holds them.
  std::byte* Prepare(const StepInput& step, const WindowAttentionSpec& spec, float* q, float* kv);

  CudaContext* context_;
  SharedRows attention_;
  SubStep pairs_;
  DeviceBuffer rows_;    // [tokens, padded] of the step
  DeviceBuffer scores_;  // [tokens, entries]
};

}  // namespace deepinfer::cuda
