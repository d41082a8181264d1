// The CPU device: packed weights, stages on a fork-join pool, vector code of the chosen ISA.
// Owned by whoever created it; the runner thread makes every call.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention_stage.h"
#include "backend/cpu/cpu_compressed_ops.h"
#include "backend/cpu/cpu_context.h"
#include "backend/cpu/cpu_sparse_ops.h"
#include "backend/cpu/latent_attention_stage.h"
#include "backend/cpu/moe_stage.h"
#include "backend/cpu/product_stage.h"

namespace deepinfer::cpu {

class CpuBackend final : public Backend {
 public:
  // Errors: an ISA that this machine lacks, a thread count out of range.
  static Result<std::unique_ptr<Backend>> Create(const BackendOptions& options);

  const BackendInfo& info() const override { return info_; }
  Result<Buffer> Allocate(size_t bytes) override;
  Result<std::unique_ptr<Weight>> Bind(const TensorFile& file, const TensorView& view,
                                       WeightRole role) override;
  Result<std::unique_ptr<Weight>> BindExperts(const TensorFile& file,
                                              std::span<const TensorView> experts) override;
  Result<std::unique_ptr<Weight>> BindGroups(const TensorFile& file,
                                             std::span<const TensorView> groups) override {
    return BindSeveral(file, groups, nullptr);
  }
  WeightCacheStats weight_cache_stats() const override {
    return context_.weight_cache == nullptr ? WeightCacheStats() : context_.weight_cache->stats();
  }
  void LendCore() override { context_.pool->LendCore(); }
  void ReturnCore() override { context_.pool->ReturnCore(); }
  int kv_element_bytes() const override { return context_.float32 ? 4 : 2; }
  std::unique_ptr<Activation> CreateActivation(int64_t cols,
                                               std::span<const Weight* const> readers) override;
  void Embed(const Weight& embedding, const int32_t* token, int tokens, float* out) override;
  void NormQuantize(const float* x, const int32_t* row_index, int rows, const Weight* norm,
                    float eps, Activation* out) override;
  bool NormRow(const float* x, int row, int64_t cols, const Weight& norm, float eps,
               float* out) override;
  void Linear(const LinearArgs& args) override { products_.Run(args); }
  void RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q, float* k,
                    const float* v) override {
    attention_.RopeAndCache(step, spec, q, k, v);
  }
  void Attention(const StepInput& step, const AttentionSpec& spec, const float* q,
                 float* out) override {
    attention_.Attention(step, spec, q, out);
  }
  void LatentAttention(const StepInput& step, const LatentAttentionSpec& spec,
                       const LatentAttentionArgs& args) override {
    latent_attention_.Run(step, spec, args);
  }
  void Moe(const MoeArgs& args) override { moe_.Run(args); }
  SparseOps* sparse_ops() override { return &sparse_; }
  CompressedOps* compressed_ops() override { return &compressed_; }
  void CopyBlocks(const StepInput& step,
                  std::span<const std::pair<int32_t, int32_t>> pairs) override;
  void ParallelRows(int count, void (*body)(void* context, int i), void* context) override;

 private:
  CpuBackend(Isa isa, int threads, const BackendOptions& options);
  Result<std::unique_ptr<PackedMatrix>> PackOne(const TensorFile& file, const TensorView& view);

  // With a cache: packed when first chosen.
  Result<std::unique_ptr<Weight>> BindSeveral(const TensorFile& file,
                                              std::span<const TensorView> views,
                                              std::shared_ptr<WeightCache> cache);
  void DecideWeightCache(const TensorFile& file, const TensorView& expert);
  Status CheckCacheLimit(const PackedMatrix& matrix, const TensorView& view) const;

  CpuContext context_;
  int64_t weight_cache_bytes_ = 0;
  bool cache_decided_ = false;
  BackendInfo info_;
  PackedArena arena_;
  ProductStage products_;
  AttentionStage attention_;
  LatentAttentionStage latent_attention_;
  MoeStage moe_;
  CpuSparseOps sparse_;
  CpuCompressedOps compressed_;
  Floats norm_scratch_;  // [threads, cols]
};

}  // namespace deepinfer::cpu
