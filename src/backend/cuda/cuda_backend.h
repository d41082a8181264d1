// The CUDA device: weights in device memory, stages as launches on one stream. Owned by whoever
// created it; the runner thread makes every call.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "backend/backend.h"
#include "backend/cuda/cuda_attention_stage.h"
#include "backend/cuda/cuda_compressed_ops.h"
#include "backend/cuda/cuda_context.h"
#include "backend/cuda/cuda_latent_stage.h"
#include "backend/cuda/cuda_moe_stage.h"
#include "backend/cuda/cuda_sparse_ops.h"
#include "base/compute_pool.h"

namespace deepinfer::cuda {

class CudaBackend final : public Backend {
 public:
  // Errors: no driver or no card that this build has kernels for (kInternal), a thread count out of
  // range (kInvalid).
  static Result<std::unique_ptr<Backend>> Create(const BackendOptions& options);
  ~CudaBackend() override;

  const BackendInfo& info() const override { return info_; }
  Result<Buffer> Allocate(size_t bytes) override;
  Result<Buffer> AllocateShared(size_t bytes) override;
  int64_t free_bytes() const override;
  void Copy(void* to, const void* from, size_t bytes) override;
  void Synchronize() override;
  Result<std::unique_ptr<Weight>> Bind(const TensorFile& file, const TensorView& view,
                                       WeightRole role) override;
  Result<std::unique_ptr<Weight>> BindExperts(const TensorFile& file,
                                              std::span<const TensorView> experts) override;
  int kv_element_bytes() const override { return context_.float32 ? 4 : 2; }
  std::unique_ptr<Activation> CreateActivation(int64_t cols,
                                               std::span<const Weight* const> readers) override;
  void Embed(const Weight& embedding, const int32_t* token, int tokens, float* out) override;
  void NormQuantize(const float* x, const int32_t* row_index, int rows, const Weight* norm,
                    float eps, Activation* out) override;
  void Linear(const LinearArgs& args) override;
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
    latent_.Run(step, spec, args);
  }
  void Moe(const MoeArgs& args) override { moe_.Run(args); }
  SparseOps* sparse_ops() override { return &sparse_; }
  CompressedOps* compressed_ops() override { return &compressed_; }
  void CopyBlocks(const StepInput& step,
                  std::span<const std::pair<int32_t, int32_t>> pairs) override;
  void ParallelRows(int count, void (*body)(void* context, int i), void* context) override;
  void LendCore() override { pool_.LendCore(); }
  void ReturnCore() override { pool_.ReturnCore(); }

 private:
  CudaBackend(int threads, const BackendOptions& options);

  const BackendOptions::Memory memory_;
  CudaContext context_;
  BackendInfo info_;
  ComputePool pool_;
  CudaAttentionStage attention_;
  CudaLatentStage latent_;
  CudaMoeStage moe_;
  CudaSparseOps sparse_;
  CudaCompressedOps compressed_;
};

}  // namespace deepinfer::cuda
