#include "models/deepseek_v41/v41_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "backend/sparse_ops.h"
#include "backend/step_input.h"
#include "base/format.h"
#include "models/config_check.h"
#include "models/config_reader.h"
#include "models/model_config.h"

namespace deepinfer {
namespace {

constexpr int64_t kBlock = 32;  // elements that share a scale in cache rows
constexpr int64_t kTableRowsMax = int64_t{1} << 40;

int Narrow(int64_t value) { return static_cast<int>(value); }

void ReadShape(ConfigReader* in, V41Config* c) {
  c->vocab = Narrow(in->Int("vocab_size", 1, kVocabMax));
  c->hidden = Narrow(in->Int("hidden_size", 1, kWidthMax));
  c->layers = Narrow(in->Int("num_hidden_layers", 1, kLayersMax));
  c->context_max = Narrow(in->IntOr("max_position_embeddings", 1 << 20, 1, kContextMax));
  c->heads = Narrow(in->Int("num_attention_heads", 1, 4096));
  in->IntOr("num_key_value_heads", 1, 1, 1);
  c->head_dim = Narrow(in->Int("head_dim", kBlock, kHeadDimMax));
  c->rope_dim = Narrow(in->Int("qk_rope_head_dim", 2, 512));
  c->q_rank = Narrow(in->Int("q_lora_rank", 1, kWidthMax));
  c->groups = Narrow(in->Int("o_groups", 1, 4096));
  c->o_rank = Narrow(in->Int("o_lora_rank", 1, kWidthMax));
  c->window = Narrow(in->Int("sliding_window", 1, 1 << 20));
  c->norm_eps = in->Number("rms_norm_eps", 0.0, 1.0);
  if (!in->ok()) return;
  if (c->head_dim % kBlock != 0) {
    in->Refuse("head_dim", Format("{} is {}; a multiple of {} is needed", in->Name("head_dim"),
                                  c->head_dim, kBlock));
  }
  if (c->rope_dim % 2 != 0 || c->rope_dim > c->head_dim) {
    in->Refuse("qk_rope_head_dim",
               Format("{} is {}; an even number of at most head_dim {} is needed",
                      in->Name("qk_rope_head_dim"), c->rope_dim, c->head_dim));
  }
  if (c->heads % c->groups != 0) {
    in->Refuse("o_groups", Format("{} is {}; {} heads are not a multiple of it",
                                  in->Name("o_groups"), c->groups, c->heads));
  }
  if (int64_t{c->heads} * c->head_dim > kWidthMax) {
    in->Refuse("num_attention_heads",
               Format("{} heads of {} are wider than {}", c->heads, c->head_dim, kWidthMax));
  }
  in->Only("hidden_act", "silu");
  if (in->BoolOr("attention_bias", false)) {
    in->Refuse("attention_bias",
               Format("{} is true; false is supported", in->Name("attention_bias")));
  }
}

// Both spellings: rope_theta with rope_scaling (type or rope_type), and rope_parameters, which may
// have an entry per kind of layer ("main", "compress").
void ReadRope(const Json& text, ConfigReader* in, V41Config* c) {
  const auto object = [](const Json& from, std::string_view key) -> const Json* {
    const Json* found = from.Find(key);
    return found != nullptr && found->is_object() ? found : nullptr;
  };
  const Json* parameters = object(text, "rope_parameters");
  const Json* main_part = parameters == nullptr ? nullptr : object(*parameters, "main");
  const Json* compress_part = parameters == nullptr ? nullptr : object(*parameters, "compress");
  const Json* scaling_part = compress_part != nullptr ? compress_part
                             : parameters != nullptr  ? parameters
                                                      : object(text, "rope_scaling");
  ConfigReader scaling(scaling_part,
                       in->Name(parameters != nullptr ? "rope_parameters." : "rope_scaling."));
  ConfigReader main(main_part, in->Name("rope_parameters.main."));
  const double flat_theta = parameters != nullptr && main_part == nullptr
                                ? scaling.NumberOr("rope_theta", 10000.0, 1.0, 1e15)
                                : 10000.0;
  RopeConfig rope;
  rope.dim = c->rope_dim;
  rope.theta =
      in->NumberOr("rope_theta", main.NumberOr("rope_theta", flat_theta, 1.0, 1e15), 1.0, 1e15);
  const auto compute = [&](std::vector<float>* out) {
    const Status status = ComputeRope(&rope, {});
    if (!status.ok()) in->Refuse("rope_theta", status.message());
    *out = rope.inv_freq;
  };
  if (in->ok() && main.ok() && scaling.ok()) compute(&c->main_rope);
  const double compress_flat =
      compress_part != nullptr ? scaling.NumberOr("rope_theta", 160000.0, 1.0, 1e15) : 160000.0;
  rope.theta = in->NumberOr("compress_rope_theta", compress_flat, 1.0, 1e15);
  const std::string type = scaling.StringOr("rope_type", scaling.StringOr("type", "default"));
  if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.factor = scaling.Number("factor", 0.0, 1e6);
    rope.beta_fast = scaling.NumberOr("beta_fast", 32.0, 0.0, 1e6);
    rope.beta_slow = scaling.NumberOr("beta_slow", 1.0, 0.0, 1e6);
    rope.original_context = scaling.Int("original_max_position_embeddings", 1, kContextMax);
  } else if (type != "default") {
    scaling.Refuse("rope_type", Format("{} is \"{}\"; yarn and default are supported",
                                       scaling.Name("rope_type"), type));
  }
  for (const ConfigReader* part : {&scaling, &main}) {
    if (!part->ok()) in->Refuse("rope_scaling", part->status().message());
  }
  if (in->ok()) compute(&c->compress_rope);
}

std::vector<int> LayerIds(ConfigReader* in, std::string_view key, int layers) {
  std::vector<int> ids;
  for (const int64_t id : in->Ints(key, 0, layers - 1, kLayersMax)) {
    if (!ids.empty() && id <= ids.back()) {
      in->Refuse(key, Format("{} must ascend; {} follows {}", in->Name(key), id, ids.back()));
    }
    ids.push_back(Narrow(id));
  }
  return ids;
}

// Which layer reads whose entries and whose selection.
void ReadRoles(ConfigReader* in, V41Config* c) {
  // A layer past the end of the list has ratio 0; the list goes on over the draft layers.
  const std::vector<int64_t> ratios = in->Ints("compress_ratios", 0, 2, kLayersMax);
  c->kv_sources = LayerIds(in, "kv_source_layer_ids", c->layers);
  c->index_sources = LayerIds(in, "index_source_layer_ids", c->layers);
  if (!in->ok()) return;
  for (size_t i = static_cast<size_t>(c->layers); i < ratios.size(); ++i) {
    if (ratios[i] == 0) continue;
    in->Refuse("compress_ratios",
               Format("{} has {} for layer {}; layers from num_hidden_layers {} on are draft "
                      "layers, of ratio 0",
                      in->Name("compress_ratios"), ratios[i], i, c->layers));
    return;
  }
  c->roles.resize(static_cast<size_t>(c->layers));
  const auto before = [](const std::vector<int>& ids, int layer) {
    const auto after = std::upper_bound(ids.begin(), ids.end(), layer);
    return after == ids.begin() ? -1 : *(after - 1);
  };
  for (int layer = 0; layer < c->layers; ++layer) {
    V41LayerRole& role = c->roles[static_cast<size_t>(layer)];
    role.ratio =
        static_cast<size_t>(layer) < ratios.size() ? Narrow(ratios[static_cast<size_t>(layer)]) : 0;
    const bool source = before(c->kv_sources, layer) == layer;
    const bool index = before(c->index_sources, layer) == layer;
    if (role.ratio == 0) {
      if (source || index) {
        in->Refuse(source ? "kv_source_layer_ids" : "index_source_layer_ids",
                   Format("layer {} is a source but its ratio in compress_ratios is 0", layer));
      }
      continue;
    }
    role.kv_source = before(c->kv_sources, layer);
    role.index_source = before(c->index_sources, layer);
    if (role.kv_source < 0 || role.index_source < role.kv_source) {
      in->Refuse("compress_ratios", Format("layer {} has ratio {} but no source of entries and "
                                           "selection before it",
                                           layer, role.ratio));
      return;
    }
    if (c->roles_of(role.kv_source).ratio != role.ratio) {
      in->Refuse("compress_ratios",
                 Format("layer {} has ratio {}, its source, layer {}, has {}", layer, role.ratio,
                        role.kv_source, c->roles_of(role.kv_source).ratio));
      return;
    }
    if (role.ratio == 1 && c->boundary < 0) c->boundary = layer;
  }
  for (int layer = std::max(c->boundary, 0); c->boundary >= 0 && layer < c->layers; ++layer) {
    if (c->roles_of(layer).ratio == 2) {
      in->Refuse("compress_ratios",
                 Format("layer {} has ratio 2 behind layer {} of ratio 1", layer, c->boundary));
    }
  }
}

void ReadIndex(ConfigReader* in, V41Config* c) {
  if (c->kv_sources.empty()) return;
  c->index_heads = Narrow(in->Int("index_n_heads", 1, 4096));
  c->index_dim = Narrow(in->Int("index_head_dim", kBlock, 512));
  c->index_top_k = Narrow(in->Int("index_topk", 1, 1 << 16));
  c->candidate_source = Narrow(in->IntOr("candidate_source_layer_id", -1, -1, c->layers - 1));
  if (c->candidate_source >= 0) {
    c->candidate_blocks = Narrow(in->Int("candidate_topk_blocks", 1, 1 << 20));
    c->candidate_block_size = Narrow(in->Int("candidate_block_size", 1, 1 << 16));
  }
  if (!in->ok()) return;
  if (c->index_dim % kBlock != 0 || c->rope_dim > c->index_dim) {
    in->Refuse("index_head_dim",
               Format("{} is {}; a multiple of {} that holds the {} rotated "
                      "elements is needed",
                      in->Name("index_head_dim"), c->index_dim, kBlock, c->rope_dim));
  }
  if (c->candidate_source >= 0 && !c->IsIndexSource(c->candidate_source)) {
    in->Refuse("candidate_source_layer_id",
               Format("{} is {}, which is not in index_source_layer_ids",
                      in->Name("candidate_source_layer_id"), c->candidate_source));
  }
  for (const int layer : c->index_sources) {
    if (c->candidate_source < 0 || layer <= c->candidate_source) continue;
    if (c->roles_of(layer).kv_source != c->roles_of(c->candidate_source).kv_source) {
      in->Refuse("index_source_layer_ids",
                 Format("layer {} chooses among the candidates of layer {} but reads other entries",
                        layer, c->candidate_source));
    }
  }
}

void ReadExperts(ConfigReader* in, V41Config* c) {
  c->experts.experts = Narrow(in->Int("n_routed_experts", 1, kExpertsMax));
  c->experts.top_k = Narrow(in->Int("num_experts_per_tok", 1, c->experts.experts));
  c->expert_hidden = Narrow(in->Int("moe_intermediate_size", 1, kWidthMax));
  c->shared_expert = in->IntOr("n_shared_experts", 1, 0, 1) == 1;
  c->route_scale = in->NumberOr("routed_scaling_factor", 1.0, 0.0, 1e3);
  c->normalize_top_k = in->BoolOr("norm_topk_prob", true);
  c->swiglu_limit = in->NumberOr("swiglu_limit", 0.0, 0.0, 1e6);
  in->Only("scoring_func", "sqrtsoftplus");
  in->Only("topk_method", "noaux_tc");
  in->IntOr("num_hash_layers", 0, 0, 0);
  if (in->NumberOr("gate_temp", 1.0, 0.0, 1e6) != 1.0) {
    in->Refuse("gate_temp", Format("{} is not 1; 1 is supported", in->Name("gate_temp")));
  }
  c->streams = Narrow(in->Int("hc_mult", 1, kStreamsMax));
  c->sinkhorn_iters = Narrow(in->Int("hc_sinkhorn_iters", 1, 1000));
  c->hc_eps = in->Number("hc_eps", 0.0, 1.0);
}

void ReadNgramShape(ConfigReader* in, V41Config* c) {
  const std::vector<int> layers = LayerIds(in, "engram_layer_ids", c->layers);
  if (layers.empty() || !in->ok()) return;
  c->ngram.ngram = Narrow(in->Int("engram_max_ngram_size", 2, kLeadTokens + 1));
  c->ngram.heads = Narrow(in->Int("engram_n_heads", 1, 1024));
  c->ngram.head_dim = Narrow(in->Int("engram_head_dim", kBlock, 1 << 16));
  const std::vector<int64_t> rows = in->Ints("engram_num_embeddings", 1, kTableRowsMax, kLayersMax);
  if (in->ok() && rows.size() != layers.size()) {
    in->Refuse("engram_num_embeddings",
               Format("{} has {} numbers for {} layers of engram_layer_ids",
                      in->Name("engram_num_embeddings"), rows.size(), layers.size()));
  }
  if (c->boundary >= 0 && layers.back() >= c->boundary) {
    in->Refuse("engram_layer_ids",
               Format("layer {} lies behind the boundary layer {}", layers.back(), c->boundary));
  }
  if (!in->ok()) return;
  for (size_t i = 0; i < layers.size(); ++i) {
    c->ngram.tables.push_back({.layer = layers[i], .rows = rows[i]});
  }
}

void ReadDraft(ConfigReader* in, V41Config* c) {
  V41Draft& draft = c->draft;
  draft.layers = Narrow(in->IntOr("num_nextn_predict_layers", 0, 0, 64));
  if (draft.layers == 0) return;
  draft.block = Narrow(in->Int("dspark_block_size", 1, 64));
  draft.noise_id = Narrow(in->Int("dspark_noise_token_id", 0, c->vocab - 1));
  draft.target_layers = LayerIds(in, "dspark_target_layer_ids", c->layers);
  draft.markov_rank = Narrow(in->Int("dspark_markov_rank", 1, kWidthMax));
  draft.experts.experts = Narrow(in->Int("dspark_n_routed_experts", 1, kExpertsMax));
  draft.experts.top_k = Narrow(in->Int("dspark_num_experts_per_tok", 1, draft.experts.experts));
  if (!in->ok()) return;
  if (draft.target_layers.empty() ||
      (c->boundary >= 0 && draft.target_layers.front() < c->boundary)) {
    in->Refuse("dspark_target_layer_ids",
               Format("{} must name layers from {} on", in->Name("dspark_target_layer_ids"),
                      std::max(c->boundary, 0)));
  }
}

void CheckQuantization(const Json* quantization, ConfigReader* in) {
  if (quantization == nullptr || quantization->is_null()) return;
  ConfigReader q(quantization, "quantization_config.");
  q.Only("quant_method", "fp8");
  q.Only("scale_fmt", "ue8m0");
  q.Only("expert_dtype", "fp4");
  if (!q.ok()) in->Refuse("quantization_config", q.status().message());
}

}  // namespace

Result<V41Config> ReadV41Config(const Json& config) {
  const Json* nested = config.Find("text_config");
  const bool is_nested = nested != nullptr && nested->is_object();
  const Json& text = is_nested ? *nested : config;
  ConfigReader in(&text, is_nested ? "text_config." : "");
  V41Config c;
  ReadShape(&in, &c);
  if (in.ok()) ReadRope(text, &in, &c);
  if (in.ok()) ReadRoles(&in, &c);
  if (in.ok()) ReadIndex(&in, &c);
  if (in.ok()) ReadExperts(&in, &c);
  if (in.ok()) ReadNgramShape(&in, &c);
  if (in.ok()) ReadDraft(&in, &c);
  const Json* quantization = config.Find("quantization_config");
  CheckQuantization(quantization != nullptr ? quantization : text.Find("quantization_config"), &in);
  DI_TRY(in.status());
  ConfigReader top(&config, "");
  c.image_id = Narrow(top.IntOr("image_token_id", -1, -1, c.vocab - 1));
  if (top.BoolOr("tie_word_embeddings", false)) {
    top.Refuse("tie_word_embeddings", "tie_word_embeddings is true; false is supported");
  }
  DI_TRY(top.status());
  return c;
}

}  // namespace deepinfer
