// Hyper-parameters of DeepSeek V3 (latent attention, experts chosen by groups) from config.json, in
// the spelling of the release and in that of transformers. Plain data, read-only after reading.
#pragma once

#include "base/json.h"
#include "deepinfer/status.h"
#include "models/config_reader.h"
#include "models/model_config.h"

namespace deepinfer {

struct DeepseekV3Config {
  int layers = 0;
  int hidden = 0;
  int vocab = 0;
  int heads = 0;
  int q_lora = 0;  // 0: queries come from the hidden state directly
  int latent = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  int value_dim = 0;
  int intermediate = 0;  // of dense layers
  int dense_layers = 0;  // the first ones; the others have experts
  int experts = 0;
  int top_k = 0;
  int groups = 0;
  int group_top_k = 0;
  int expert_intermediate = 0;
  int shared_intermediate = 0;  // of the shared experts taken together; 0: none
  int draft_layers = 0;         // that a checkpoint may hold beyond `layers`
  bool normalize_top_k = true;
  float routed_scale = 1.0F;
  float norm_eps = 1e-6F;
  float softmax_scale = 0.0F;
  RopeConfig rope;

  int head_dim() const { return nope_dim + rope_dim; }
};

Result<DeepseekV3Config> ReadDeepseekV3Config(const Json& config);

// What both generations say about rotation: `params` holds rope_theta and the scaling (theta may
// also stand outside: `theta`). Fills all of `rope` but the style. `mscale_all_dim` gets the field
// of that name, 0 when absent.
void ReadRopeFields(ConfigReader* params, double theta, int dim, int64_t context_max,
                    RopeConfig* rope, double* mscale_all_dim);
// YaRN's factor on the magnitude of attention: 0.1 m ln(factor) + 1.
double YarnMagnitude(double factor, double m);

}  // namespace deepinfer
