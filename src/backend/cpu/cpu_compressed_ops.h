// The stages of backend/compressed_ops.h on the CPU. Owned by CpuBackend; called on the runner
// thread.
#pragma once

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

 private:
  const CpuContext* context_;
  CompressorStage compressor_;
  EntryChoiceStage choice_;
  WindowAttentionStage attention_;
};

}  // namespace deepinfer::cpu
