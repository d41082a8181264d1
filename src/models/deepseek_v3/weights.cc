#include "models/deepseek_v3/weights.h"

#include <cstring>
#include <utility>

#include "base/format.h"
#include "models/deepseek_v3/family_binder.h"
#include "tensor/dequantize.h"

namespace deepinfer {
namespace {

// A matrix as plain elements, of its own type where it has one, else float32.
struct Elements {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  size_t size = 0;  // bytes of an element
};

Result<Elements> PlainElements(const TensorView& view, FamilyBinder* binder) {
  if (view.dtype == DType::kBF16 || view.dtype == DType::kF16 || view.dtype == DType::kF32) {
    return Elements{view.data, view.dtype, view.dtype == DType::kF32 ? sizeof(float) : 2};
  }
  DI_ASSIGN(const std::vector<float> values, DequantizeTensor(view));
  std::byte* copy = binder->Derive(values.size() * sizeof(float));
  memcpy(copy, values.data(), values.size() * sizeof(float));
  return Elements{copy, DType::kF32, sizeof(float)};
}

// kv_b holds for each head the rows that raise a latent to keys, then those for values. Absorbed
// into the query, the first are read the other way round.
Status SplitKvUp(const TensorView& view, const DeepseekV3Config& c, FamilyBinder* binder,
                 DeepseekV3Layer* layer) {
  DI_ASSIGN(const Elements from, PlainElements(view, binder));
  const auto latent = static_cast<size_t>(c.latent);
  const auto nope = static_cast<size_t>(c.nope_dim);
  const auto value = static_cast<size_t>(c.value_dim);
  const size_t row = latent * from.size;
  std::vector<TensorView> keys;
  std::vector<TensorView> values;
  for (size_t head = 0; head < static_cast<size_t>(c.heads); ++head) {
    const std::byte* rows = from.data + head * (nope + value) * row;
    std::byte* turned = binder->Derive(nope * row);
    for (size_t i = 0; i < nope; ++i) {
      for (size_t j = 0; j < latent; ++j) {
        memcpy(turned + (j * nope + i) * from.size, rows + i * row + j * from.size, from.size);
      }
    }
    TensorView key{
        Format("{} (keys of head {})", view.name, head), from.dtype, {c.latent, c.nope_dim}};
    key.data = turned;
    key.bytes = nope * row;
    keys.push_back(std::move(key));
    TensorView raise{
        Format("{} (values of head {})", view.name, head), from.dtype, {c.value_dim, c.latent}};
    raise.data = rows + nope * row;
    raise.bytes = value * row;
    values.push_back(std::move(raise));
  }
  layer->key_up = binder->Keep(keys, FamilyBinder::Derived::kKept);
  layer->value_up = binder->Keep(values);
  return {};
}

Status BindAttention(const DeepseekV3Config& c, const std::string& prefix, FamilyBinder* binder,
                     DeepseekV3Layer* layer) {
  const int64_t q = int64_t{c.heads} * c.head_dim();
  layer->attn_norm = binder->Vector(prefix + "input_layernorm.weight", c.hidden);
  const std::string at = prefix + "self_attn.";
  if (c.q_lora > 0) {
    layer->q_a = binder->Matrix(at + "q_a_proj", c.q_lora, c.hidden);
    layer->kv_a = binder->Matrix(at + "kv_a_proj_with_mqa", c.latent + c.rope_dim, c.hidden);
    layer->q_norm = binder->Vector(at + "q_a_layernorm.weight", c.q_lora);
    layer->q = binder->Matrix(at + "q_b_proj", q, c.q_lora);
  } else {
    layer->q = binder->Matrix(at + "q_proj", q, c.hidden);
    layer->kv_a = binder->Matrix(at + "kv_a_proj_with_mqa", c.latent + c.rope_dim, c.hidden);
  }
  layer->kv_norm = binder->Vector(at + "kv_a_layernorm.weight", c.latent);
  const std::optional<TensorView> kv_b =
      binder->View(at + "kv_b_proj", int64_t{c.heads} * (c.nope_dim + c.value_dim), c.latent);
  if (kv_b.has_value()) DI_TRY(SplitKvUp(*kv_b, c, binder, layer));
  layer->o = binder->Matrix(at + "o_proj", c.hidden, int64_t{c.heads} * c.value_dim);
  return {};
}

void BindDense(const DeepseekV3Config& c, const std::string& at, int64_t width,
               FamilyBinder* binder, std::unique_ptr<Weight>* gate, std::unique_ptr<Weight>* up,
               std::unique_ptr<Weight>* down) {
  *gate = binder->Matrix(at + "gate_proj", width, c.hidden);
  *up = binder->Matrix(at + "up_proj", width, c.hidden);
  *down = binder->Matrix(at + "down_proj", c.hidden, width);
}

void BindExperts(const DeepseekV3Config& c, const std::string& at, FamilyBinder* binder,
                 DeepseekV3Layer* layer) {
  const auto bases = [&](const char* matrix) {
    std::vector<std::string> names;
    for (int e = 0; e < c.experts; ++e) names.push_back(Format("{}experts.{}.{}", at, e, matrix));
    return names;
  };
  layer->router = binder->Float32Matrix(at + "gate.weight", c.experts, c.hidden);
  layer->router_bias = binder->Vector(at + "gate.e_score_correction_bias", c.experts);
  layer->expert_gate = binder->Experts(bases("gate_proj"), c.expert_intermediate, c.hidden);
  layer->expert_up = binder->Experts(bases("up_proj"), c.expert_intermediate, c.hidden);
  layer->expert_down = binder->Experts(bases("down_proj"), c.hidden, c.expert_intermediate);
  if (c.shared_intermediate > 0) {
    BindDense(c, at + "shared_experts.", c.shared_intermediate, binder, &layer->shared_gate,
              &layer->shared_up, &layer->shared_down);
  }
}

Status BindAll(const DeepseekV3Config& c, const ModelConfig& facts, FamilyBinder* binder,
               DeepseekV3Weights* out) {
  if (!facts.tied_head) {
    out->embedding =
        binder->Matrix("model.embed_tokens", c.vocab, c.hidden, WeightRole::kEmbedding);
  }
  out->layers.resize(static_cast<size_t>(c.layers));
  for (int i = 0; i < c.layers; ++i) {
    DeepseekV3Layer& layer = out->layers[static_cast<size_t>(i)];
    const std::string prefix = Format("model.layers.{}.", i);
    DI_TRY(BindAttention(c, prefix, binder, &layer));
    layer.ffn_norm = binder->Vector(prefix + "post_attention_layernorm.weight", c.hidden);
    if (i < c.dense_layers) {
      BindDense(c, prefix + "mlp.", c.intermediate, binder, &layer.gate, &layer.up, &layer.down);
    } else {
      BindExperts(c, prefix + "mlp.", binder, &layer);
    }
  }
  for (int i = 0; i < c.draft_layers; ++i) {
    binder->Ignore(Format("model.layers.{}.", c.layers + i));
  }
  out->output_norm = binder->Vector("model.norm.weight", c.hidden);
  out->head = binder->Matrix(facts.tied_head ? "model.embed_tokens" : "lm_head", c.vocab, c.hidden);
  if (facts.tied_head) binder->Ignore("lm_head.");
  return binder->Finish(facts.architecture);
}

}  // namespace

Result<DeepseekV3Weights> BindDeepseekV3(const Checkpoint& checkpoint,
                                         const DeepseekV3Config& config, Backend* backend,
                                         const LoadProgress& progress) {
  DeepseekV3Weights weights;
  for (const BindPass pass : {BindPass::kCheck, BindPass::kBind}) {
    weights = {};
    FamilyBinder binder(checkpoint, backend, progress, pass);
    DI_TRY(BindAll(config, checkpoint.config(), &binder, &weights));
    weights.packed_bytes = binder.packed_bytes();
  }
  return weights;
}

}  // namespace deepinfer
