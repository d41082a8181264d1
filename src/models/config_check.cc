#include "models/config_check.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"

namespace deepinfer {
namespace {

constexpr std::array<KnownFamily, 7> kFamilies = {{
    {ModelFamily::kLlama, "llama", "LlamaForCausalLM", "llama"},
    {ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM", "qwen2"},
    {ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM", "qwen3"},
    {ModelFamily::kQwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe"},
    {ModelFamily::kOwn, "deepseek_v3", "DeepseekV3ForCausalLM", ""},
    {ModelFamily::kOwn, "deepseek_v4", "DeepseekV4ForCausalLM", ""},
    {ModelFamily::kOwn, "deepseek_v41", "DeepseekV41ForCausalLM", ""},
}};

Status CheckToken(std::string_view key, TokenId id, int vocab) {
  if (id < -1 || id >= vocab) {
    return Invalid(Format("{} is {}; token ids of this model are 0 to {}", key, id, vocab - 1))
        .WithParam(std::string(key));
  }
  return {};
}

}  // namespace

Result<int> CheckedInt(std::string_view key, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    return Invalid(Format("{} is {}; {} to {} are supported", key, value, low, high))
        .WithParam(std::string(key));
  }
  return static_cast<int>(value);
}

Result<double> CheckedDouble(std::string_view key, double value, double low, double high) {
  if (!(value > low && value <= high)) {
    return Invalid(Format("{} is {}; it must be above {} and at most {}", key, value, low, high))
        .WithParam(std::string(key));
  }
  return value;
}

const KnownFamily* FindFamilyByHf(std::string_view model_type_or_class) {
  for (const KnownFamily& row : kFamilies) {
    if (row.architecture == model_type_or_class || row.hf_class == model_type_or_class) return &row;
  }
  return nullptr;
}

const KnownFamily* FindFamilyByGguf(std::string_view name) {
  for (const KnownFamily& row : kFamilies) {
    if (!row.gguf_name.empty() && row.gguf_name == name) return &row;
  }
  return nullptr;
}

std::string KnownArchitectures() {
  std::string names;
  for (const KnownFamily& row : kFamilies) {
    names += Format("{}{}", names.empty() ? "" : ", ", row.architecture);
  }
  return names;
}

Status UnknownArchitecture(std::string_view name) {
  return Invalid(Format("architecture \"{}\" is not known; known architectures: {}", name,
                        KnownArchitectures()))
      .WithParam("architecture");
}

Status FinishTokenIds(ModelConfig* config) {
  ModelConfig& c = *config;
  DI_TRY(CheckToken("bos_token_id", c.bos_id, c.vocab));
  DI_TRY(CheckToken("pad_token_id", c.pad_id, c.vocab));
  for (const TokenId id : c.eos_ids) DI_TRY(CheckToken("eos_token_id", id, c.vocab));
  std::erase(c.eos_ids, -1);
  std::sort(c.eos_ids.begin(), c.eos_ids.end());
  c.eos_ids.erase(std::unique(c.eos_ids.begin(), c.eos_ids.end()), c.eos_ids.end());
  return {};
}

Status FinishConfig(ModelConfig* config) {
  ModelConfig& c = *config;
  if (c.heads % c.kv_heads != 0) {
    return Invalid(
        Format("{} attention heads are not a multiple of {} key-value heads", c.heads, c.kv_heads));
  }
  if (c.head_dim % 2 != 0) {
    return Invalid(Format("head_dim is {}; it must be even", c.head_dim)).WithParam("head_dim");
  }
  if (int64_t{c.heads} * c.head_dim > kWidthMax) {
    return Invalid(Format("{} heads of {} are {} wide; at most {} is supported", c.heads,
                          c.head_dim, int64_t{c.heads} * c.head_dim, kWidthMax));
  }
  if (c.rope.dim <= 0 || c.rope.dim % 2 != 0 || c.rope.dim > c.head_dim) {
    return Invalid(
        Format("rotary embedding over {} elements of heads of {}; an even count of at "
               "most the head is needed",
               c.rope.dim, c.head_dim));
  }
  if (c.moe.experts > 0 && (c.moe.top_k < 1 || c.moe.top_k > c.moe.experts)) {
    return Invalid(Format("num_experts_per_tok is {}; 1 to {} (the number of experts) are allowed",
                          c.moe.top_k, c.moe.experts));
  }
  return FinishTokenIds(config);
}

}  // namespace deepinfer
