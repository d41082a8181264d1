// DeepSeek V4: residual streams mixed by hyper-connections; attention over a window and compressed
// entries of the past; hashed and chosen experts beside a shared one.
// Created by LoadModel; the runner thread makes every call; the backend outlives it.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/compressed_ops.h"
#include "models/checkpoint.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/weights.h"
#include "models/model.h"
#include "models/registry.h"
#include "models/step_memory.h"

namespace deepinfer {

class DeepseekV4Model final : public Model {
 public:
  static Result<std::unique_ptr<Model>> Load(const Checkpoint& checkpoint, Backend* backend,
                                             const LoadProgress& progress);
  static Result<CacheLayout> LayoutOf(const Checkpoint& checkpoint, int kv_element_bytes);

  const ModelInfo& info() const override { return info_; }
  const CacheLayout& cache_layout() const override { return cache_.layout; }
  const float* Forward(const StepInput& step) override;
  void Head(const float* hidden, const int32_t* row_index, int rows, float* logits) override;
  DraftInfo draft_info() const override;
  void EnableDrafting() override { drafting_ = weights_.draft != nullptr; }
  void DraftBlock(const DraftInput& input, const DraftOutput& output) override;

 private:
  // Where a layer keeps its rows.
  struct Place {
    int window = 0;        // layer of the window ring
    int entries_ring = 0;  // layer of the ring of its compressor
    int entries = 0;       // layer of its history group
    int keys_ring = 0;
    int keys = 0;
  };

  // Groups of the layout; those of a kind without layers are not used.
  struct Groups {
    int ring = 0;
    int history = 0;
  };

  struct CachePlan {
    CacheLayout layout;
    std::vector<Place> places;  // of the layers
    int window_ring = 0;
    int draft_ring = 0;  // of streams
    Groups chosen, every, keys;
  };

  // A layer with everything that tells it from others.
  struct LayerRef {
    const DeepseekV4Layer* weights = nullptr;
    DeepseekV4Config::Layer kind;
    Place place;
  };

  DeepseekV4Model(const Checkpoint& checkpoint, Backend* backend, DeepseekV4Config config,
                  DeepseekV4Weights weights);
  // `draft_layers`: 0 or 1.
  static CachePlan PlanCache(const DeepseekV4Config& config, int draft_layers, int element_bytes);
  static void AddCompressedGroups(const DeepseekV4Config& config, DeepseekV4Config::Past past,
                                  int ratio, int element_bytes, CachePlan* plan);
  void CreateActivations();
  void ReserveBuffers(int tokens);
  void EnterSite(const HyperWeights& hyper, const Weight* norm, int tokens);
  void LeaveSite(int tokens);
  LayerRef Layer(int index) const;
  LayerRef DraftLayer() const;
  void RunLayer(const StepInput& step, const LayerRef& layer);
  void ProjectInputs(const DeepseekV4Layer& layer, int tokens);
  void RunCompressors(const StepInput& step, const LayerRef& layer);
  void AttendAndProject(const StepInput& step, const LayerRef& layer);
  void RunExperts(const StepInput& step, const LayerRef& layer);
  WindowAttentionSpec WindowOf(const LayerRef& layer) const;
  void CollapseStreams(const HyperWeights& hyper, int tokens);

  // The draft layer (model_draft.cc). Its streams and rows stand in for the model's while it runs.
  void MixPairs(const PairStep& pairs);
  void FillDraftRings(const StepInput& step);
  StepInput AnchorStep(const DraftInput& input);
  TailRope RopeOf(const DeepseekV4Config::Layer& kind) const;
  StreamShape Shape(int tokens) const {
    return {.rows = tokens, .streams = config_.streams, .hidden = config_.hidden};
  }

  Backend* backend_;
  DeepseekV4Config config_;
  ModelInfo info_;
  CachePlan cache_;
  bool drafting_ = false;
  DeepseekV4Weights weights_;

  // Inputs of the linear stages, by width: stages of one width are never alive at once.
  ActivationSet inputs_;
  Activation* streams_input_ = nullptr;
  Activation* hidden_input_ = nullptr;
  Activation* query_input_ = nullptr;
  Activation* o_input_ = nullptr;
  Activation* shared_input_ = nullptr;
  Activation* head_input_ = nullptr;
  // [tokens, *], grown to the largest step seen.
  std::vector<float> x_, raw_, pre_, post_, comb_, u_, y_;
  std::vector<float> low_query_, q_, kv_, attention_, ffn_;
  std::vector<float> entry_kv_, entry_gate_, key_kv_, key_gate_, index_q_, index_weight_;
  std::vector<int32_t> selected_, selected_count_;
  // Of the draft layer: streams, collapsed rows, logits, the arrays of its step.
  std::vector<float> draft_x_, draft_u_, draft_logits_;
  std::vector<int32_t> anchor_position_, anchor_row_, anchor_start_;
  std::vector<TokenKind> anchor_kind_;
};

}  // namespace deepinfer
