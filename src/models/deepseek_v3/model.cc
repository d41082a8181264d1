#include "models/deepseek_v3/model.h"

#include <algorithm>
#include <utility>

#include "backend/latent_ops.h"
#include "models/model_info.h"

namespace deepinfer {
namespace {

constexpr float kRoutingEps = 1e-20F;  // of the published normalisation of weights

CacheLayout LayoutFor(const DeepseekV3Config& config, int element_bytes) {
  CacheLayout layout;
  layout.history.push_back(
      {.name = "latent",
       .ratio = 1,
       .layers = config.layers,
       .row_bytes = int64_t{LatentRowElements(config.latent, config.rope_dim)} * element_bytes});
  return layout;
}

}  // namespace

Result<std::unique_ptr<Model>> DeepseekV3Model::Load(const Checkpoint& checkpoint, Backend* backend,
                                                     const LoadProgress& progress) {
  DI_ASSIGN(DeepseekV3Config config, ReadDeepseekV3Config(checkpoint.config_json()));
  DI_ASSIGN(DeepseekV3Weights weights, BindDeepseekV3(checkpoint, config, backend, progress));
  return std::unique_ptr<Model>(
      new DeepseekV3Model(checkpoint, backend, std::move(config), std::move(weights)));
}

Result<CacheLayout> DeepseekV3Model::LayoutOf(const Checkpoint& checkpoint, int kv_element_bytes) {
  DI_ASSIGN(const DeepseekV3Config config, ReadDeepseekV3Config(checkpoint.config_json()));
  return LayoutFor(config, kv_element_bytes);
}

DeepseekV3Model::DeepseekV3Model(const Checkpoint& checkpoint, Backend* backend,
                                 DeepseekV3Config config, DeepseekV3Weights weights)
    : backend_(backend), config_(std::move(config)), weights_(std::move(weights)) {
  info_ = InfoOf(checkpoint, weights_.packed_bytes);
  layout_ = LayoutFor(config_, backend->kv_element_bytes());
  CreateActivations();
}

void DeepseekV3Model::CreateActivations() {
  for (const DeepseekV3Layer& layer : weights_.layers) {
    inputs_.AddReaders({layer.q_a.get(), layer.kv_a.get(), layer.q.get(), layer.o.get()});
    inputs_.AddReaders({layer.gate.get(), layer.up.get(), layer.down.get()});
    inputs_.AddReaders({layer.router.get(), layer.expert_gate.get(), layer.expert_up.get()});
    inputs_.AddReaders({layer.shared_gate.get(), layer.shared_up.get(), layer.shared_down.get()});
  }
  inputs_.Create(backend_);
  hidden_input_ = inputs_.OfWidth(config_.hidden);
  if (config_.q_lora > 0) query_input_ = inputs_.OfWidth(config_.q_lora);
  o_input_ = inputs_.OfWidth(int64_t{config_.heads} * config_.value_dim);
  if (config_.dense_layers > 0) dense_input_ = inputs_.OfWidth(config_.intermediate);
  if (config_.shared_intermediate > 0 && config_.dense_layers < config_.layers) {
    shared_input_ = inputs_.OfWidth(config_.shared_intermediate);
  }
  // Few rows of the head's own type, which the layers need not prepare.
  const Weight* head = weights_.head.get();
  head_input_ = inputs_.CreateOwn(backend_, config_.hidden, {&head, 1});
}

void DeepseekV3Model::ReserveBuffers(int tokens) {
  Grow(&hidden_, tokens, config_.hidden);
  Grow(&low_query_, tokens, config_.q_lora);
  Grow(&q_, tokens, int64_t{config_.heads} * config_.head_dim());
  Grow(&kv_, tokens, config_.latent + config_.rope_dim);
  Grow(&attention_, tokens, int64_t{config_.heads} * config_.value_dim);
  Grow(&ffn_, tokens, std::max(config_.intermediate, config_.shared_intermediate));
}

const float* DeepseekV3Model::Forward(const StepInput& step) {
  const int tokens = step.shape.num_tokens;
  ReserveBuffers(tokens);
  backend_->Embed(weights_.embedding_or_head(), step.token, tokens, hidden_.data());
  for (int i = 0; i < config_.layers; ++i) {
    const DeepseekV3Layer& layer = weights_.layers[static_cast<size_t>(i)];
    RunAttention(step, i);
    backend_->NormQuantize(hidden_.data(), nullptr, tokens, layer.ffn_norm.get(), config_.norm_eps,
                           hidden_input_);
    if (layer.router != nullptr) {
      RunExperts(layer, tokens);
    } else {
      RunGated(layer.gate.get(), layer.up.get(), layer.down.get(), tokens);
    }
  }
  return hidden_.data();
}

void DeepseekV3Model::ProjectQueries(const DeepseekV3Layer& layer, int tokens) {
  if (layer.q_a == nullptr) {
    const Weight* both[] = {layer.q.get(), layer.kv_a.get()};
    float* outputs[] = {q_.data(), kv_.data()};
    backend_->Linear({.input = hidden_input_, .rows = tokens, .weights = both, .outputs = outputs});
    return;
  }
  const Weight* both[] = {layer.q_a.get(), layer.kv_a.get()};
  float* outputs[] = {low_query_.data(), kv_.data()};
  backend_->Linear({.input = hidden_input_, .rows = tokens, .weights = both, .outputs = outputs});
  backend_->NormQuantize(low_query_.data(), nullptr, tokens, layer.q_norm.get(), config_.norm_eps,
                         query_input_);
  const Weight* q[] = {layer.q.get()};
  float* output[] = {q_.data()};
  backend_->Linear({.input = query_input_, .rows = tokens, .weights = q, .outputs = output});
}

void DeepseekV3Model::RunAttention(const StepInput& step, int index) {
  const DeepseekV3Layer& layer = weights_.layers[static_cast<size_t>(index)];
  const int tokens = step.shape.num_tokens;
  backend_->NormQuantize(hidden_.data(), nullptr, tokens, layer.attn_norm.get(), config_.norm_eps,
                         hidden_input_);
  ProjectQueries(layer, tokens);
  const LatentAttentionSpec spec{
      .layer = index,
      .heads = config_.heads,
      .latent = config_.latent,
      .nope_dim = config_.nope_dim,
      .rope_dim = config_.rope_dim,
      .value_dim = config_.value_dim,
      .scale = config_.softmax_scale,
      .rope_style = config_.rope.style,
      .inv_freq = config_.rope.inv_freq.data(),
      .rope_factor = config_.rope.attention_factor,
      .latent_norm = layer.kv_norm.get(),
      .norm_eps = config_.norm_eps,
      .key_up = layer.key_up.get(),
      .value_up = layer.value_up.get(),
  };
  backend_->LatentAttention(step, spec,
                            {.q = q_.data(), .kv = kv_.data(), .out = attention_.data()});
  backend_->NormQuantize(attention_.data(), nullptr, tokens, nullptr, 0.0F, o_input_);
  const Weight* o[] = {layer.o.get()};
  float* residual[] = {hidden_.data()};
  backend_->Linear({.input = o_input_,
                    .rows = tokens,
                    .weights = o,
                    .outputs = residual,
                    .epilogue = Epilogue::kAdd});
}

// hidden += down(silu(gate) * up) of the prepared hidden input.
void DeepseekV3Model::RunGated(const Weight* gate, const Weight* up, const Weight* down,
                               int tokens) {
  Activation* input =
      down->cols == config_.intermediate && dense_input_ != nullptr ? dense_input_ : shared_input_;
  const Weight* gate_up[] = {gate, up};
  float* inner[] = {ffn_.data()};
  backend_->Linear({.input = hidden_input_,
                    .rows = tokens,
                    .weights = gate_up,
                    .outputs = inner,
                    .epilogue = Epilogue::kSiluMul});
  backend_->NormQuantize(ffn_.data(), nullptr, tokens, nullptr, 0.0F, input);
  const Weight* downs[] = {down};
  float* residual[] = {hidden_.data()};
  backend_->Linear({.input = input,
                    .rows = tokens,
                    .weights = downs,
                    .outputs = residual,
                    .epilogue = Epilogue::kAdd});
}

void DeepseekV3Model::RunExperts(const DeepseekV3Layer& layer, int tokens) {
  backend_->Moe({.input = hidden_input_,
                 .rows = tokens,
                 .router = layer.router.get(),
                 .gate = layer.expert_gate.get(),
                 .up = layer.expert_up.get(),
                 .down = layer.expert_down.get(),
                 .top_k = config_.top_k,
                 .normalize_top_k = config_.normalize_top_k,
                 .out = hidden_.data(),
                 .routing = {.scoring = RouterScoring::kSigmoid,
                             .bias = layer.router_bias.get(),
                             .groups = config_.groups,
                             .group_top_k = config_.group_top_k,
                             .normalize_eps = kRoutingEps,
                             .scale = config_.routed_scale}});
  if (layer.shared_gate != nullptr) {
    RunGated(layer.shared_gate.get(), layer.shared_up.get(), layer.shared_down.get(), tokens);
  }
}

void DeepseekV3Model::Head(const float* hidden, const int32_t* row_index, int rows, float* logits) {
  if (rows == 0) return;
  backend_->NormQuantize(hidden, row_index, rows, weights_.output_norm.get(), config_.norm_eps,
                         head_input_);
  const Weight* head[] = {weights_.head.get()};
  float* outputs[] = {logits};
  backend_->Linear({.input = head_input_, .rows = rows, .weights = head, .outputs = outputs});
}

int DeepseekV3Model::embedding_size() const {
  const bool can = backend_->NormRow(nullptr, 0, 0, *weights_.output_norm, 0.0F, nullptr);
  return can ? info_.hidden : 0;
}

void DeepseekV3Model::Embed(const float* hidden, int row, float* out) {
  backend_->NormRow(hidden, row, info_.hidden, *weights_.output_norm, config_.norm_eps, out);
}

}  // namespace deepinfer
