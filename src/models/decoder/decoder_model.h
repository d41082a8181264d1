// The pre-norm decoder of Llama, Qwen2, Qwen3 and Qwen3-MoE: grouped attention with rope, optional
// biases and per-head norms, gated or sparse feed-forward. The families differ in ModelConfig only.
// Created by LoadModel; the runner thread makes every call; the backend outlives it.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "models/checkpoint.h"
#include "models/decoder/decoder_weights.h"
#include "models/model.h"
#include "models/registry.h"
#include "models/step_memory.h"

namespace deepinfer {

class DecoderModel final : public Model {
 public:
  static Result<std::unique_ptr<Model>> Load(const Checkpoint& checkpoint, Backend* backend,
                                             const LoadProgress& progress);
  static Result<CacheLayout> LayoutOf(const Checkpoint& checkpoint, int kv_element_bytes);

  const ModelInfo& info() const override { return info_; }
  const CacheLayout& cache_layout() const override { return layout_; }
  const float* Forward(const StepInput& step) override;
  void Head(const float* hidden, const int32_t* row_index, int rows, float* logits) override;
  int embedding_size() const override;
  void Embed(const float* hidden, int row, float* out) override;

 private:
  DecoderModel(const Checkpoint& checkpoint, Backend* backend, DecoderWeights weights);
  void CreateActivations();
  void ReserveBuffers(int tokens);
  void RunAttention(const StepInput& step, int layer);
  void RunDenseFfn(const DecoderLayer& layer, int tokens);
  void RunSparseFfn(const DecoderLayer& layer, int tokens);

  Backend* backend_;
  ModelConfig config_;
  ModelInfo info_;
  CacheLayout layout_;
  DecoderWeights weights_;

  // Inputs of the linear stages: of q k v, of o, of gate up and router, of down, of the head.
  // Stages whose inputs have one width share a buffer: no two of them are alive at once.
  Activation* qkv_input_ = nullptr;
  Activation* o_input_ = nullptr;
  Activation* ffn_input_ = nullptr;
  Activation* down_input_ = nullptr;
  Activation* head_input_ = nullptr;
  ActivationSet inputs_;
  // [tokens, *], grown to the largest step seen.
  StepRows hidden_, q_, k_, v_, attention_, ffn_;
};

}  // namespace deepinfer
