#include "models/decoder/decoder_weights.h"

#include <utility>

#include "base/format.h"

namespace deepinfer {
namespace {

// Binds one tensor after the other and reports how far it got. The first error sticks.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, Backend* backend, const LoadProgress& progress)
      : checkpoint_(checkpoint), backend_(backend), progress_(progress) {
    for (const TensorView& view : checkpoint.file().tensors()) {
      bytes_total_ += static_cast<int64_t>(view.bytes);
    }
  }

  // nullptr when the checkpoint has no such tensor.
  std::unique_ptr<Weight> Optional(TensorRole role, WeightRole as, int layer = 0) {
    const TensorView* view = status_.ok() ? checkpoint_.Find(role, layer) : nullptr;
    if (view == nullptr) return nullptr;
    return Keep(backend_->Bind(checkpoint_.file(), *view, as), view->bytes);
  }

  std::unique_ptr<Weight> Required(TensorRole role, WeightRole as, int layer = 0) {
    if (status_.ok() && checkpoint_.Find(role, layer) == nullptr) {
      status_ =
          Invalid(Format("tensor {} is missing", TensorName(checkpoint_.format(), role, layer)));
    }
    return Optional(role, as, layer);
  }

  std::unique_ptr<Weight> Experts(TensorRole role, int layer) {
    if (!status_.ok()) return nullptr;
    const std::span<const TensorView> views = checkpoint_.Experts(role, layer);
    size_t bytes = 0;
    for (const TensorView& view : views) bytes += view.bytes;
    return Keep(backend_->BindExperts(checkpoint_.file(), views), bytes);
  }

  const Status& status() const { return status_; }
  size_t packed_bytes() const { return packed_bytes_; }

 private:
  std::unique_ptr<Weight> Keep(Result<std::unique_ptr<Weight>> weight, size_t source_bytes) {
    if (!weight.ok()) {
      status_ = weight.status();
      return nullptr;
    }
    packed_bytes_ += (*weight)->packed_bytes;
    bytes_done_ += static_cast<int64_t>(source_bytes);
    if (progress_.report != nullptr) {
      progress_.report(progress_.context, bytes_done_, bytes_total_);
    }
    return std::move(weight).value();
  }

  const Checkpoint& checkpoint_;
  Backend* backend_;
  const LoadProgress& progress_;
  Status status_;
  int64_t bytes_total_ = 0;
  int64_t bytes_done_ = 0;
  size_t packed_bytes_ = 0;
};

void BindAttention(Binder* binder, int index, DecoderLayer* layer) {
  using enum TensorRole;
  layer->attn_norm = binder->Required(kAttnNorm, WeightRole::kVector, index);
  layer->q = binder->Required(kQ, WeightRole::kLinear, index);
  layer->k = binder->Required(kK, WeightRole::kLinear, index);
  layer->v = binder->Required(kV, WeightRole::kLinear, index);
  layer->q_bias = binder->Optional(kQBias, WeightRole::kVector, index);
  layer->k_bias = binder->Optional(kKBias, WeightRole::kVector, index);
  layer->v_bias = binder->Optional(kVBias, WeightRole::kVector, index);
  layer->q_norm = binder->Optional(kQNorm, WeightRole::kVector, index);
  layer->k_norm = binder->Optional(kKNorm, WeightRole::kVector, index);
  layer->o = binder->Required(kO, WeightRole::kLinear, index);
  layer->o_bias = binder->Optional(kOBias, WeightRole::kVector, index);
}

void BindFfn(Binder* binder, int index, bool sparse, DecoderLayer* layer) {
  using enum TensorRole;
  layer->ffn_norm = binder->Required(kFfnNorm, WeightRole::kVector, index);
  if (sparse) {
    layer->router = binder->Required(kRouter, WeightRole::kLinear, index);
    layer->expert_gate = binder->Experts(kExpertGate, index);
    layer->expert_up = binder->Experts(kExpertUp, index);
    layer->expert_down = binder->Experts(kExpertDown, index);
    return;
  }
  layer->gate = binder->Required(kGate, WeightRole::kLinear, index);
  layer->up = binder->Required(kUp, WeightRole::kLinear, index);
  layer->gate_bias = binder->Optional(kGateBias, WeightRole::kVector, index);
  layer->up_bias = binder->Optional(kUpBias, WeightRole::kVector, index);
  layer->down = binder->Required(kDown, WeightRole::kLinear, index);
  layer->down_bias = binder->Optional(kDownBias, WeightRole::kVector, index);
}

}  // namespace

Result<DecoderWeights> BindDecoder(const Checkpoint& checkpoint, Backend* backend,
                                   const LoadProgress& progress) {
  const ModelConfig& config = checkpoint.config();
  Binder binder(checkpoint, backend, progress);
  DecoderWeights weights;
  if (!config.tied_head) {
    weights.embedding = binder.Required(TensorRole::kTokenEmbedding, WeightRole::kEmbedding);
  }
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) {
    DecoderLayer& layer = weights.layers[static_cast<size_t>(i)];
    BindAttention(&binder, i, &layer);
    BindFfn(&binder, i, config.IsSparse(i), &layer);
    DI_TRY(binder.status());
  }
  weights.output_norm = binder.Required(TensorRole::kOutputNorm, WeightRole::kVector);
  weights.head = binder.Required(
      config.tied_head ? TensorRole::kTokenEmbedding : TensorRole::kOutput, WeightRole::kLinear);
  DI_TRY(binder.status());
  weights.packed_bytes = binder.packed_bytes();
  return weights;
}

}  // namespace deepinfer
