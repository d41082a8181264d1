// Names and shapes of every tensor role, in both formats.
#include <array>

#include "base/format.h"
#include "models/checkpoint.h"

namespace deepinfer {
namespace {

struct NameRow {
  std::string_view hf;    // after "model.layers.N." for layer roles
  std::string_view gguf;  // after "blk.N." for layer roles
};

// Indexed by TensorRole. kExpert* of safetensors are built around the expert's number.
constexpr std::array<NameRow, kNumTensorRoles> kNames = {{
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate_proj.bias", "ffn_gate.bias"},
    {"mlp.up_proj.bias", "ffn_up.bias"},
    {"mlp.down_proj.bias", "ffn_down.bias"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"gate_proj.weight", "ffn_gate_exps.weight"},
    {"up_proj.weight", "ffn_up_exps.weight"},
    {"down_proj.weight", "ffn_down_exps.weight"},
}};

std::vector<int64_t> AttentionShape(const ModelConfig& c, TensorRole role) {
  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  switch (role) {
    case TensorRole::kQ:
      return {q, c.hidden};
    case TensorRole::kK:
    case TensorRole::kV:
      return {kv, c.hidden};
    case TensorRole::kO:
      return {c.hidden, q};
    case TensorRole::kQBias:
      return c.qkv_bias ? std::vector<int64_t>{q} : std::vector<int64_t>{};
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return c.qkv_bias ? std::vector<int64_t>{kv} : std::vector<int64_t>{};
    case TensorRole::kOBias:
      return c.output_bias ? std::vector<int64_t>{c.hidden} : std::vector<int64_t>{};
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return c.qk_norm ? std::vector<int64_t>{c.head_dim} : std::vector<int64_t>{};
    default:
      return {};
  }
}

std::vector<int64_t> FeedForwardShape(const ModelConfig& c, TensorRole role, bool sparse) {
  const bool expert_side = role == TensorRole::kRouter || IsExpertRole(role);
  if (sparse != expert_side) return {};
  switch (role) {
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {c.intermediate, c.hidden};
    case TensorRole::kDown:
      return {c.hidden, c.intermediate};
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
      return c.mlp_bias ? std::vector<int64_t>{c.intermediate} : std::vector<int64_t>{};
    case TensorRole::kDownBias:
      return c.mlp_bias ? std::vector<int64_t>{c.hidden} : std::vector<int64_t>{};
    case TensorRole::kRouter:
      return {c.moe.experts, c.hidden};
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
      return {c.moe.intermediate, c.hidden};
    case TensorRole::kExpertDown:
      return {c.hidden, c.moe.intermediate};
    default:
      return {};
  }
}

}  // namespace

std::string TensorName(CheckpointFormat format, TensorRole role, int layer, int expert) {
  const NameRow& row = kNames[static_cast<size_t>(role)];
  if (format == CheckpointFormat::kGguf) {
    return IsLayerRole(role) ? Format("blk.{}.{}", layer, row.gguf) : std::string(row.gguf);
  }
  if (IsExpertRole(role)) {
    return Format("model.layers.{}.mlp.experts.{}.{}", layer, expert, row.hf);
  }
  return IsLayerRole(role) ? Format("model.layers.{}.{}", layer, row.hf) : std::string(row.hf);
}

std::vector<int64_t> ExpectedShape(const ModelConfig& config, TensorRole role, int layer) {
  switch (role) {
    case TensorRole::kTokenEmbedding:
      return {config.vocab, config.hidden};
    case TensorRole::kOutput:
      return config.tied_head ? std::vector<int64_t>{}
                              : std::vector<int64_t>{config.vocab, config.hidden};
    case TensorRole::kOutputNorm:
    case TensorRole::kAttnNorm:
    case TensorRole::kFfnNorm:
      return {config.hidden};
    default:
      break;
  }
  if (role < TensorRole::kFfnNorm) return AttentionShape(config, role);
  return FeedForwardShape(config, role, config.IsSparse(layer));
}

}  // namespace deepinfer
