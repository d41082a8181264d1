// DeepSeek V3: latent attention, dense layers first, then experts chosen by groups beside shared
// ones. Created by LoadModel; the runner thread makes every call; the backend outlives it.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "models/checkpoint.h"
#include "models/deepseek_v3/config.h"
#include "models/deepseek_v3/weights.h"
#include "models/model.h"
#include "models/registry.h"
#include "models/step_memory.h"

namespace deepinfer {

class DeepseekV3Model final : public Model {
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
  DeepseekV3Model(const Checkpoint& checkpoint, Backend* backend, DeepseekV3Config config,
                  DeepseekV3Weights weights);
  void CreateActivations();
  void ReserveBuffers(int tokens);
  void RunAttention(const StepInput& step, int layer);
  void ProjectQueries(const DeepseekV3Layer& layer, int tokens);
  void RunGated(const Weight* gate, const Weight* up, const Weight* down, int tokens);
  void RunExperts(const DeepseekV3Layer& layer, int tokens);

  Backend* backend_;
  DeepseekV3Config config_;
  ModelInfo info_;
  CacheLayout layout_;
  DeepseekV3Weights weights_;

  // Inputs of the linear stages, by width: stages of one width are never alive at once.
  ActivationSet inputs_;
  Activation* hidden_input_ = nullptr;
  Activation* query_input_ = nullptr;  // of the low-rank query; nullptr without one
  Activation* o_input_ = nullptr;
  Activation* dense_input_ = nullptr;   // of down; nullptr without a dense layer
  Activation* shared_input_ = nullptr;  // of the shared down; nullptr without shared experts
  Activation* head_input_ = nullptr;
  // [tokens, *], grown to the largest step seen.
  std::vector<float> hidden_, low_query_, q_, kv_, attention_, ffn_;
};

}  // namespace deepinfer
