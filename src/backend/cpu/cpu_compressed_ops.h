// The stages of backend/compressed_ops.h on the CPU. Owned by CpuBackend; called on the runner
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/compressed_ops.h"
#include "backend/cpu/compressor_stage.h"
#include "backend/cpu/cpu_context.h"
#include "backend/cpu/entry_choice_stage.h"
#include "backend/cpu/window_attention_stage.h"

namespace deepinfer::cpu {

class CpuCompressedOps final : public CompressedOps {
 public:
  explicit CpuCompressedOps(const CpuContext* context)
      : context_(context), compressor_(context), choice_(context), attention_(context) {}
  void CollapseHead(const HeadCollapseArgs& args) override;
  void WriteWindows(const StepInput& step, const CompressorSpec& spec, const float* kv,
                    const float* gate) override {
    compressor_.Compress(step, spec, kv, gate);
  }
  void ChooseEntries(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                     const float* weight, int32_t* selected, int32_t* count) override {
    choice_.Select(step, spec, q, weight, selected, count);
  }
  void Attend(const StepInput& step, const WindowAttentionSpec& spec,
              const WindowAttentionArgs& args) override {
    attention_.Run(step, spec, args);
  }
  void StoreWindow(const StepInput& step, const WindowAttentionSpec& spec, float* kv) override {
    attention_.Store(step, spec, kv);
  }
  PairStep TakePairs(const StepInput& step) override;
  void GatherPairs(const PairStep& pairs, const WindowRing& ring, int64_t width, const float* x,
                   float* out) override;
  void StorePairs(const StepInput& step, const WindowRing& ring, int64_t width,
                  const float* x) override;
  void AddToStreams(const StreamShape& shape, const float* row, float* x) override;

 private:
  const CpuContext* context_;
  CompressorStage compressor_;
  EntryChoiceStage choice_;
  WindowAttentionStage attention_;

  // TakePairs: the arrays of the sub-step.
  std::vector<int32_t> source_, token_, position_, token_row_, query_start_;
  std::vector<TokenKind> kind_;
};

}  // namespace deepinfer::cpu
