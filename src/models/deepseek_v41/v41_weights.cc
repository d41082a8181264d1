#include "models/deepseek_v41/v41_weights.h"

#include <utility>

#include "base/format.h"
#include "models/tensor_census.h"
#include "tensor/dequantize.h"
#include "tensor/scaled_tensor.h"

namespace deepinfer {
namespace {

constexpr DType kVectorTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Notes what is to be bound while the census is taken; binds it afterwards in the same order.
class BindList {
 public:
  BindList(const Checkpoint& checkpoint, const V41Config& config)
      : checkpoint_(checkpoint), config_(config), census_(checkpoint.file()) {}

  void Vector(const std::string& name, std::vector<int64_t> shape, std::unique_ptr<Weight>* to) {
    const TensorView* view = census_.Take(name, shape, kVectorTypes);
    if (view != nullptr) Note({*view}, WeightRole::kVector, to);
  }
  void Matrix(const std::string& base, int64_t rows, int64_t cols, std::unique_ptr<Weight>* to,
              WeightRole role = WeightRole::kLinear) {
    Note({census_.TakeMatrix(base, rows, cols)}, role, to);
  }
  // A float matrix under its own name, without ".weight".
  void Plain(const std::string& name, int64_t rows, int64_t cols, std::unique_ptr<Weight>* to) {
    const TensorView* view = census_.Take(name, {rows, cols}, kVectorTypes);
    if (view != nullptr) Note({*view}, WeightRole::kLinear, to);
  }
  void Experts(const std::string& prefix, std::string_view matrix, int experts, int64_t rows,
               int64_t cols, std::unique_ptr<Weight>* to) {
    std::vector<TensorView> views;
    for (int e = 0; e < experts; ++e) {
      views.push_back(census_.TakeMatrix(Format("{}{}.{}", prefix, e, matrix), rows, cols));
    }
    Note(std::move(views), WeightRole::kExperts, to);
  }
  // Rows in equal parts, one per group.
  void Grouped(const std::string& base, int groups, int64_t rows, int64_t cols,
               std::unique_ptr<Weight>* to) {
    const TensorView whole = census_.TakeMatrix(base, groups * rows, cols);
    if (whole.bytes == 0) return;
    std::vector<TensorView> parts;
    for (int g = 0; g < groups; ++g) {
      Result<TensorView> part = RowsOf(whole, g * rows, (g + 1) * rows);
      if (!part.ok()) return census_.Problem(part.status().message());
      parts.push_back(*std::move(part));
    }
    Note(std::move(parts), WeightRole::kGroups, to);
  }

  TensorCensus& census() { return census_; }
  const V41Config& config() const { return config_; }

  Status Bind(Backend* backend, const LoadProgress& progress, size_t* packed_bytes) {
    int64_t total = 0;
    int64_t done = 0;
    for (const Item& item : items_) total += item.bytes;
    for (Item& item : items_) {
      const TensorFile& file = checkpoint_.file();
      Result<std::unique_ptr<Weight>> weight =
          item.role == WeightRole::kExperts  ? backend->BindExperts(file, item.views)
          : item.role == WeightRole::kGroups ? backend->BindGroups(file, item.views)
                                             : backend->Bind(file, item.views.front(), item.role);
      if (!weight.ok()) return weight.status();
      *packed_bytes += (*weight)->packed_bytes;
      *item.to = std::move(weight).value();
      done += item.bytes;
      if (progress.report != nullptr) progress.report(progress.context, done, total);
    }
    return {};
  }

  int64_t parameters() const { return parameters_; }
  void CountRows(const TensorView& view) { parameters_ += view.elements(); }

 private:
  struct Item {
    std::vector<TensorView> views;
    WeightRole role;
    std::unique_ptr<Weight>* to;
    int64_t bytes = 0;
  };
  void Note(std::vector<TensorView> views, WeightRole role, std::unique_ptr<Weight>* to) {
    Item item{.views = std::move(views), .role = role, .to = to};
    for (const TensorView& view : item.views) {
      item.bytes += static_cast<int64_t>(view.bytes);
      parameters_ += view.elements();
    }
    items_.push_back(std::move(item));
  }

  const Checkpoint& checkpoint_;
  const V41Config& config_;
  TensorCensus census_;
  std::vector<Item> items_;
  int64_t parameters_ = 0;
};

void TakeSite(BindList* list, const std::string& prefix, V41Site* site) {
  const int64_t streams = list->config().streams;
  const int64_t rows = streams * (streams + 2);
  list->Plain(prefix + "fn", rows, streams * list->config().hidden, &site->fn);
  list->Vector(prefix + "base", {rows}, &site->base);
  list->Vector(prefix + "scale", {3}, &site->scale);
}

void TakeAttention(BindList* list, const std::string& p, V41Block* block) {
  const V41Config& c = list->config();
  const int64_t q_cols = int64_t{c.heads} * c.head_dim;
  list->Vector(p + "attn_norm.weight", {c.hidden}, &block->attn_norm);
  TakeSite(list, p + "hc_attn_", &block->attn_site);
  list->Matrix(p + "attn.wq_a", c.q_rank, c.hidden, &block->wq_a);
  list->Matrix(p + "attn.wkv", c.head_dim, c.hidden, &block->wkv);
  list->Vector(p + "attn.q_norm.weight", {c.q_rank}, &block->q_norm);
  list->Matrix(p + "attn.wq_b", q_cols, c.q_rank, &block->wq_b);
  list->Vector(p + "attn.kv_norm.weight", {c.head_dim}, &block->kv_norm);
  list->Vector(p + "attn.attn_sink", {c.heads}, &block->sink);
  list->Grouped(p + "attn.wo_a", c.groups, c.o_rank, q_cols / c.groups, &block->wo_a);
  list->Matrix(p + "attn.wo_b", c.hidden, int64_t{c.groups} * c.o_rank, &block->wo_b);
}

void TakeExperts(BindList* list, const std::string& p, int experts, V41Block* block) {
  const V41Config& c = list->config();
  const std::string ffn = p + "ffn.";
  TakeSite(list, p + "hc_ffn_", &block->ffn_site);
  list->Vector(p + "ffn_norm.weight", {c.hidden}, &block->ffn_norm);
  list->Matrix(ffn + "gate", experts, c.hidden, &block->router);
  list->Vector(ffn + "gate.bias", {experts}, &block->bias);
  if (list->census().Has(ffn + "gate.bias_vl")) {
    list->Vector(ffn + "gate.bias_vl", {experts}, &block->image_bias);
  }
  const std::string prefix = ffn + "experts.";
  list->Experts(prefix, "w1", experts, c.expert_hidden, c.hidden, &block->w1);
  list->Experts(prefix, "w3", experts, c.expert_hidden, c.hidden, &block->w3);
  list->Experts(prefix, "w2", experts, c.hidden, c.expert_hidden, &block->w2);
  if (!c.shared_expert) return;
  list->Matrix(ffn + "shared_experts.w1", c.expert_hidden, c.hidden, &block->shared_w1);
  list->Matrix(ffn + "shared_experts.w3", c.expert_hidden, c.hidden, &block->shared_w3);
  list->Matrix(ffn + "shared_experts.w2", c.hidden, c.expert_hidden, &block->shared_w2);
}

void TakeSources(BindList* list, const std::string& p, int index, V41Layer* layer) {
  const V41Config& c = list->config();
  if (c.IsKvSource(index)) {
    list->Matrix(p + "attn.compressor.wkv", c.head_dim, c.hidden, &layer->pool_kv);
    if (c.roles_of(index).ratio > 1) {
      list->Matrix(p + "attn.compressor.wgate", c.head_dim, c.hidden, &layer->pool_gate);
    }
    list->Vector(p + "attn.compressor.norm.weight", {c.head_dim}, &layer->pool_norm);
    list->Matrix(p + "attn.indexer.wk", c.index_dim, c.head_dim, &layer->index_k);
    list->Vector(p + "attn.indexer.k_norm.weight", {c.index_dim}, &layer->index_k_norm);
  }
  if (c.IsIndexSource(index)) {
    list->Matrix(p + "attn.indexer.wq_b", int64_t{c.index_heads} * c.index_dim, c.q_rank,
                 &layer->index_q);
    list->Matrix(p + "attn.indexer.weights_proj", c.index_heads, c.hidden, &layer->index_weights);
  }
}

// The table itself is opened, not bound.
Status TakeTable(BindList* list, const std::string& p, const V41NgramTable& table,
                 const TensorFile& file, RowIo io, V41Layer* layer) {
  const V41Config& c = list->config();
  const TensorView view =
      list->census().TakeMatrix(p + "engram.embed", table.rows, c.ngram.head_dim);
  list->Matrix(p + "engram.wkv", int64_t{c.streams + 1} * c.hidden,
               int64_t{c.ngram.columns()} * c.ngram.head_dim, &layer->table_kv);
  list->Vector(p + "engram.q_weight", {c.streams, c.hidden}, &layer->table_q);
  list->Vector(p + "engram.k_weight", {c.streams, c.hidden}, &layer->table_k);
  if (view.bytes == 0) return {};  // noted
  list->CountRows(view);
  DI_ASSIGN(layer->table, RowTable::Open(file, view, {.io = io}));
  return {};
}

void TakeDraft(BindList* list, V41Weights* weights, const TensorView** confidence) {
  const V41Config& c = list->config();
  const V41Draft& draft = c.draft;
  if (draft.layers == 0) return list->census().Ignore("mtp.");
  if (!list->census().Has("mtp.0.main_proj.weight") &&
      !list->census().Has("mtp.0.attn.wkv.weight")) {
    weights->draft_note = Format(
        "the configuration names {} draft layers, but the checkpoint has "
        "no mtp.* tensors: no drafting",
        draft.layers);
    return list->census().Ignore("mtp.");
  }
  weights->draft.layers.resize(static_cast<size_t>(draft.layers));
  list->Matrix("mtp.0.main_proj", c.hidden,
               static_cast<int64_t>(draft.target_layers.size()) * c.hidden,
               &weights->draft.main_proj);
  list->Vector("mtp.0.main_norm.weight", {c.hidden}, &weights->draft.main_norm);
  for (int s = 0; s < draft.layers; ++s) {
    V41Block* block = &weights->draft.layers[static_cast<size_t>(s)];
    TakeAttention(list, Format("mtp.{}.", s), block);
    TakeExperts(list, Format("mtp.{}.", s), draft.experts.experts, block);
  }
  const std::string last = Format("mtp.{}.", draft.layers - 1);
  list->Vector(last + "norm.weight", {c.hidden}, &weights->draft.norm);
  list->Matrix(last + "markov_head.embed", c.vocab, draft.markov_rank, &weights->draft.markov_embed,
               WeightRole::kEmbedding);
  list->Matrix(last + "markov_head.head", c.vocab, draft.markov_rank, &weights->draft.markov_head);
  *confidence = list->census().Take(last + "confidence_head.proj.weight",
                                    {1, int64_t{c.hidden} + draft.markov_rank}, kVectorTypes);
}

}  // namespace

Result<V41Weights> BindV41(const Checkpoint& checkpoint, const V41Config& config, Backend* backend,
                           const LoadProgress& progress) {
  V41Weights weights;
  weights.file = checkpoint.shared_file();
  weights.layers.resize(static_cast<size_t>(config.layers));
  BindList list(checkpoint, config);
  list.Matrix("embed", config.vocab, config.hidden, &weights.embedding, WeightRole::kEmbedding);
  for (int i = 0; i < config.layers; ++i) {
    const std::string prefix = Format("layers.{}.", i);
    V41Layer* layer = &weights.layers[static_cast<size_t>(i)];
    for (const V41NgramTable& table : config.ngram.tables) {
      if (table.layer != i) continue;
      DI_TRY(TakeTable(&list, prefix, table, checkpoint.file(), backend->info().row_io, layer));
    }
    TakeAttention(&list, prefix, layer);
    TakeSources(&list, prefix, i, layer);
    TakeExperts(&list, prefix, config.experts.experts, layer);
  }
  list.Vector("norm.weight", {config.hidden}, &weights.norm);
  list.Matrix("head", config.vocab, config.hidden, &weights.head);
  const TensorView* confidence = nullptr;
  TakeDraft(&list, &weights, &confidence);
  for (const char* prefix :
       {"vision.", "aligner.", "image_start", "image_end", "image_newline", "image_pad"}) {
    list.census().Ignore(prefix);
  }
  DI_TRY(list.census().Finish(checkpoint.path(), "deepseek_v41"));
  if (confidence != nullptr) {
    DI_ASSIGN(weights.draft.confidence, DequantizeTensor(*confidence));
  }
  DI_TRY(list.Bind(backend, progress, &weights.packed_bytes));
  weights.parameters = list.parameters();
  return weights;
}

}  // namespace deepinfer
