// config.json and generation_config.json of the Hugging Face layout, in both spellings of the
// rotary fields (rope_theta with rope_scaling, and rope_parameters).
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "base/format.h"
#include "models/config_check.h"
#include "models/model_config.h"

namespace deepinfer {
namespace {

Result<int> RequiredInt(const Json& json, std::string_view key, int64_t low, int64_t high) {
  const Json* value = json.Find(key);
  if (value == nullptr || value->is_null()) {
    return Invalid(Format("config.json: {} is missing", key)).WithParam(std::string(key));
  }
  DI_ASSIGN(const int64_t number, json.GetInt(key, 0));
  return CheckedInt(key, number, low, high);
}

Result<int> OptionalInt(const Json& json, std::string_view key, int64_t fallback, int64_t low,
                        int64_t high) {
  DI_ASSIGN(const int64_t number, json.GetInt(key, fallback));
  return CheckedInt(key, number, low, high);
}

// What the same architecture is called where only its text model, or its images too, were saved.
std::string_view CommonName(std::string_view name) {
  constexpr std::string_view kV41[] = {"deepseek_v41_text", "DeepseekV41TextModel",
                                       "DeepseekV41ForConditionalGeneration"};
  return std::find(std::begin(kV41), std::end(kV41), name) != std::end(kV41) ? "deepseek_v41"
                                                                             : name;
}

Result<const KnownFamily*> FindFamily(const Json& config) {
  std::string name;
  const Json* architectures = config.Find("architectures");
  if (architectures != nullptr && architectures->is_array() && !architectures->items().empty()) {
    name = architectures->items().front().string();
  } else {
    DI_ASSIGN(name, config.GetString("model_type", ""));
  }
  const KnownFamily* family = FindFamilyByHf(CommonName(name));
  if (family == nullptr) return UnknownArchitecture(name);
  return family;
}

// An id, a list of ids, or null.
Status AppendTokenIds(const Json& json, std::string_view key, std::vector<TokenId>* out) {
  constexpr size_t kIdsMax = 1'024;
  const Json* value = json.Find(key);
  if (value == nullptr || value->is_null()) return {};
  const auto append = [&](const Json& item) -> Status {
    const Result<int64_t> id = item.AsInt();
    if (!id.ok()) return Invalid(Format("{} is {}; a token id is needed", key, item.Dump()));
    DI_ASSIGN(const int checked, CheckedInt(key, *id, -1, std::numeric_limits<TokenId>::max()));
    out->push_back(checked);
    return {};
  };
  if (!value->is_array()) return append(*value);
  if (value->items().size() > kIdsMax) {
    return Invalid(
        Format("{} lists {} ids; at most {} are read", key, value->items().size(), kIdsMax));
  }
  for (const Json& item : value->items()) DI_TRY(append(item));
  return {};
}

Result<TokenId> OneTokenId(const Json& json, std::string_view key) {
  std::vector<TokenId> ids;
  DI_TRY(AppendTokenIds(json, key, &ids));
  return ids.empty() ? TokenId{-1} : ids.front();
}

Status ReadYarn(const Json& scaling, const Json& config, ModelConfig* out) {
  RopeConfig& rope = out->rope;
  DI_ASSIGN(int64_t original, scaling.GetInt("original_max_position_embeddings", 0));
  if (original == 0) {
    DI_ASSIGN(original, config.GetInt("original_max_position_embeddings", out->context_max));
  }
  DI_ASSIGN(rope.original_context,
            CheckedInt("original_max_position_embeddings", original, 1, kContextMax));
  DI_ASSIGN(double number, scaling.GetDouble("factor", static_cast<double>(out->context_max) /
                                                           static_cast<double>(original)));
  DI_ASSIGN(rope.factor, CheckedDouble("rope factor", number, 0.0, 1e6));
  DI_ASSIGN(number, scaling.GetDouble("beta_fast", 32.0));
  DI_ASSIGN(rope.beta_fast, CheckedDouble("beta_fast", number, 0.0, 1e6));
  DI_ASSIGN(number, scaling.GetDouble("beta_slow", 1.0));
  DI_ASSIGN(rope.beta_slow, CheckedDouble("beta_slow", number, 0.0, 1e6));
  DI_ASSIGN(rope.truncate, scaling.GetBool("truncate", true));
  const auto magnitude = [&rope](double scale) {
    return rope.factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(rope.factor) + 1.0;
  };
  DI_ASSIGN(const double mscale, scaling.GetDouble("mscale", 0.0));
  DI_ASSIGN(const double mscale_all, scaling.GetDouble("mscale_all_dim", 0.0));
  const double computed =
      mscale != 0.0 && mscale_all != 0.0 ? magnitude(mscale) / magnitude(mscale_all) : magnitude(1);
  DI_ASSIGN(number, scaling.GetDouble("attention_factor", computed));
  DI_ASSIGN(number, CheckedDouble("attention_factor", number, 0.0, 1e3));
  rope.attention_factor = static_cast<float>(number);
  return {};
}

Status ReadLlama3(const Json& scaling, RopeConfig* rope) {
  DI_ASSIGN(double number, scaling.GetDouble("factor", 0.0));
  DI_ASSIGN(rope->factor, CheckedDouble("rope factor", number, 0.0, 1e6));
  DI_ASSIGN(number, scaling.GetDouble("low_freq_factor", 0.0));
  DI_ASSIGN(rope->low_freq_factor, CheckedDouble("low_freq_factor", number, 0.0, 1e6));
  DI_ASSIGN(number, scaling.GetDouble("high_freq_factor", 0.0));
  DI_ASSIGN(rope->high_freq_factor,
            CheckedDouble("high_freq_factor", number, rope->low_freq_factor, 1e6));
  DI_ASSIGN(rope->original_context,
            RequiredInt(scaling, "original_max_position_embeddings", 1, kContextMax));
  return {};
}

// The object that describes the scaling, in either spelling; a null value when there is none.
const Json* RopeObject(const Json& config, std::string_view key) {
  const Json* rope = config.Find(key);
  if (rope == nullptr || !rope->is_object()) return nullptr;
  const Json* full = rope->Find("full_attention");  // one entry per layer type
  return full != nullptr && full->is_object() ? full : rope;
}

Status ReadRope(const Json& config, ModelConfig* out) {
  RopeConfig& rope = out->rope;
  const Json none = Json::Object();
  const Json* parameters = RopeObject(config, "rope_parameters");
  const Json* scaling = parameters != nullptr ? parameters : RopeObject(config, "rope_scaling");
  if (scaling == nullptr) scaling = &none;
  DI_ASSIGN(double number, config.GetDouble("rope_theta", 10000.0));
  DI_ASSIGN(number, scaling->GetDouble("rope_theta", number));
  DI_ASSIGN(rope.theta, CheckedDouble("rope_theta", number, 1.0, 1e15));
  DI_ASSIGN(number, config.GetDouble("partial_rotary_factor", 1.0));
  DI_ASSIGN(number, scaling->GetDouble("partial_rotary_factor", number));
  DI_ASSIGN(number, CheckedDouble("partial_rotary_factor", number, 0.0, 1.0));
  rope.dim = static_cast<int>(out->head_dim * number);
  DI_ASSIGN(std::string type, scaling->GetString("type", "default"));
  DI_ASSIGN(type, scaling->GetString("rope_type", type));
  if (type == "default") return {};
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    DI_ASSIGN(number, scaling->GetDouble("factor", 0.0));
    DI_ASSIGN(rope.factor, CheckedDouble("rope factor", number, 0.0, 1e6));
    return {};
  }
  if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    return ReadLlama3(*scaling, &rope);
  }
  if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    return ReadYarn(*scaling, config, out);
  }
  return Invalid(
             Format("rope_type is \"{}\"; default, linear, llama3 and yarn are supported", type))
      .WithParam("rope_type");
}

// Whatever would change the arithmetic in a way that no code here carries out.
Status RefuseUnsupported(const Json& config) {
  DI_ASSIGN(const std::string activation, config.GetString("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return Invalid(Format("hidden_act is \"{}\"; silu is supported", activation))
        .WithParam("hidden_act");
  }
  const Json* quantization = config.Find("quantization_config");
  if (quantization != nullptr && !quantization->is_null()) {
    DI_ASSIGN(const std::string method, quantization->GetString("quant_method", "unnamed"));
    return Invalid(Format("the checkpoint is quantised by \"{}\", which is not supported; use the "
                          "unquantised checkpoint or a GGUF file",
                          method))
        .WithParam("quantization_config");
  }
  DI_ASSIGN(const bool sliding, config.GetBool("use_sliding_window", false));
  if (sliding) {
    return Invalid("use_sliding_window is true; sliding-window attention is not supported")
        .WithParam("use_sliding_window");
  }
  const Json* layer_types = config.Find("layer_types");
  if (layer_types != nullptr) {
    for (const Json& type : layer_types->items()) {
      if (type.string() != "full_attention") {
        return Invalid(Format("layer_types has {}; full_attention is supported", type.Dump()))
            .WithParam("layer_types");
      }
    }
  }
  return {};
}

Status ReadMoe(const Json& config, ModelConfig* out) {
  MoeConfig& moe = out->moe;
  const std::string_view key =
      config.Find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  DI_ASSIGN(moe.experts, RequiredInt(config, key, 1, kExpertsMax));
  DI_ASSIGN(moe.top_k, RequiredInt(config, "num_experts_per_tok", 1, moe.experts));
  DI_ASSIGN(moe.intermediate, RequiredInt(config, "moe_intermediate_size", 1, kWidthMax));
  DI_ASSIGN(moe.normalize_top_k, config.GetBool("norm_topk_prob", false));
  DI_ASSIGN(const int step, OptionalInt(config, "decoder_sparse_step", 1, 1, kLayersMax));
  moe.sparse_layer.assign(static_cast<size_t>(out->layers), 0);
  for (size_t layer = 0; layer < moe.sparse_layer.size(); ++layer) {
    moe.sparse_layer[layer] = (layer + 1) % static_cast<size_t>(step) == 0 ? 1 : 0;
  }
  const Json* dense = config.Find("mlp_only_layers");
  if (dense == nullptr) return {};
  for (const Json& item : dense->items()) {
    const Result<int64_t> layer = item.AsInt();
    if (!layer.ok() || *layer < 0 || *layer >= out->layers) {
      return Invalid(
                 Format("mlp_only_layers has {}; layers are 0 to {}", item.Dump(), out->layers - 1))
          .WithParam("mlp_only_layers");
    }
    moe.sparse_layer[static_cast<size_t>(*layer)] = 0;
  }
  return {};
}

// Suggestions outside what a request may ask for would make every request fail: refused here.
Status ReadGeneration(const Json& json, GenerationDefaults* out) {
  const auto number = [&json](std::string_view key, double low, double high,
                              std::optional<float>* value) -> Status {
    const Json* found = json.Find(key);
    if (found == nullptr || found->is_null()) return {};
    DI_ASSIGN(const double read, json.GetDouble(key, 0.0));
    if (!(read >= low && read <= high)) {
      return Invalid(
          Format("generation_config.json: {} is {}; {} to {} are allowed", key, read, low, high));
    }
    *value = static_cast<float>(read);
    return {};
  };
  DI_TRY(number("temperature", 0.0, 2.0, &out->temperature));
  DI_TRY(number("top_p", 1e-9, 1.0, &out->top_p));
  DI_TRY(number("min_p", 0.0, 1.0, &out->min_p));
  DI_TRY(number("repetition_penalty", 1e-6, 1e6, &out->repetition_penalty));
  const auto whole = [&json](std::string_view key, int64_t low,
                             std::optional<int>* value) -> Status {
    const Json* found = json.Find(key);
    if (found == nullptr || found->is_null()) return {};
    DI_ASSIGN(const int64_t read, json.GetInt(key, 0));
    DI_ASSIGN(*value, CheckedInt(key, read, low, std::numeric_limits<int>::max()));
    return {};
  };
  DI_TRY(whole("top_k", -1, &out->top_k));
  return whole("max_new_tokens", 1, &out->max_new_tokens);
}

Status ReadShape(const Json& config, ModelConfig* out) {
  ModelConfig& c = *out;
  DI_ASSIGN(c.layers, RequiredInt(config, "num_hidden_layers", 1, kLayersMax));
  DI_ASSIGN(c.hidden, RequiredInt(config, "hidden_size", 1, kWidthMax));
  DI_ASSIGN(c.intermediate, RequiredInt(config, "intermediate_size", 1, kWidthMax));
  DI_ASSIGN(c.heads, RequiredInt(config, "num_attention_heads", 1, kWidthMax));
  DI_ASSIGN(c.kv_heads, OptionalInt(config, "num_key_value_heads", c.heads, 1, c.heads));
  DI_ASSIGN(const int64_t head_dim, config.GetInt("head_dim", 0));
  if (head_dim == 0 && c.hidden % c.heads != 0) {
    return Invalid(Format("head_dim is missing and hidden_size {} is not a multiple of "
                          "num_attention_heads {}",
                          c.hidden, c.heads))
        .WithParam("head_dim");
  }
  DI_ASSIGN(c.head_dim,
            CheckedInt("head_dim", head_dim == 0 ? c.hidden / c.heads : head_dim, 2, kHeadDimMax));
  DI_ASSIGN(c.vocab, RequiredInt(config, "vocab_size", 1, kVocabMax));
  DI_ASSIGN(c.context_max, OptionalInt(config, "max_position_embeddings", 2048, 1, kContextMax));
  DI_ASSIGN(double eps, config.GetDouble("rms_norm_eps", 1e-6));
  DI_ASSIGN(eps, CheckedDouble("rms_norm_eps", eps, 0.0, 1.0));
  c.norm_eps = static_cast<float>(eps);
  return {};
}

Status ReadTokenIds(const Json& config, const Json* generation, ModelConfig* out) {
  DI_ASSIGN(out->bos_id, OneTokenId(config, "bos_token_id"));
  DI_ASSIGN(out->pad_id, OneTokenId(config, "pad_token_id"));
  DI_TRY(AppendTokenIds(config, "eos_token_id", &out->eos_ids));
  if (generation == nullptr) return {};
  DI_TRY(AppendTokenIds(*generation, "eos_token_id", &out->eos_ids));
  return ReadGeneration(*generation, &out->generation);
}

// What every model has; the family's own reader does the rest. The text part may be nested.
Status ReadCommonFacts(const Json& config, const Json* generation, ModelConfig* out) {
  const Json* nested = config.Find("text_config");
  const Json& text = nested != nullptr && nested->is_object() ? *nested : config;
  DI_ASSIGN(out->layers, RequiredInt(text, "num_hidden_layers", 1, kLayersMax));
  DI_ASSIGN(out->hidden, RequiredInt(text, "hidden_size", 1, kWidthMax));
  DI_ASSIGN(out->vocab, RequiredInt(text, "vocab_size", 1, kVocabMax));
  DI_ASSIGN(out->context_max, OptionalInt(text, "max_position_embeddings", 2048, 1, kContextMax));
  DI_ASSIGN(const bool tied, config.GetBool("tie_word_embeddings", false));
  DI_ASSIGN(out->tied_head, text.GetBool("tie_word_embeddings", tied));
  // Token ids stand beside the nested part or inside it.
  DI_TRY(ReadTokenIds(text, nullptr, out));
  ModelConfig outer;
  DI_TRY(ReadTokenIds(config, generation, &outer));
  if (outer.bos_id >= 0) out->bos_id = outer.bos_id;
  if (outer.pad_id >= 0) out->pad_id = outer.pad_id;
  out->eos_ids.insert(out->eos_ids.end(), outer.eos_ids.begin(), outer.eos_ids.end());
  out->generation = outer.generation;
  return FinishTokenIds(out);
}

}  // namespace

Result<ModelConfig> ConfigFromHf(const Json& config, const Json* generation) {
  if (!config.is_object()) return Invalid("config.json is not a JSON object");
  DI_ASSIGN(const KnownFamily* family, FindFamily(config));
  ModelConfig out;
  out.family = family->family;
  out.architecture = std::string(family->architecture);
  if (out.family == ModelFamily::kOwn) {
    DI_TRY(ReadCommonFacts(config, generation, &out));
    return out;
  }
  DI_TRY(RefuseUnsupported(config));
  DI_TRY(ReadShape(config, &out));
  DI_ASSIGN(out.tied_head, config.GetBool("tie_word_embeddings", false));
  DI_ASSIGN(const bool attention_bias, config.GetBool("attention_bias", false));
  out.qkv_bias = attention_bias || out.family == ModelFamily::kQwen2;
  out.output_bias = attention_bias && out.family != ModelFamily::kQwen2;
  if (out.family == ModelFamily::kLlama) {
    DI_ASSIGN(out.mlp_bias, config.GetBool("mlp_bias", false));
  }
  out.qk_norm = out.family == ModelFamily::kQwen3 || out.family == ModelFamily::kQwen3Moe;
  if (out.family == ModelFamily::kQwen3Moe) DI_TRY(ReadMoe(config, &out));
  out.rope.style = RopeStyle::kHalves;
  DI_TRY(ReadRope(config, &out));
  DI_TRY(ReadTokenIds(config, generation, &out));
  DI_TRY(FinishConfig(&out));
  DI_TRY(ComputeRope(&out.rope, {}));
  return out;
}

}  // namespace deepinfer
