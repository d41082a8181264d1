// Model configuration from GGUF metadata: general.*, <architecture>.*, tokenizer.ggml.*_id.
#include <cmath>
#include <limits>
#include <string>

#include "base/format.h"
#include "models/config_check.h"
#include "models/model_config.h"
#include "tensor/gguf.h"

namespace deepinfer {
namespace {

// Keys of one architecture: Int("block_count", ...) reads "llama.block_count".
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(std::string(architecture) + ".") {}

  std::string Key(std::string_view name) const { return prefix_ + std::string(name); }
  bool Has(std::string_view name) const { return metadata_.Find(Key(name)) != nullptr; }

  // A number, or an array with one value per layer, which must all be equal.
  Result<int64_t> Raw(std::string_view name, int64_t fallback) const {
    const std::string key = Key(name);
    const GgufValue* value = metadata_.Find(key);
    if (value == nullptr || value->type != GgufType::kArray) {
      return metadata_.GetInt(key, fallback);
    }
    DI_ASSIGN(const std::vector<int32_t> values, metadata_.GetInts(key));
    for (const int32_t one : values) {
      if (one != values.front()) {
        return Invalid(Format("{} differs between layers ({} and {}), which is not supported", key,
                              values.front(), one))
            .WithParam(key);
      }
    }
    return values.empty() ? fallback : values.front();
  }

  Result<int> Required(std::string_view name, int64_t low, int64_t high) const {
    if (!Has(name)) return Invalid(Format("{} is missing", Key(name))).WithParam(Key(name));
    return Optional(name, 0, low, high);
  }
  Result<int> Optional(std::string_view name, int64_t fallback, int64_t low, int64_t high) const {
    DI_ASSIGN(const int64_t value, Raw(name, fallback));
    return CheckedInt(Key(name), value, low, high);
  }
  Result<double> Double(std::string_view name, double fallback, double low, double high) const {
    DI_ASSIGN(const double value, metadata_.GetDouble(Key(name), fallback));
    return CheckedDouble(Key(name), value, low, high);
  }
  Result<std::string_view> String(std::string_view name) const {
    return metadata_.GetString(Key(name), "");
  }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
};

Result<const KnownFamily*> FindFamily(const GgufMetadata& metadata) {
  DI_ASSIGN(const std::string_view name, metadata.GetString("general.architecture", ""));
  const KnownFamily* family = FindFamilyByGguf(name);
  if (family == nullptr) return UnknownArchitecture(name);
  return family;
}

Status ReadShape(const ArchitectureKeys& keys, ModelConfig* out) {
  ModelConfig& c = *out;
  DI_ASSIGN(c.layers, keys.Required("block_count", 1, kLayersMax));
  DI_ASSIGN(c.hidden, keys.Required("embedding_length", 1, kWidthMax));
  const bool moe_only = c.family == ModelFamily::kQwen3Moe && !keys.Has("feed_forward_length");
  if (!moe_only) {
    DI_ASSIGN(c.intermediate, keys.Required("feed_forward_length", 1, kWidthMax));
  }
  DI_ASSIGN(c.heads, keys.Required("attention.head_count", 1, kWidthMax));
  DI_ASSIGN(c.kv_heads, keys.Optional("attention.head_count_kv", c.heads, 1, c.heads));
  if (!keys.Has("attention.key_length") && c.hidden % c.heads != 0) {
    return Invalid(Format("{} is missing and the hidden size {} is not a multiple of {} heads",
                          keys.Key("attention.key_length"), c.hidden, c.heads));
  }
  DI_ASSIGN(c.head_dim, keys.Optional("attention.key_length", c.hidden / c.heads, 2, kHeadDimMax));
  DI_ASSIGN(const int value_dim,
            keys.Optional("attention.value_length", c.head_dim, 2, kHeadDimMax));
  if (value_dim != c.head_dim) {
    return Invalid(Format("{} is {}, {} is {}; they must be equal",
                          keys.Key("attention.key_length"), c.head_dim,
                          keys.Key("attention.value_length"), value_dim));
  }
  DI_ASSIGN(c.context_max, keys.Required("context_length", 1, kContextMax));
  DI_ASSIGN(const double eps, keys.Double("attention.layer_norm_rms_epsilon", 1e-5, 0.0, 1.0));
  c.norm_eps = static_cast<float>(eps);
  DI_ASSIGN(const int window,
            keys.Optional("attention.sliding_window", 0, 0, std::numeric_limits<int>::max()));
  if (window > 0 && window < c.context_max) {
    return Invalid(Format("{} is {}; sliding-window attention is not supported",
                          keys.Key("attention.sliding_window"), window));
  }
  return {};
}

Status ReadRope(const ArchitectureKeys& keys, ModelConfig* out) {
  RopeConfig& rope = out->rope;
  rope.style = out->family == ModelFamily::kLlama ? RopeStyle::kInterleaved : RopeStyle::kHalves;
  DI_ASSIGN(rope.dim, keys.Optional("rope.dimension_count", out->head_dim, 2, out->head_dim));
  DI_ASSIGN(rope.theta, keys.Double("rope.freq_base", 10000.0, 1.0, 1e15));
  DI_ASSIGN(const double linear, keys.Double("rope.scale_linear", 1.0, 0.0, 1e6));
  DI_ASSIGN(const double factor, keys.Double("rope.scaling.factor", linear, 0.0, 1e6));
  DI_ASSIGN(std::string_view type, keys.String("rope.scaling.type"));
  if (type.empty()) type = factor == 1.0 ? "none" : "linear";
  if (type == "none") return {};
  rope.factor = factor;
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    return {};
  }
  if (type != "yarn") {
    return Invalid(Format("{} is \"{}\"; none, linear and yarn are supported",
                          keys.Key("rope.scaling.type"), type));
  }
  rope.scaling = RopeScaling::kYarn;
  DI_ASSIGN(rope.original_context, keys.Optional("rope.scaling.original_context_length",
                                                 out->context_max, 1, kContextMax));
  DI_ASSIGN(rope.beta_fast, keys.Double("rope.scaling.yarn_beta_fast", 32.0, 0.0, 1e6));
  DI_ASSIGN(rope.beta_slow, keys.Double("rope.scaling.yarn_beta_slow", 1.0, 0.0, 1e6));
  DI_ASSIGN(const double attention, keys.Double("rope.scaling.attn_factor", 1.0, 0.0, 1e3));
  const double magnitude = factor <= 1.0 ? 1.0 : 0.1 * std::log(factor) + 1.0;
  rope.attention_factor = static_cast<float>(attention * magnitude);
  return {};
}

Status ReadMoe(const ArchitectureKeys& keys, const GgufMetadata& metadata,
               const GgufTensorFacts& facts, ModelConfig* out) {
  DI_ASSIGN(const int experts, keys.Optional("expert_count", 0, 0, kExpertsMax));
  if (out->family != ModelFamily::kQwen3Moe) {
    if (experts == 0) return {};
    return Invalid(Format("{} is {}; experts are supported in qwen3_moe only",
                          keys.Key("expert_count"), experts));
  }
  MoeConfig& moe = out->moe;
  DI_ASSIGN(moe.experts, keys.Required("expert_count", 1, kExpertsMax));
  DI_ASSIGN(moe.top_k, keys.Required("expert_used_count", 1, moe.experts));
  DI_ASSIGN(moe.intermediate, keys.Required("expert_feed_forward_length", 1, kWidthMax));
  DI_ASSIGN(moe.normalize_top_k, metadata.GetBool(keys.Key("expert_weights_norm"), true));
  moe.sparse_layer = facts.sparse_layer;
  return {};
}

Result<TokenId> TokenIdOf(const GgufMetadata& metadata, std::string_view key) {
  DI_ASSIGN(const int64_t id, metadata.GetInt(key, -1));
  if (id == std::numeric_limits<uint32_t>::max()) return TokenId{-1};  // written for "none"
  return CheckedInt(key, id, -1, std::numeric_limits<TokenId>::max());
}

Status ReadGeneration(const GgufMetadata& metadata, GenerationDefaults* out) {
  const auto number = [&metadata](std::string_view key, double low, double high,
                                  std::optional<float>* value) -> Status {
    if (metadata.Find(key) == nullptr) return {};
    DI_ASSIGN(const double read, metadata.GetDouble(key, 0.0));
    if (!(read >= low && read <= high)) {
      return Invalid(Format("{} is {}; {} to {} are allowed", key, read, low, high))
          .WithParam(std::string(key));
    }
    *value = static_cast<float>(read);
    return {};
  };
  DI_TRY(number("general.sampling.temp", 0.0, 2.0, &out->temperature));
  DI_TRY(number("general.sampling.top_p", 1e-9, 1.0, &out->top_p));
  DI_TRY(number("general.sampling.min_p", 0.0, 1.0, &out->min_p));
  DI_TRY(number("general.sampling.penalty_repeat", 1e-6, 1e6, &out->repetition_penalty));
  if (metadata.Find("general.sampling.top_k") == nullptr) return {};
  DI_ASSIGN(const int64_t top_k, metadata.GetInt("general.sampling.top_k", 0));
  DI_ASSIGN(out->top_k,
            CheckedInt("general.sampling.top_k", top_k, -1, std::numeric_limits<int>::max()));
  return {};
}

}  // namespace

Result<int> GgufLayerCount(const GgufMetadata& metadata) {
  DI_ASSIGN(const KnownFamily* family, FindFamily(metadata));
  return ArchitectureKeys(metadata, family->gguf_name).Required("block_count", 1, kLayersMax);
}

Result<ModelConfig> ConfigFromGguf(const GgufMetadata& metadata, const GgufTensorFacts& facts) {
  DI_ASSIGN(const KnownFamily* family, FindFamily(metadata));
  const ArchitectureKeys keys(metadata, family->gguf_name);
  ModelConfig out;
  out.family = family->family;
  out.architecture = std::string(family->architecture);
  DI_ASSIGN(const std::string_view name, metadata.GetString("general.name", ""));
  out.name = std::string(name);
  DI_ASSIGN(out.vocab, CheckedInt("rows of token_embd.weight", facts.vocab, 1, kVocabMax));
  DI_TRY(ReadShape(keys, &out));
  DI_TRY(ReadRope(keys, &out));
  DI_TRY(ReadMoe(keys, metadata, facts, &out));
  out.tied_head = !facts.has_head;
  out.qkv_bias = facts.has_qkv_bias || out.family == ModelFamily::kQwen2;
  out.output_bias = facts.has_output_bias;
  out.mlp_bias = facts.has_mlp_bias;
  out.qk_norm = out.family == ModelFamily::kQwen3 || out.family == ModelFamily::kQwen3Moe;
  DI_ASSIGN(out.bos_id, TokenIdOf(metadata, "tokenizer.ggml.bos_token_id"));
  DI_ASSIGN(out.pad_id, TokenIdOf(metadata, "tokenizer.ggml.padding_token_id"));
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    DI_ASSIGN(const TokenId id, TokenIdOf(metadata, key));
    out.eos_ids.push_back(id);
  }
  DI_TRY(ReadGeneration(metadata, &out.generation));
  DI_TRY(FinishConfig(&out));
  DI_TRY(ComputeRope(&out.rope, facts.rope_factors));
  return out;
}

}  // namespace deepinfer
