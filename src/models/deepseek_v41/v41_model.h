// DeepSeek-V4.1: causal encoder-decoder over one shared compressed cache, hyper-connected streams,
// n-gram memory and DSpark draft layers. Created by LoadModel; the runner thread makes every call;
// the backend outlives it.
#pragma once

#include <memory>
#include <vector>

#include "backend/sparse_ops.h"
#include "models/deepseek_v41/v41_config.h"
#include "models/deepseek_v41/v41_weights.h"
#include "models/model.h"
#include "models/step_memory.h"

namespace deepinfer {

// What a layer computed, for whoever compares layers with a reference. Valid during the call.
struct V41LayerView {
  int layer = 0;
  const StepInput* step = nullptr;    // its tokens: the suffix alone behind the boundary
  const float* streams = nullptr;     // [tokens, streams, hidden]
  const float* pre = nullptr;         // [tokens, streams]
  const float* output = nullptr;      // [tokens, hidden] of attention, or of the experts
  const int32_t* selected = nullptr;  // [tokens, top_k] after attention, nullptr without entries
  const int32_t* selected_count = nullptr;
  const int32_t* candidate = nullptr;  // [tokens, candidate blocks]
  const int32_t* candidate_count = nullptr;
  const int64_t* table_rows = nullptr;  // [tokens, columns] of a layer with n-gram memory
};
class V41Probe {
 public:
  virtual ~V41Probe() = default;
  virtual void OnInput(const V41LayerView& view) = 0;      // before attention
  virtual void OnAttention(const V41LayerView& view) = 0;  // streams as before it
  virtual void OnOutput(const V41LayerView& view) = 0;     // after the experts
};

class V41Model final : public Model {
 public:
  static Result<std::unique_ptr<Model>> Load(const Checkpoint& checkpoint, Backend* backend,
                                             const LoadProgress& progress);
  static Result<CacheLayout> LayoutOf(const Checkpoint& checkpoint, int kv_element_bytes);

  const ModelInfo& info() const override { return info_; }
  const CacheLayout& cache_layout() const override { return cache_.layout; }
  const float* Forward(const StepInput& step) override;
  void Head(const float* hidden, const int32_t* row_index, int rows, float* logits) override;
  TableStats table_stats() const override;
  DraftInfo draft_info() const override;
  void EnableDrafting() override { drafting_ = !weights_.draft.layers.empty(); }
  void DraftBlock(const DraftInput& input, const DraftOutput& output) override;

  const V41Config& config() const { return config_; }
  const V41Weights& weights() const { return weights_; }
  void SetProbe(V41Probe* probe) { probe_ = probe; }  // nullptr: none

 private:
  V41Model(const Checkpoint& checkpoint, V41Config config, Backend* backend, V41Weights weights);
  struct Source {
    HistoryRows entries, keys;
    int tail_layer = 0;
  };
  struct CachePlan {
    CacheLayout layout;
    // Groups of the layout; -1: the model has none.
    int window_group = -1, tail_group = -1, ngram_group = -1, draft_group = -1;
    std::vector<Source> sources;  // [layers], meaningful for layers that own entries
  };
  static CachePlan PlanCache(const V41Config& config, int draft_layers);
  void CreateActivations();
  void Reserve(int tokens);
  StreamShape Shape(int tokens) const;

  void RunNgram(const StepInput& step, size_t table);
  void RunLayer(const StepInput& step, int index);
  void NormedInput(const StepInput& step, const Weight& norm, const std::vector<float>& pre,
                   Activation* out);
  void Mix(int tokens, const V41Site& site, std::vector<float>* pre);
  void Publish(const StepInput& step, int index);
  StepInput CutToSuffix(const StepInput& suffix, const int32_t* index);
  void RunAttention(const StepInput& step, int index);
  void RunSelection(const StepInput& step, int index);
  void RunExperts(const V41Block& block, const V41Experts& experts, const TokenKind* kind,
                  int tokens);
  void ProjectOut(const V41Block& block, int tokens);
  WindowSpec Window(const V41Block& block, bool compressed) const;
  V41LayerView View(const StepInput& step, int index) const;

  void WriteDraftContext(const StepInput& step);
  void RunDraftLayer(const DraftInput& input, int index);
  void ChooseDrafts(const DraftInput& input, const DraftOutput& output);
  void ChoosePlace(const DraftInput& input, const DraftOutput& output, int place, int row);

  Backend* backend_;
  SparseOps* ops_;
  V41Config config_;
  ModelInfo info_;
  V41Weights weights_;
  V41Probe* probe_ = nullptr;
  bool drafting_ = false;

  CachePlan cache_;

  std::vector<std::unique_ptr<Activation>> inputs_;
  Activation* mix_input_ = nullptr;     // flattened streams
  Activation* hidden_input_ = nullptr;  // of attention and experts
  Activation* rank_input_ = nullptr;    // of wq_b and the index queries
  Activation* out_input_ = nullptr;     // of wo_b
  Activation* latent_input_ = nullptr;
  Activation* table_input_ = nullptr;
  Activation* shared_input_ = nullptr;
  Activation* head_input_ = nullptr;
  Activation* tap_input_ = nullptr;
  Activation* markov_input_ = nullptr;

  // [tokens, *], grown to the largest step seen.
  std::vector<float> streams_, pre_, attn_pre_, post_, comb_, raw_;
  std::vector<float> embedded_, collapsed_, rank_, q_, kv_, attention_, output_, shared_;
  std::vector<float> pool_k_, pool_gate_, latent_, key_, index_q_, index_weight_;
  std::vector<float> table_values_, table_kv_, taps_, hidden_;
  std::vector<std::byte> window_rows_;
  std::vector<int32_t> selected_, selected_count_, candidate_, candidate_count_;
  std::vector<std::vector<int64_t>> table_rows_;  // per table
  std::vector<float> suffix_scratch_;

  // DraftBlock.
  std::vector<int32_t> draft_token_, head_rows_, previous_;
  std::vector<TokenKind> draft_kind_;
  std::vector<float> draft_logits_, markov_;
};

}  // namespace deepinfer
