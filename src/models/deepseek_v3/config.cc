#include "models/deepseek_v3/config.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "models/config_check.h"

namespace deepinfer {
namespace {

constexpr int kGroupsMax = 64;

int Width(ConfigReader* reader, std::string_view key) {
  return static_cast<int>(reader->Int(key, 1, kWidthMax));
}

void ReadAttention(ConfigReader* reader, DeepseekV3Config* c) {
  c->heads = Width(reader, "num_attention_heads");
  if (reader->Has("q_lora_rank")) c->q_lora = Width(reader, "q_lora_rank");
  c->latent = Width(reader, "kv_lora_rank");
  c->nope_dim = static_cast<int>(reader->Int("qk_nope_head_dim", 1, kHeadDimMax));
  c->rope_dim = static_cast<int>(reader->Int("qk_rope_head_dim", 2, kHeadDimMax));
  c->value_dim = static_cast<int>(reader->Int("v_head_dim", 1, kHeadDimMax));
  if (c->rope_dim % 2 != 0) {
    reader->Refuse("qk_rope_head_dim",
                   Format("qk_rope_head_dim is {}; it must be even", c->rope_dim));
  }
  if (int64_t{c->heads} * c->head_dim() > kWidthMax) {
    reader->Refuse("num_attention_heads",
                   Format("{} heads of {} are {} wide; at most {} is supported", c->heads,
                          c->head_dim(), int64_t{c->heads} * c->head_dim(), kWidthMax));
  }
  if (reader->BoolOr("attention_bias", false)) {
    reader->Refuse("attention_bias", "attention_bias is true; biases are not supported");
  }
}

void ReadExperts(ConfigReader* reader, DeepseekV3Config* c) {
  c->experts = static_cast<int>(reader->Int("n_routed_experts", 1, kExpertsMax));
  c->top_k = static_cast<int>(reader->Int("num_experts_per_tok", 1, c->experts));
  c->groups = static_cast<int>(reader->IntOr("n_group", 1, 1, std::min(c->experts, kGroupsMax)));
  c->group_top_k = static_cast<int>(reader->IntOr("topk_group", 1, 1, c->groups));
  c->expert_intermediate = Width(reader, "moe_intermediate_size");
  const int64_t shared = reader->IntOr("n_shared_experts", 0, 0, kExpertsMax);
  if (shared * c->expert_intermediate > kWidthMax) {
    reader->Refuse("n_shared_experts", Format("{} shared experts of {}; at most {} in all", shared,
                                              c->expert_intermediate, kWidthMax));
    return;
  }
  c->shared_intermediate = static_cast<int>(shared) * c->expert_intermediate;
  c->dense_layers = static_cast<int>(reader->IntOr("first_k_dense_replace", 0, 0, c->layers));
  if (c->dense_layers > 0) c->intermediate = Width(reader, "intermediate_size");
  c->normalize_top_k = reader->BoolOr("norm_topk_prob", true);
  c->routed_scale = static_cast<float>(reader->NumberOr("routed_scaling_factor", 1.0, 0.0, 1e6));
  reader->Only("scoring_func", "sigmoid");
  reader->Only("topk_method", "noaux_tc");
  if (reader->IntOr("moe_layer_freq", 1, 1, kLayersMax) != 1) {
    reader->Refuse("moe_layer_freq",
                   "moe_layer_freq is not 1; every layer after the dense ones "
                   "must have experts");
  }
  if (c->experts % c->groups != 0) {
    reader->Refuse("n_group", Format("n_group is {}; it must divide the {} experts of "
                                     "n_routed_experts",
                                     c->groups, c->experts));
  } else if (c->top_k > c->group_top_k * (c->experts / c->groups)) {
    reader->Refuse("topk_group",
                   Format("topk_group is {}: {} groups of {} experts hold fewer than the {} of "
                          "num_experts_per_tok",
                          c->group_top_k, c->group_top_k, c->experts / c->groups, c->top_k));
  }
}

}  // namespace

double YarnMagnitude(double factor, double m) {
  return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

void ReadRopeFields(ConfigReader* params, double theta, int dim, int64_t context_max,
                    RopeConfig* rope, double* mscale_all_dim) {
  rope->dim = dim;
  rope->theta = params->NumberOr("rope_theta", theta, 0.0, 1e12);
  *mscale_all_dim = 0.0;
  const std::string type = params->StringOr("rope_type", params->StringOr("type", "default"));
  if (type == "default") return;
  if (type != "yarn") {
    params->Refuse("rope_type", Format("{} is \"{}\"; default and yarn are supported",
                                       params->Name("rope_type"), type));
    return;
  }
  rope->scaling = RopeScaling::kYarn;
  rope->factor = params->Number("factor", 0.0, 1e6);
  rope->original_context =
      params->IntOr("original_max_position_embeddings", context_max, 1, kContextMax);
  rope->beta_fast = params->NumberOr("beta_fast", 32.0, 0.0, 1e6);
  rope->beta_slow = params->NumberOr("beta_slow", 1.0, 0.0, 1e6);
  rope->truncate = params->BoolOr("truncate", true);
  // Zero is spelled out in some files and means absent.
  const auto optional = [params](std::string_view key) {
    return params->NumberOr(key, 0.0, -1e-9, 1e3);
  };
  const double mscale = optional("mscale");
  *mscale_all_dim = optional("mscale_all_dim");
  const double computed =
      mscale > 0.0 && *mscale_all_dim > 0.0
          ? YarnMagnitude(rope->factor, mscale) / YarnMagnitude(rope->factor, *mscale_all_dim)
          : YarnMagnitude(rope->factor, 1.0);
  rope->attention_factor =
      static_cast<float>(params->NumberOr("attention_factor", computed, 0.0, 1e3));
}

Result<DeepseekV3Config> ReadDeepseekV3Config(const Json& config) {
  ConfigReader reader(&config, "");
  DeepseekV3Config c;
  c.layers = static_cast<int>(reader.Int("num_hidden_layers", 1, kLayersMax));
  c.hidden = Width(&reader, "hidden_size");
  c.vocab = static_cast<int>(reader.Int("vocab_size", 1, kVocabMax));
  c.norm_eps = static_cast<float>(reader.NumberOr("rms_norm_eps", 1e-6, 0.0, 1.0));
  c.draft_layers = static_cast<int>(reader.IntOr("num_nextn_predict_layers", 0, 0, kLayersMax));
  reader.Only("hidden_act", "silu");
  ReadAttention(&reader, &c);
  ReadExperts(&reader, &c);
  const int64_t context = reader.IntOr("max_position_embeddings", 2048, 1, kContextMax);
  const double theta = reader.NumberOr("rope_theta", 10000.0, 0.0, 1e12);
  c.rope.style =
      reader.BoolOr("rope_interleave", true) ? RopeStyle::kInterleaved : RopeStyle::kHalves;
  DI_TRY(Status(reader.status()));

  const char* where = reader.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  ConfigReader params(reader.Has(where) ? config.Find(where) : nullptr, Format("{}.", where));
  double mscale_all_dim = 0.0;
  ReadRopeFields(&params, theta, c.rope_dim, context, &c.rope, &mscale_all_dim);
  DI_TRY(Status(params.status()));
  DI_TRY(ComputeRope(&c.rope, {}));
  double scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim()));
  if (mscale_all_dim > 0.0) {
    const double magnitude = YarnMagnitude(c.rope.factor, mscale_all_dim);
    scale *= magnitude * magnitude;
  }
  c.softmax_scale = static_cast<float>(scale);
  return c;
}

}  // namespace deepinfer
