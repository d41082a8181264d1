#include "models/decoder/decoder_model.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "models/model_info.h"

namespace deepinfer {
namespace {

CacheLayout LayoutFor(const ModelConfig& config, int element_bytes) {
  CacheLayout layout;
  layout.history.push_back(
      {.name = "full",
       .ratio = 1,
       .layers = config.layers,
       .row_bytes = int64_t{2} * config.kv_heads * config.head_dim * element_bytes});
  return layout;
}

}  // namespace

Result<std::unique_ptr<Model>> DecoderModel::Load(const Checkpoint& checkpoint, Backend* backend,
                                                  const LoadProgress& progress) {
  DI_ASSIGN(DecoderWeights weights, BindDecoder(checkpoint, backend, progress));
  return std::unique_ptr<Model>(new DecoderModel(checkpoint, backend, std::move(weights)));
}

Result<CacheLayout> DecoderModel::LayoutOf(const Checkpoint& checkpoint, int kv_element_bytes) {
  return LayoutFor(checkpoint.config(), kv_element_bytes);
}

DecoderModel::DecoderModel(const Checkpoint& checkpoint, Backend* backend, DecoderWeights weights)
    : backend_(backend), config_(checkpoint.config()), weights_(std::move(weights)) {
  info_ = InfoOf(checkpoint, weights_.packed_bytes);
  layout_ = LayoutFor(config_, backend->kv_element_bytes());
  CreateActivations();
}

void DecoderModel::CreateActivations() {
  for (const DecoderLayer& layer : weights_.layers) {
    inputs_.AddReaders({layer.q.get(), layer.k.get(), layer.v.get(), layer.o.get()});
    inputs_.AddReaders({layer.gate.get(), layer.up.get(), layer.down.get()});
    inputs_.AddReaders({layer.router.get(), layer.expert_gate.get(), layer.expert_up.get()});
  }
  inputs_.Create(backend_);
  qkv_input_ = ffn_input_ = inputs_.OfWidth(config_.hidden);
  o_input_ = inputs_.OfWidth(int64_t{config_.heads} * config_.head_dim);
  down_input_ = inputs_.OfWidth(config_.intermediate);  // nullptr without a dense layer
  // Few rows of the head's own type, which the layers need not prepare.
  const Weight* head = weights_.head.get();
  head_input_ = inputs_.CreateOwn(backend_, config_.hidden, {&head, 1});
}

void DecoderModel::ReserveBuffers(int tokens) {
  const int64_t q_cols = int64_t{config_.heads} * config_.head_dim;
  const int64_t kv_cols = int64_t{config_.kv_heads} * config_.head_dim;
  hidden_.Grow(backend_, tokens, config_.hidden);
  q_.Grow(backend_, tokens, q_cols);
  k_.Grow(backend_, tokens, kv_cols);
  v_.Grow(backend_, tokens, kv_cols);
  attention_.Grow(backend_, tokens, q_cols);
  if (down_input_ != nullptr) ffn_.Grow(backend_, tokens, config_.intermediate);
}

const float* DecoderModel::Forward(const StepInput& step) {
  const int tokens = step.shape.num_tokens;
  ReserveBuffers(tokens);
  backend_->Embed(weights_.embedding_or_head(), step.token, tokens, hidden_.data());
  for (int i = 0; i < config_.layers; ++i) {
    const DecoderLayer& layer = weights_.layers[static_cast<size_t>(i)];
    RunAttention(step, i);
    backend_->NormQuantize(hidden_.data(), nullptr, tokens, layer.ffn_norm.get(), config_.norm_eps,
                           ffn_input_);
    if (layer.router != nullptr) {
      RunSparseFfn(layer, tokens);
    } else {
      RunDenseFfn(layer, tokens);
    }
  }
  return hidden_.data();
}

void DecoderModel::RunAttention(const StepInput& step, int index) {
  const DecoderLayer& layer = weights_.layers[static_cast<size_t>(index)];
  const int tokens = step.shape.num_tokens;
  backend_->NormQuantize(hidden_.data(), nullptr, tokens, layer.attn_norm.get(), config_.norm_eps,
                         qkv_input_);
  const Weight* qkv[] = {layer.q.get(), layer.k.get(), layer.v.get()};
  const Weight* biases[] = {layer.q_bias.get(), layer.k_bias.get(), layer.v_bias.get()};
  float* outputs[] = {q_.data(), k_.data(), v_.data()};
  backend_->Linear(
      {.input = qkv_input_, .rows = tokens, .weights = qkv, .biases = biases, .outputs = outputs});
  const AttentionSpec spec{
      .layer = index,
      .heads = config_.heads,
      .kv_heads = config_.kv_heads,
      .head_dim = config_.head_dim,
      .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
      .rope_style = config_.rope.style,
      .rope_dim = config_.rope.dim,
      .inv_freq = config_.rope.inv_freq.data(),
      .rope_factor = config_.rope.attention_factor,
      .q_norm = layer.q_norm.get(),
      .k_norm = layer.k_norm.get(),
      .norm_eps = config_.norm_eps,
  };
  backend_->RopeAndCache(step, spec, q_.data(), k_.data(), v_.data());
  backend_->Attention(step, spec, q_.data(), attention_.data());
  backend_->NormQuantize(attention_.data(), nullptr, tokens, nullptr, 0.0F, o_input_);
  const Weight* o[] = {layer.o.get()};
  const Weight* o_bias[] = {layer.o_bias.get()};
  float* residual[] = {hidden_.data()};
  backend_->Linear({.input = o_input_,
                    .rows = tokens,
                    .weights = o,
                    .biases = o_bias,
                    .outputs = residual,
                    .epilogue = Epilogue::kAdd});
}

void DecoderModel::RunDenseFfn(const DecoderLayer& layer, int tokens) {
  const Weight* gate_up[] = {layer.gate.get(), layer.up.get()};
  const Weight* gate_up_bias[] = {layer.gate_bias.get(), layer.up_bias.get()};
  float* inner[] = {ffn_.data()};
  backend_->Linear({.input = ffn_input_,
                    .rows = tokens,
                    .weights = gate_up,
                    .biases = gate_up_bias,
                    .outputs = inner,
                    .epilogue = Epilogue::kSiluMul});
  backend_->NormQuantize(ffn_.data(), nullptr, tokens, nullptr, 0.0F, down_input_);
  const Weight* down[] = {layer.down.get()};
  const Weight* down_bias[] = {layer.down_bias.get()};
  float* residual[] = {hidden_.data()};
  backend_->Linear({.input = down_input_,
                    .rows = tokens,
                    .weights = down,
                    .biases = down_bias,
                    .outputs = residual,
                    .epilogue = Epilogue::kAdd});
}

void DecoderModel::RunSparseFfn(const DecoderLayer& layer, int tokens) {
  backend_->Moe({.input = ffn_input_,
                 .rows = tokens,
                 .router = layer.router.get(),
                 .gate = layer.expert_gate.get(),
                 .up = layer.expert_up.get(),
                 .down = layer.expert_down.get(),
                 .top_k = config_.moe.top_k,
                 .normalize_top_k = config_.moe.normalize_top_k,
                 .out = hidden_.data()});
}

void DecoderModel::Head(const float* hidden, const int32_t* row_index, int rows, float* logits) {
  if (rows == 0) return;
  backend_->NormQuantize(hidden, row_index, rows, weights_.output_norm.get(), config_.norm_eps,
                         head_input_);
  const Weight* head[] = {weights_.head.get()};
  float* outputs[] = {logits};
  backend_->Linear({.input = head_input_, .rows = rows, .weights = head, .outputs = outputs});
}

int DecoderModel::embedding_size() const {
  const bool can = backend_->NormRow(nullptr, 0, 0, *weights_.output_norm, 0.0F, nullptr);
  return can ? info_.hidden : 0;
}

void DecoderModel::Embed(const float* hidden, int row, float* out) {
  backend_->NormRow(hidden, row, info_.hidden, *weights_.output_norm, config_.norm_eps, out);
}

}  // namespace deepinfer
