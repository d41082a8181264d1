#include "models/deepseek_v41/v41_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/format.h"
#include "models/model_info.h"
#include "tensor/fake_quant.h"

namespace deepinfer {
namespace {

// Tokens of a step that may be taken back: drafts of a block, and longer ones of other drafters.
constexpr int kRollback = 16;
constexpr int kPositionsStep = 16;  // keeps every ring a multiple of 16 bytes

int RingPositions(int lookback, int rollback) {
  return (lookback + rollback + kPositionsStep - 1) / kPositionsStep * kPositionsStep;
}

}  // namespace

Result<std::unique_ptr<Model>> V41Model::Load(const Checkpoint& checkpoint, Backend* backend,
                                              const LoadProgress& progress) {
  if (backend->sparse_ops() == nullptr) {
    return Invalid(Format("device {} has no stages for architecture deepseek_v41 "
                          "(backend/sparse_ops.h)",
                          backend->info().name))
        .WithParam("device");
  }
  DI_ASSIGN(V41Config config, ReadV41Config(checkpoint.config_json()));
  DI_TRY(ReadV41Ngram(checkpoint.directory(), checkpoint.config_json(), &config));
  DI_ASSIGN(V41Weights weights, BindV41(checkpoint, config, backend, progress));
  return std::unique_ptr<Model>(
      new V41Model(checkpoint, std::move(config), backend, std::move(weights)));
}

V41Model::V41Model(const Checkpoint& checkpoint, V41Config config, Backend* backend,
                   V41Weights weights)
    : backend_(backend),
      ops_(backend->sparse_ops()),
      config_(std::move(config)),
      weights_(std::move(weights)) {
  info_ = InfoOf(checkpoint, weights_.packed_bytes);
  info_.parameters = weights_.parameters;
  info_.image_id = config_.image_id;
  cache_ = PlanCache(config_, static_cast<int>(weights_.draft.layers.size()));
  CreateActivations();
}

Result<CacheLayout> V41Model::LayoutOf(const Checkpoint& checkpoint, int /*kv_element_bytes*/) {
  DI_ASSIGN(V41Config config, ReadV41Config(checkpoint.config_json()));
  DI_TRY(ReadV41Ngram(checkpoint.directory(), checkpoint.config_json(), &config));
  const TensorFile& file = checkpoint.file();
  const bool drafts = file.Find("mtp.0.main_proj.weight") != nullptr ||
                      file.Find("mtp.0.attn.wkv.weight") != nullptr;
  return PlanCache(config, drafts ? config.draft.layers : 0).layout;
}

// Rows of windows and entries have a format of their own.
V41Model::CachePlan V41Model::PlanCache(const V41Config& c, int draft_layers) {
  CachePlan plan;
  CacheLayout& layout = plan.layout;
  layout.rollback_max = std::max(kRollback, c.draft.block + 1);
  layout.replay_window = c.window;
  plan.sources.resize(static_cast<size_t>(c.layers));
  int of_ratio[3] = {};
  for (const int layer : c.kv_sources) ++of_ratio[c.roles_of(layer).ratio];
  int groups[3] = {-1, -1, -1};
  for (const int ratio : {2, 1}) {
    if (of_ratio[ratio] == 0) continue;
    groups[ratio] = static_cast<int>(layout.history.size());
    layout.history.push_back({.name = Format("entries/{}", ratio),
                              .ratio = ratio,
                              .layers = of_ratio[ratio],
                              .row_bytes = MainEntryBytes(c.head_dim)});
    layout.history.push_back({.name = Format("index keys/{}", ratio),
                              .ratio = ratio,
                              .layers = of_ratio[ratio],
                              .row_bytes = IndexKeyBytes(c.index_dim)});
  }
  int next[3] = {};
  for (const int layer : c.kv_sources) {
    const int ratio = c.roles_of(layer).ratio;
    Source& source = plan.sources[static_cast<size_t>(layer)];
    source.tail_layer = next[ratio];
    source.entries = {groups[ratio], next[ratio]};
    source.keys = {groups[ratio] + 1, next[ratio]};
    ++next[ratio];
  }
  const auto add = [&layout](const char* name, int layers, int lookback, int64_t bytes) {
    layout.state.push_back({.name = name,
                            .layers = layers,
                            .positions = RingPositions(lookback, layout.rollback_max),
                            .position_bytes = bytes});
    return static_cast<int>(layout.state.size()) - 1;
  };
  if (of_ratio[2] > 0) {
    plan.tail_group = add("compressor tails", of_ratio[2], 1,
                          int64_t{2} * c.head_dim * static_cast<int64_t>(sizeof(float)));
  }
  if (c.ngram.ngram > 0) plan.ngram_group = add("token ids", 1, kLeadTokens, sizeof(int32_t));
  plan.window_group = add("windows", c.layers, c.window, WindowRowBytes(c.head_dim));
  if (draft_layers > 0) {
    plan.draft_group = add("draft windows", draft_layers, c.window, WindowRowBytes(c.head_dim));
  }
  return plan;
}

void V41Model::CreateActivations() {
  const V41Config& c = config_;
  const auto create = [this](int64_t cols, std::vector<const Weight*> readers) {
    std::erase(readers, nullptr);
    return inputs_.emplace_back(backend_->CreateActivation(cols, readers)).get();
  };
  std::vector<const Weight*> mix, hidden, rank, out, latent, table, shared;
  const auto block = [&](const V41Block& b) {
    mix.insert(mix.end(), {b.attn_site.fn.get(), b.ffn_site.fn.get()});
    hidden.insert(hidden.end(), {b.wq_a.get(), b.wkv.get(), b.router.get(), b.w1.get(), b.w3.get(),
                                 b.shared_w1.get(), b.shared_w3.get()});
    rank.push_back(b.wq_b.get());
    out.push_back(b.wo_b.get());
    shared.push_back(b.shared_w2.get());
  };
  for (const V41Layer& layer : weights_.layers) {
    block(layer);
    hidden.insert(hidden.end(),
                  {layer.pool_kv.get(), layer.pool_gate.get(), layer.index_weights.get()});
    rank.push_back(layer.index_q.get());
    latent.push_back(layer.index_k.get());
    table.push_back(layer.table_kv.get());
  }
  for (const V41Block& layer : weights_.draft.layers) block(layer);
  mix_input_ = create(int64_t{c.streams} * c.hidden, std::move(mix));
  hidden_input_ = create(c.hidden, std::move(hidden));
  rank_input_ = create(c.q_rank, std::move(rank));
  out_input_ = create(int64_t{c.groups} * c.o_rank, std::move(out));
  head_input_ = create(c.hidden, {weights_.head.get()});
  if (c.shared_expert) shared_input_ = create(c.expert_hidden, std::move(shared));
  if (!c.kv_sources.empty()) latent_input_ = create(c.head_dim, std::move(latent));
  if (c.ngram.ngram > 0) {
    table_input_ = create(int64_t{c.ngram.columns()} * c.ngram.head_dim, std::move(table));
  }
  if (!weights_.draft.layers.empty()) {
    tap_input_ = create(weights_.draft.main_proj->cols, {weights_.draft.main_proj.get()});
    markov_input_ = create(c.draft.markov_rank, {weights_.draft.markov_head.get()});
  }
}

void V41Model::Reserve(int tokens) {
  const V41Config& c = config_;
  const int64_t n = c.streams;
  Grow(&streams_, tokens, n * c.hidden);
  for (auto* buffer : {&pre_, &attn_pre_, &post_}) Grow(buffer, tokens, n);
  Grow(&comb_, tokens, n * n);
  Grow(&raw_, tokens, n * (n + 2));
  for (auto* buffer : {&embedded_, &collapsed_, &output_, &hidden_}) Grow(buffer, tokens, c.hidden);
  Grow(&rank_, tokens, c.q_rank);
  Grow(&q_, tokens, int64_t{c.heads} * c.head_dim);
  Grow(&attention_, tokens, int64_t{c.heads} * c.head_dim);
  Grow(&kv_, tokens, c.head_dim);
  Grow(&shared_, tokens, c.expert_hidden);
  Grow(&window_rows_, tokens, WindowRowBytes(c.head_dim));
  if (!c.kv_sources.empty()) {
    for (auto* buffer : {&pool_k_, &pool_gate_, &latent_}) Grow(buffer, tokens, c.head_dim);
    Grow(&key_, tokens, c.index_dim);
    Grow(&index_q_, tokens, int64_t{c.index_heads} * c.index_dim);
    Grow(&index_weight_, tokens, c.index_heads);
    Grow(&selected_, tokens, c.index_top_k);
    Grow(&candidate_, tokens, c.candidate_blocks);
    Grow(&selected_count_, tokens, 1);
    Grow(&candidate_count_, tokens, 1);
  }
  if (c.ngram.ngram > 0) {
    table_rows_.resize(c.ngram.tables.size());
    for (auto& rows : table_rows_) Grow(&rows, tokens, c.ngram.columns());
    Grow(&table_values_, tokens, int64_t{c.ngram.columns()} * c.ngram.head_dim);
    Grow(&table_kv_, tokens, (n + 1) * c.hidden);
  }
  if (drafting_) Grow(&taps_, tokens, weights_.draft.main_proj->cols);
}

TableStats V41Model::table_stats() const {
  TableStats sum;
  for (const V41Layer& layer : weights_.layers) {
    if (layer.table == nullptr) continue;
    const RowTableStats rows = layer.table->stats();
    ++sum.tables;
    sum.rows.rows += rows.rows;
    sum.rows.hits += rows.hits;
    sum.rows.reads += rows.reads;
    sum.rows.read_bytes += rows.read_bytes;
    sum.rows.errors += rows.errors;
    sum.rows.stall_us += rows.stall_us;
  }
  return sum;
}

StreamShape V41Model::Shape(int tokens) const {
  return {.rows = tokens, .streams = config_.streams, .hidden = config_.hidden};
}

const float* V41Model::Forward(const StepInput& step) {
  const V41Config& c = config_;
  const int tokens = step.shape.num_tokens;
  Reserve(tokens);
  // The hashes need token ids alone: their rows are on the way while the first layers run.
  if (c.ngram.ngram > 0) {
    std::vector<NgramTable> tables;
    std::vector<int64_t*> rows;
    for (size_t i = 0; i < c.ngram.tables.size(); ++i) {
      const V41NgramTable& table = c.ngram.tables[i];
      tables.push_back(
          {.multiplier = table.multiplier, .prime = table.prime, .offset = table.offset});
      rows.push_back(table_rows_[i].data());
    }
    ops_->NgramRows(step,
                    {.token_map = c.ngram.token_map,
                     .pad = c.ngram.pad,
                     .ngram = c.ngram.ngram,
                     .heads = c.ngram.heads,
                     .state_group = cache_.ngram_group,
                     .tables = tables},
                    rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      ops_->PrefetchRows(weights_.layers[static_cast<size_t>(c.ngram.tables[i].layer)].table.get(),
                         rows[i], int64_t{tokens} * c.ngram.columns());
    }
  }
  backend_->Embed(*weights_.embedding, step.token, tokens, embedded_.data());
  ops_->StartStreams(Shape(tokens), embedded_.data(), streams_.data(), pre_.data());

  StepInput running = step;
  const bool cuts = step.suffix_begin != nullptr && c.boundary >= 0;
  const int32_t* index = nullptr;
  for (int i = 0; i < c.layers; ++i) {
    for (size_t t = 0; t < c.ngram.tables.size(); ++t) {
      if (c.ngram.tables[t].layer == i) RunNgram(running, t);
    }
    NormedInput(running, *weights_.layers[static_cast<size_t>(i)].attn_norm, pre_, hidden_input_);
    if (c.IsKvSource(i)) Publish(running, i);
    if (cuts && i == c.boundary) {
      const SparseOps::Suffix suffix = ops_->TakeSuffix(step);
      index = suffix.index;
      running = CutToSuffix(suffix.step, index);
      if (running.shape.num_tokens == 0) break;
      NormedInput(running, *weights_.layers[static_cast<size_t>(i)].attn_norm, pre_, hidden_input_);
    }
    RunLayer(running, i);
  }
  const int rows = running.shape.num_tokens;
  ops_->Collapse(Shape(rows), streams_.data(), pre_.data(), collapsed_.data());
  if (drafting_ && rows > 0) WriteDraftContext(running);
  if (!cuts) return collapsed_.data();
  ops_->Scatter(collapsed_.data(), index, rows, c.hidden, hidden_.data(), tokens);
  return hidden_.data();
}

// The streams and coefficients of the tokens that go on.
StepInput V41Model::CutToSuffix(const StepInput& suffix, const int32_t* index) {
  const int rows = suffix.shape.num_tokens;
  const int64_t width = int64_t{config_.streams} * config_.hidden;
  suffix_scratch_.resize(static_cast<size_t>(rows * width));
  ops_->Gather(streams_.data(), index, rows, width, suffix_scratch_.data());
  std::swap(suffix_scratch_, streams_);
  suffix_scratch_.resize(static_cast<size_t>(rows) * static_cast<size_t>(config_.streams));
  std::vector<float> pre(suffix_scratch_.size());
  ops_->Gather(pre_.data(), index, rows, config_.streams, pre.data());
  std::swap(pre, pre_);
  return suffix;
}

void V41Model::RunNgram(const StepInput& step, size_t table) {
  const int tokens = step.shape.num_tokens;
  const V41Layer& layer = weights_.layers[static_cast<size_t>(config_.ngram.tables[table].layer)];
  ops_->GatherRows(layer.table.get(), table_rows_[table].data(),
                   int64_t{tokens} * config_.ngram.columns(), table_values_.data());
  backend_->NormQuantize(table_values_.data(), nullptr, tokens, nullptr, 0.0F, table_input_);
  const Weight* weights[] = {layer.table_kv.get()};
  float* outputs[] = {table_kv_.data()};
  backend_->Linear({.input = table_input_, .rows = tokens, .weights = weights, .outputs = outputs});
  ops_->NgramGate({.shape = Shape(tokens),
                   .x = streams_.data(),
                   .kv = table_kv_.data(),
                   .q_weight = layer.table_q.get(),
                   .k_weight = layer.table_k.get(),
                   .kind = step.kind,
                   .norm_eps = static_cast<float>(config_.norm_eps)});
}

void V41Model::NormedInput(const StepInput& step, const Weight& norm, const std::vector<float>& pre,
                           Activation* out) {
  const int tokens = step.shape.num_tokens;
  ops_->Collapse(Shape(tokens), streams_.data(), pre.data(), collapsed_.data());
  backend_->NormQuantize(collapsed_.data(), nullptr, tokens, &norm,
                         static_cast<float>(config_.norm_eps), out);
}

void V41Model::Mix(int tokens, const V41Site& site, std::vector<float>* pre) {
  backend_->NormQuantize(streams_.data(), nullptr, tokens, nullptr, 0.0F, mix_input_);
  const Weight* weights[] = {site.fn.get()};
  float* outputs[] = {raw_.data()};
  backend_->Linear({.input = mix_input_, .rows = tokens, .weights = weights, .outputs = outputs});
  ops_->StreamMix({.shape = Shape(tokens),
                   .x = streams_.data(),
                   .raw = raw_.data(),
                   .base = site.base.get(),
                   .scale = site.scale.get(),
                   .sinkhorn_iters = config_.sinkhorn_iters,
                   .norm_eps = static_cast<float>(config_.norm_eps),
                   .hc_eps = static_cast<float>(config_.hc_eps),
                   .pre = pre->data(),
                   .post = post_.data(),
                   .comb = comb_.data()});
}

// Entries and index keys of the groups that complete in this step; reads hidden_input_.
void V41Model::Publish(const StepInput& step, int index) {
  const V41Config& c = config_;
  const V41Layer& layer = weights_.layers[static_cast<size_t>(index)];
  const Source& source = cache_.sources[static_cast<size_t>(index)];
  const int ratio = c.roles_of(index).ratio;
  const int tokens = step.shape.num_tokens;
  const Weight* weights[] = {layer.pool_kv.get(), layer.pool_gate.get()};
  float* outputs[] = {pool_k_.data(), pool_gate_.data()};
  const size_t count = ratio > 1 ? 2 : 1;
  backend_->Linear({.input = hidden_input_,
                    .rows = tokens,
                    .weights = std::span(weights).first(count),
                    .outputs = std::span(outputs).first(count)});
  ops_->Compress(step,
                 {.dim = c.head_dim,
                  .ratio = ratio,
                  .tail_group = cache_.tail_group,
                  .tail_layer = source.tail_layer,
                  .norm = layer.pool_norm.get(),
                  .norm_eps = static_cast<float>(c.norm_eps)},
                 {.k = pool_k_.data(), .gate = pool_gate_.data(), .latent = latent_.data()});
  backend_->NormQuantize(latent_.data(), nullptr, tokens, nullptr, 0.0F, latent_input_);
  const Weight* key_weights[] = {layer.index_k.get()};
  float* key_outputs[] = {key_.data()};
  backend_->Linear(
      {.input = latent_input_, .rows = tokens, .weights = key_weights, .outputs = key_outputs});
  ops_->WriteEntries(step,
                     {.dim = c.head_dim,
                      .key_dim = c.index_dim,
                      .ratio = ratio,
                      .rope = {c.compress_rope.data(), c.rope_dim},
                      .key_norm = layer.index_k_norm.get(),
                      .norm_eps = static_cast<float>(c.norm_eps),
                      .entries = source.entries,
                      .keys = source.keys},
                     {.latent = latent_.data(), .key = key_.data()});
}

V41LayerView V41Model::View(const StepInput& step, int index) const {
  const V41LayerRole& role = config_.roles_of(index);
  V41LayerView view{.layer = index,
                    .step = &step,
                    .streams = streams_.data(),
                    .pre = pre_.data(),
                    .output = output_.data()};
  if (role.ratio > 0) {
    view.selected = selected_.data();
    view.selected_count = selected_count_.data();
    view.candidate = candidate_.data();
    view.candidate_count = candidate_count_.data();
  }
  for (size_t i = 0; i < config_.ngram.tables.size(); ++i) {
    if (config_.ngram.tables[i].layer == index) view.table_rows = table_rows_[i].data();
  }
  return view;
}

void V41Model::RunLayer(const StepInput& step, int index) {
  const V41Layer& layer = weights_.layers[static_cast<size_t>(index)];
  const int tokens = step.shape.num_tokens;
  const StreamShape shape = Shape(tokens);
  if (probe_ != nullptr) probe_->OnInput(View(step, index));
  if (drafting_) {
    const std::vector<int>& targets = config_.draft.target_layers;
    const auto found = std::find(targets.begin(), targets.end(), index);
    if (found != targets.end()) {
      ops_->StreamMean(shape, streams_.data(),
                       taps_.data() + (found - targets.begin()) * config_.hidden,
                       static_cast<int64_t>(targets.size()) * config_.hidden);
    }
  }
  Mix(tokens, layer.attn_site, &attn_pre_);
  RunAttention(step, index);
  if (probe_ != nullptr) probe_->OnAttention(View(step, index));
  ops_->Expand(shape, output_.data(), post_.data(), comb_.data(), streams_.data());

  Mix(tokens, layer.ffn_site, &pre_);
  NormedInput(step, *layer.ffn_norm, attn_pre_, hidden_input_);
  RunExperts(layer, config_.experts, step.kind, tokens);
  ops_->Expand(shape, output_.data(), post_.data(), comb_.data(), streams_.data());
  if (probe_ != nullptr) probe_->OnOutput(View(step, index));
}

WindowSpec V41Model::Window(const V41Block& block, bool compressed) const {
  return {.heads = config_.heads,
          .dim = config_.head_dim,
          .window = config_.window,
          .rope = {compressed ? config_.compress_rope.data() : config_.main_rope.data(),
                   config_.rope_dim},
          .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
          .kv_norm = block.kv_norm.get(),
          .norm_eps = static_cast<float>(config_.norm_eps),
          .sink = block.sink.get()};
}

// Reads hidden_input_, leaves the result in output_.
void V41Model::RunAttention(const StepInput& step, int index) {
  const V41Layer& layer = weights_.layers[static_cast<size_t>(index)];
  const V41LayerRole& role = config_.roles_of(index);
  const int tokens = step.shape.num_tokens;
  const Weight* first[] = {layer.wq_a.get(), layer.wkv.get()};
  float* first_out[] = {rank_.data(), kv_.data()};
  backend_->Linear(
      {.input = hidden_input_, .rows = tokens, .weights = first, .outputs = first_out});
  backend_->NormQuantize(rank_.data(), nullptr, tokens, layer.q_norm.get(),
                         static_cast<float>(config_.norm_eps), rank_input_);
  const Weight* second[] = {layer.wq_b.get()};
  float* second_out[] = {q_.data()};
  backend_->Linear(
      {.input = rank_input_, .rows = tokens, .weights = second, .outputs = second_out});
  if (config_.IsIndexSource(index)) RunSelection(step, index);

  WindowSpec spec = Window(layer, role.ratio > 0);
  spec.ring = {cache_.window_group, index};
  if (role.ratio > 0) {
    spec.entries = cache_.sources[static_cast<size_t>(role.kv_source)].entries;
    spec.ratio = role.ratio;
  }
  const bool behind = config_.boundary >= 0 && index >= config_.boundary;
  const WindowArgs args{
      .q = q_.data(),
      .kv = kv_.data(),
      .rows = window_rows_.data(),
      .begin = behind && step.suffix_begin != nullptr ? step.suffix_begin : step.replay_begin,
      .selected = selected_.data(),
      .selected_count = selected_count_.data(),
      .top_k = config_.index_top_k,
      .out = attention_.data()};
  ops_->EncodeWindow(step, spec, args);
  ops_->WindowAttention(step, spec, args);
  ProjectOut(layer, tokens);
}

void V41Model::RunSelection(const StepInput& step, int index) {
  const V41Config& c = config_;
  const V41Layer& layer = weights_.layers[static_cast<size_t>(index)];
  const V41LayerRole& role = c.roles_of(index);
  const int tokens = step.shape.num_tokens;
  const Weight* q[] = {layer.index_q.get()};
  float* q_out[] = {index_q_.data()};
  backend_->Linear({.input = rank_input_, .rows = tokens, .weights = q, .outputs = q_out});
  const Weight* weight[] = {layer.index_weights.get()};
  float* weight_out[] = {index_weight_.data()};
  backend_->Linear(
      {.input = hidden_input_, .rows = tokens, .weights = weight, .outputs = weight_out});
  CandidateUse use = CandidateUse::kNone;
  if (index == c.candidate_source) use = CandidateUse::kBuild;
  if (c.candidate_source >= 0 && index > c.candidate_source) use = CandidateUse::kLimit;
  ops_->IndexSelect(step,
                    {.heads = c.index_heads,
                     .dim = c.index_dim,
                     .ratio = role.ratio,
                     .top_k = c.index_top_k,
                     .rope = {c.compress_rope.data(), c.rope_dim},
                     .keys = cache_.sources[static_cast<size_t>(role.kv_source)].keys,
                     .candidates = use,
                     .block_size = c.candidate_block_size,
                     .candidate_blocks = c.candidate_blocks},
                    {.q = index_q_.data(),
                     .weight = index_weight_.data(),
                     .selected = selected_.data(),
                     .selected_count = selected_count_.data(),
                     .candidate = candidate_.data(),
                     .candidate_count = candidate_count_.data()});
}

void V41Model::ProjectOut(const V41Block& block, int tokens) {
  ops_->GroupedLinear(
      {.x = attention_.data(), .rows = tokens, .weight = block.wo_a.get(), .out = out_input_});
  const Weight* weights[] = {block.wo_b.get()};
  float* outputs[] = {output_.data()};
  backend_->Linear({.input = out_input_, .rows = tokens, .weights = weights, .outputs = outputs});
}

// Reads hidden_input_, leaves the result in output_.
void V41Model::RunExperts(const V41Block& block, const V41Experts& experts, const TokenKind* kind,
                          int tokens) {
  const auto limit = static_cast<float>(config_.swiglu_limit);
  if (block.shared_w1 != nullptr) {
    const Weight* gate_up[] = {block.shared_w1.get(), block.shared_w3.get()};
    float* inner[] = {shared_.data()};
    backend_->Linear({.input = hidden_input_,
                      .rows = tokens,
                      .weights = gate_up,
                      .outputs = inner,
                      .epilogue = Epilogue::kSiluMul,
                      .gate_limit = limit});
    backend_->NormQuantize(shared_.data(), nullptr, tokens, nullptr, 0.0F, shared_input_);
    const Weight* down[] = {block.shared_w2.get()};
    float* outputs[] = {output_.data()};
    backend_->Linear({.input = shared_input_, .rows = tokens, .weights = down, .outputs = outputs});
  } else {
    std::fill_n(output_.begin(), int64_t{tokens} * config_.hidden, 0.0F);
  }
  backend_->Moe({.input = hidden_input_,
                 .rows = tokens,
                 .router = block.router.get(),
                 .gate = block.w1.get(),
                 .up = block.w3.get(),
                 .down = block.w2.get(),
                 .top_k = experts.top_k,
                 .normalize_top_k = config_.normalize_top_k && experts.top_k > 1,
                 .out = output_.data(),
                 .routing = {.scoring = RouterScoring::kSqrtSoftplus,
                             .bias = block.bias.get(),
                             .image_bias = block.image_bias.get(),
                             .kind = kind,
                             .normalize_eps = 1e-20F,
                             .scale = static_cast<float>(config_.route_scale)},
                 .gate_limit = limit});
}

void V41Model::Head(const float* hidden, const int32_t* row_index, int rows, float* logits) {
  if (rows == 0) return;
  backend_->NormQuantize(hidden, row_index, rows, weights_.norm.get(),
                         static_cast<float>(config_.norm_eps), head_input_);
  const Weight* head[] = {weights_.head.get()};
  float* outputs[] = {logits};
  backend_->Linear({.input = head_input_, .rows = rows, .weights = head, .outputs = outputs});
}

}  // namespace deepinfer
