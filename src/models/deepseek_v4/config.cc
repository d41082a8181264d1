#include "models/deepseek_v4/config.h"

#include <algorithm>
#include <string>

#include "base/format.h"
#include "models/config_check.h"
#include "models/config_reader.h"
#include "models/deepseek_v3/config.h"

namespace deepinfer {
namespace {

using Past = DeepseekV4Config::Past;

constexpr int kStreamsMax = 8;
constexpr int kChosenRatio = 4;  // in the release's list of ratios
constexpr int kEveryRatio = 128;
constexpr int kRatioMax = 256;

int Width(ConfigReader* reader, std::string_view key) {
  return static_cast<int>(reader->Int(key, 1, kWidthMax));
}

void ReadShape(ConfigReader* reader, DeepseekV4Config* c) {
  c->layers = static_cast<int>(reader->Int("num_hidden_layers", 1, kLayersMax));
  c->hidden = Width(reader, "hidden_size");
  c->vocab = static_cast<int>(reader->Int("vocab_size", 1, kVocabMax));
  c->heads = static_cast<int>(reader->Int("num_attention_heads", 1, kHeadDimMax));
  c->head_dim = static_cast<int>(reader->Int("head_dim", 2, kHeadDimMax));
  c->q_lora = Width(reader, "q_lora_rank");
  c->output_groups = static_cast<int>(reader->Int("o_groups", 1, c->heads));
  c->output_lora = Width(reader, "o_lora_rank");
  c->window = static_cast<int>(reader->Int("sliding_window", 1, 1 << 16));
  c->norm_eps = static_cast<float>(reader->NumberOr("rms_norm_eps", 1e-6, 0.0, 1.0));
  c->streams = static_cast<int>(reader->IntOr("hc_mult", 4, 1, kStreamsMax));
  c->sinkhorn_iterations = static_cast<int>(reader->IntOr("hc_sinkhorn_iters", 20, 1, 1'000));
  c->hc_eps = static_cast<float>(reader->NumberOr("hc_eps", 1e-6, 0.0, 1.0));
  c->draft_layers = static_cast<int>(reader->IntOr("num_nextn_predict_layers", 0, 0, kLayersMax));
  reader->Only("hidden_act", "silu");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (reader->BoolOr(key, false)) {
      reader->Refuse(key, Format("{} is true; biases are not supported", key));
    }
  }
  if (reader->IntOr("num_key_value_heads", 1, 1, kHeadDimMax) != 1) {
    reader->Refuse("num_key_value_heads", "num_key_value_heads is not 1; all heads share a row");
  }
  if (c->heads % c->output_groups != 0) {
    reader->Refuse("o_groups", Format("o_groups is {}; it must divide the {} attention heads",
                                      c->output_groups, c->heads));
  }
  if (int64_t{c->heads} * c->head_dim > kWidthMax ||
      int64_t{c->output_groups} * c->output_lora > kWidthMax) {
    reader->Refuse("num_attention_heads",
                   Format("{} heads of {} or {} output groups of {} are too wide; at most {} is "
                          "supported",
                          c->heads, c->head_dim, c->output_groups, c->output_lora, kWidthMax));
  }
}

void ReadExperts(ConfigReader* reader, DeepseekV4Config* c) {
  c->experts = static_cast<int>(reader->Int("n_routed_experts", 1, kExpertsMax));
  c->top_k = static_cast<int>(reader->Int("num_experts_per_tok", 1, c->experts));
  c->expert_intermediate = Width(reader, "moe_intermediate_size");
  const int64_t shared = reader->IntOr("n_shared_experts", 0, 0, kExpertsMax);
  if (shared * c->expert_intermediate > kWidthMax) {
    reader->Refuse("n_shared_experts", Format("{} shared experts of {}; at most {} in all", shared,
                                              c->expert_intermediate, kWidthMax));
    return;
  }
  c->shared_intermediate = static_cast<int>(shared) * c->expert_intermediate;
  c->normalize_top_k = reader->BoolOr("norm_topk_prob", true);
  c->routed_scale = static_cast<float>(reader->NumberOr("routed_scaling_factor", 1.0, 0.0, 1e6));
  c->gate_limit = static_cast<float>(reader->NumberOr("swiglu_limit", 10.0, 0.0, 1e6));
  reader->Only("scoring_func", "sqrtsoftplus");
  reader->Only("topk_method", "noaux_tc");
}

void ReadRotatedPart(ConfigReader* reader, DeepseekV4Config* c) {
  const double part = reader->NumberOr("partial_rotary_factor", 0.125, 0.0, 1.0);
  c->rope_dim = static_cast<int>(c->head_dim * part);
  if (reader->Has("qk_rope_head_dim")) {
    c->rope_dim = static_cast<int>(reader->Int("qk_rope_head_dim", 2, c->head_dim));
  }
  if (c->rope_dim < 2 || c->rope_dim % 2 != 0) {
    reader->Refuse("qk_rope_head_dim",
                   Format("qk_rope_head_dim is {}; it must be even and 2 at least", c->rope_dim));
  }
}

// Texts of a list with one per layer; empty when absent.
std::vector<std::string> ReadTexts(const Json& config, std::string_view key, int layers,
                                   ConfigReader* reader) {
  std::vector<std::string> texts;
  if (!reader->Has(key)) return texts;
  for (const Json& item : config.Find(key)->items()) texts.push_back(item.string());
  if (texts.size() < static_cast<size_t>(layers)) {
    reader->Refuse(
        key, Format("{} names {} layers; num_hidden_layers is {}", key, texts.size(), layers));
    texts.clear();
  }
  return texts;
}

void ReadLayerTypes(const Json& config, const std::vector<std::string>& types, ConfigReader* reader,
                    DeepseekV4Config* c) {
  ConfigReader rates(reader->Has("compress_rates") ? config.Find("compress_rates") : nullptr,
                     "compress_rates.");
  const auto rate = [&rates](std::string_view key, int fallback) {
    return static_cast<int>(rates.IntOr(key, fallback, 1, kRatioMax));
  };
  const int chosen = rate("compressed_sparse_attention", kChosenRatio);
  const int every = rate("heavily_compressed_attention", kEveryRatio);
  if (!rates.ok()) reader->Refuse("compress_rates", rates.status().message());
  for (size_t i = 0; i < c->layer.size(); ++i) {
    DeepseekV4Config::Layer& layer = c->layer[i];
    if (types[i] == "compressed_sparse_attention") {
      layer = {Past::kChosen, chosen};
    } else if (types[i] == "heavily_compressed_attention") {
      layer = {Past::kEveryEntry, every};
    } else if (types[i] != "sliding_attention") {
      reader->Refuse("layer_types",
                     Format("layer_types has \"{}\"; sliding_attention, "
                            "compressed_sparse_attention and heavily_compressed_attention are "
                            "supported",
                            types[i]));
    }
  }
}

void ReadRatios(ConfigReader* reader, DeepseekV4Config* c) {
  const std::vector<int64_t> ratios =
      reader->Ints("compress_ratios", 0, kRatioMax, size_t{2} * kLayersMax);
  if (ratios.size() < c->layer.size()) {
    reader->Refuse("compress_ratios", Format("compress_ratios has {} entries; num_hidden_layers is "
                                             "{}",
                                             ratios.size(), c->layers));
    return;
  }
  for (size_t i = 0; i < c->layer.size(); ++i) {
    const auto ratio = static_cast<int>(ratios[i]);
    if (ratio == kChosenRatio) {
      c->layer[i] = {Past::kChosen, ratio};
    } else if (ratio == kEveryRatio) {
      c->layer[i] = {Past::kEveryEntry, ratio};
    } else if (ratio != 0) {
      reader->Refuse("compress_ratios", Format("compress_ratios has {}; 0, {} and {} are supported",
                                               ratio, kChosenRatio, kEveryRatio));
    }
  }
}

void ReadLayers(const Json& config, ConfigReader* reader, DeepseekV4Config* c) {
  c->layer.resize(static_cast<size_t>(c->layers));
  const std::vector<std::string> types = ReadTexts(config, "layer_types", c->layers, reader);
  if (!types.empty()) {
    ReadLayerTypes(config, types, reader, c);
  } else {
    ReadRatios(reader, c);
  }
  const std::vector<std::string> kinds = ReadTexts(config, "mlp_layer_types", c->layers, reader);
  const int64_t hashed = reader->IntOr("num_hash_layers", 3, 0, kLayersMax);
  for (size_t i = 0; i < c->layer.size(); ++i) {
    c->layer[i].hashed = kinds.empty() ? static_cast<int64_t>(i) < hashed : kinds[i] == "hash_moe";
    if (!kinds.empty() && kinds[i] != "hash_moe" && kinds[i] != "moe") {
      reader->Refuse(
          "mlp_layer_types",
          Format("mlp_layer_types has \"{}\"; hash_moe and moe are supported", kinds[i]));
    }
  }
  for (const DeepseekV4Config::Layer& layer : c->layer) {
    if (layer.ratio % 16 != 0 && 16 % std::max(1, layer.ratio) != 0) {
      reader->Refuse("compress_rates", Format("a compression of {} tokens; divisors and multiples "
                                              "of 16 are supported",
                                              layer.ratio));
    }
  }
  if (c->CountOf(Past::kChosen) == 0) return;
  c->index_heads = static_cast<int>(reader->Int("index_n_heads", 1, kHeadDimMax));
  c->index_dim = static_cast<int>(reader->Int("index_head_dim", 2, kHeadDimMax));
  c->index_top_k = static_cast<int>(reader->Int("index_topk", 1, 1 << 16));
  if (c->rope_dim > c->index_dim) {
    reader->Refuse("index_head_dim", Format("index_head_dim is {}; {} elements are rotated",
                                            c->index_dim, c->rope_dim));
  }
}

// The main table is never scaled; YaRN's magnitude is not applied in either.
Status ReadRopes(const Json& config, ConfigReader* reader, DeepseekV4Config* c) {
  const int64_t context = reader->IntOr("max_position_embeddings", 1 << 20, 1, kContextMax);
  const double theta = reader->NumberOr("rope_theta", 10'000.0, 0.0, 1e12);
  const double compress_theta = reader->NumberOr("compress_rope_theta", 160'000.0, 0.0, 1e12);
  DI_TRY(Status(reader->status()));
  const char* where = reader->Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Json* params = reader->Has(where) ? config.Find(where) : nullptr;
  const Json* main = params != nullptr ? params->Find("main") : nullptr;
  const Json* compress = params != nullptr ? params->Find("compress") : nullptr;
  const bool nested = main != nullptr && compress != nullptr;
  ConfigReader main_reader(nested ? main : nullptr, Format("{}.main.", where));
  ConfigReader compress_reader(nested ? compress : params, Format("{}.", where));
  double ignored = 0.0;
  ReadRopeFields(&main_reader, theta, c->rope_dim, context, &c->main_rope, &ignored);
  // A flat object names the theta of the main table.
  ReadRopeFields(&compress_reader, compress_theta, c->rope_dim, context, &c->compress_rope,
                 &ignored);
  if (!nested) c->compress_rope.theta = compress_theta;
  DI_TRY(Status(main_reader.status()));
  DI_TRY(Status(compress_reader.status()));
  DI_TRY(ComputeRope(&c->main_rope, {}));
  return ComputeRope(&c->compress_rope, {});
}

void ReadRounding(ConfigReader* reader, DeepseekV4Config* c) {
  if (!reader->Has("quantization_config")) return;
  c->rounding = DeepseekV4Config::Rounding::kAsTrained;
  if ((c->head_dim - c->rope_dim) % 64 != 0) {
    reader->Refuse("head_dim", Format("head_dim {} less the {} rotated elements must be a multiple "
                                      "of 64 for the rounding of quantization_config",
                                      c->head_dim, c->rope_dim));
  }
  const bool power = (c->index_dim & (c->index_dim - 1)) == 0;
  if (c->index_dim != 0 && (!power || c->index_dim % 32 != 0)) {
    reader->Refuse("index_head_dim", Format("index_head_dim is {}; a power of two of 32 at least "
                                            "is needed for the rounding of quantization_config",
                                            c->index_dim));
  }
}

}  // namespace

int DeepseekV4Config::CountOf(Past past) const {
  return static_cast<int>(
      std::count_if(layer.begin(), layer.end(), [past](const Layer& l) { return l.past == past; }));
}

Result<DeepseekV4Config> ReadDeepseekV4Config(const Json& config) {
  ConfigReader reader(&config, "");
  DeepseekV4Config c;
  ReadShape(&reader, &c);
  ReadRotatedPart(&reader, &c);
  ReadExperts(&reader, &c);
  ReadLayers(config, &reader, &c);
  ReadRounding(&reader, &c);
  DI_TRY(ReadRopes(config, &reader, &c));
  DI_TRY(Status(reader.status()));
  return c;
}

}  // namespace deepinfer
