// Hyper-parameters of DeepSeek V4 from config.json, in the spelling of the release
// (`compress_ratios`, `num_hash_layers`, `rope_scaling`) and in that of transformers (`layer_types`
// with `compress_rates`, `mlp_layer_types`, `rope_parameters`). Plain data, read-only after
// reading.
#pragma once

#include <vector>

#include "base/json.h"
#include "deepinfer/status.h"
#include "models/model_config.h"

namespace deepinfer {

struct DeepseekV4Config {
  enum class Past {
    kNone,        // the window is all that a layer sees
    kChosen,      // entries of overlapping windows, the best of them (CSA)
    kEveryEntry,  // entries of wide windows, all of them (HCA)
  };
  struct Layer {
    Past past = Past::kNone;
    int ratio = 0;        // tokens per entry
    bool hashed = false;  // experts are a function of the token
  };
  // What the activations are rounded to. The released weights were trained with rounding; a
  // transformers checkpoint describes the model without it. A `quantization_config` tells which.
  enum class Rounding { kNone, kAsTrained };

  int layers = 0;
  int hidden = 0;
  int vocab = 0;
  int heads = 0;
  int head_dim = 0;
  int rope_dim = 0;
  int q_lora = 0;
  int output_groups = 0;
  int output_lora = 0;
  int window = 0;
  int index_heads = 0;
  int index_dim = 0;
  int index_top_k = 0;
  int experts = 0;
  int top_k = 0;
  int expert_intermediate = 0;
  int shared_intermediate = 0;
  bool normalize_top_k = true;
  float routed_scale = 1.0F;
  float gate_limit = 0.0F;  // 0: none
  int streams = 0;
  int sinkhorn_iterations = 0;
  int draft_layers = 0;  // that the configuration names; the first is run if it is there
  float hc_eps = 1e-6F;
  float norm_eps = 1e-6F;
  Rounding rounding = Rounding::kNone;
  std::vector<Layer> layer;
  RopeConfig main_rope;      // of layers without entries
  RopeConfig compress_rope;  // of the others

  int CountOf(Past past) const;
  bool HasEntries() const { return CountOf(Past::kNone) < layers; }
};

Result<DeepseekV4Config> ReadDeepseekV4Config(const Json& config);

}  // namespace deepinfer
