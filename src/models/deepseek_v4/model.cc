#include "models/deepseek_v4/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "models/model_info.h"

namespace deepinfer {
namespace {

using Past = DeepseekV4Config::Past;
using Rounding = DeepseekV4Config::Rounding;

constexpr float kRoutingEps = 1e-20F;  // of the published normalisation of weights
// Tokens of drafts that a step may take back: the rings are that much longer than they are read.
constexpr int kRollbackMax = 16;

CompressorSpec::Reach ReachOf(Past past) {
  return past == Past::kChosen ? CompressorSpec::Reach::kWindowBefore
                               : CompressorSpec::Reach::kOwnWindow;
}

}  // namespace

Result<std::unique_ptr<Model>> DeepseekV4Model::Load(const Checkpoint& checkpoint, Backend* backend,
                                                     const LoadProgress& progress) {
  if (backend->sparse_ops() == nullptr || backend->compressed_ops() == nullptr) {
    return Invalid(Format("device {}: no stages for architecture {}; use device cpu",
                          backend->info().name, checkpoint.config().architecture))
        .WithParam("device");
  }
  DI_ASSIGN(DeepseekV4Config config, ReadDeepseekV4Config(checkpoint.config_json()));
  DI_ASSIGN(DeepseekV4Weights weights, BindDeepseekV4(checkpoint, config, backend, progress));
  return std::unique_ptr<Model>(
      new DeepseekV4Model(checkpoint, backend, std::move(config), std::move(weights)));
}

DeepseekV4Model::DeepseekV4Model(const Checkpoint& checkpoint, Backend* backend,
                                 DeepseekV4Config config, DeepseekV4Weights weights)
    : backend_(backend), config_(std::move(config)), weights_(std::move(weights)) {
  info_ = InfoOf(checkpoint, weights_.packed_bytes);
  cache_ = PlanCache(config_, weights_.draft != nullptr ? 1 : 0, backend_->kv_element_bytes());
  CreateActivations();
}

Result<CacheLayout> DeepseekV4Model::LayoutOf(const Checkpoint& checkpoint, int kv_element_bytes) {
  DI_ASSIGN(const DeepseekV4Config config, ReadDeepseekV4Config(checkpoint.config_json()));
  const bool drafts =
      config.draft_layers > 0 && checkpoint.file().Find("mtp.0.e_proj.weight") != nullptr;
  return PlanCache(config, drafts ? 1 : 0, kv_element_bytes).layout;
}

// A history group of entries and a ring of what they are made of, for the layers of one kind.
void DeepseekV4Model::AddCompressedGroups(const DeepseekV4Config& config, Past past, int ratio,
                                          int element_bytes, CachePlan* plan) {
  CacheLayout& layout = plan->layout;
  const int layers = config.CountOf(past);
  const bool chosen = past == Past::kChosen;
  const auto add = [&](const char* name, int dim, int bytes, Groups* groups) {
    const CompressorSpec spec{.dim = dim, .ratio = ratio, .reach = ReachOf(past)};
    groups->ring = static_cast<int>(layout.state.size());
    groups->history = static_cast<int>(layout.history.size());
    layout.state.push_back(
        {.name = Format("{} ring", name),
         .layers = layers,
         .positions = spec.lookback() + kRollbackMax,
         .position_bytes = int64_t{2} * spec.width() * static_cast<int64_t>(sizeof(float))});
    layout.history.push_back({.name = name,
                              .ratio = EntryRatio(ratio),
                              .layers = layers,
                              .row_bytes = int64_t{EntryElements(dim)} * bytes});
  };
  add(chosen ? "compressed" : "wide", config.head_dim, element_bytes,
      chosen ? &plan->chosen : &plan->every);
  if (chosen) add("index", config.index_dim, static_cast<int>(sizeof(float)), &plan->keys);
}

DeepseekV4Model::CachePlan DeepseekV4Model::PlanCache(const DeepseekV4Config& config,
                                                      int draft_layers, int element_bytes) {
  CachePlan plan;
  CacheLayout& layout = plan.layout;
  layout.rollback_max = kRollbackMax;
  const int64_t streams = int64_t{config.streams} * config.hidden;
  layout.state.push_back(
      {.name = "window",
       .layers = config.layers + draft_layers,
       .positions = config.window - 1 + kRollbackMax,
       .position_bytes = int64_t{EntryElements(config.head_dim)} * element_bytes});
  if (draft_layers > 0) {
    plan.draft_ring = static_cast<int>(layout.state.size());
    layout.state.push_back({.name = "draft streams",
                            .layers = draft_layers,
                            .positions = 1 + kRollbackMax,
                            .position_bytes = streams * static_cast<int64_t>(sizeof(float))});
  }
  plan.places.resize(config.layer.size());
  int chosen = 0;
  int every = 0;
  for (size_t i = 0; i < plan.places.size(); ++i) {
    const DeepseekV4Config::Layer& kind = config.layer[i];
    Place& place = plan.places[i];
    place.window = static_cast<int>(i);
    if (kind.past == Past::kChosen) {
      if (chosen == 0) AddCompressedGroups(config, kind.past, kind.ratio, element_bytes, &plan);
      place.entries = place.entries_ring = chosen;
      place.keys = place.keys_ring = chosen++;
    } else if (kind.past == Past::kEveryEntry) {
      if (every == 0) AddCompressedGroups(config, kind.past, kind.ratio, element_bytes, &plan);
      place.entries = place.entries_ring = every++;
    }
  }
  // Blocks are what sequences are accounted by, so they hold something even where nothing is kept.
  if (layout.history.empty()) {
    layout.history.push_back({.name = "none", .ratio = 16, .layers = 1, .row_bytes = 16});
  }
  return plan;
}

void DeepseekV4Model::CreateActivations() {
  std::vector<const Weight*> mixers = {weights_.head_hyper.fn.get()};
  const auto add_layer = [&](const DeepseekV4Layer& layer) {
    mixers.push_back(layer.attn_hyper.fn.get());
    mixers.push_back(layer.ffn_hyper.fn.get());
    inputs_.AddReaders({layer.q_a.get(), layer.kv.get(), layer.q_b.get(), layer.o_b.get()});
    inputs_.AddReaders({layer.entries.kv.get(), layer.entries.gate.get()});
    inputs_.AddReaders({layer.keys.kv.get(), layer.keys.gate.get()});
    inputs_.AddReaders({layer.index_q.get(), layer.index_weights.get()});
    inputs_.AddReaders({layer.router.get(), layer.expert_gate.get(), layer.expert_up.get()});
    inputs_.AddReaders({layer.shared_gate.get(), layer.shared_up.get(), layer.shared_down.get()});
  };
  for (const DeepseekV4Layer& layer : weights_.layers) add_layer(layer);
  if (weights_.draft != nullptr) {
    add_layer(weights_.draft->layer);
    inputs_.AddReaders({weights_.draft->token_proj.get(), weights_.draft->stream_proj.get()});
    mixers.push_back(weights_.draft->head_hyper.fn.get());
  }
  inputs_.Create(backend_);
  hidden_input_ = inputs_.OfWidth(config_.hidden);
  query_input_ = inputs_.OfWidth(config_.q_lora);
  o_input_ = inputs_.OfWidth(int64_t{config_.output_groups} * config_.output_lora);
  if (config_.shared_intermediate > 0) {
    // The experts still read the hidden input when this one is written.
    shared_input_ =
        config_.shared_intermediate == config_.hidden
            ? inputs_.CreateOwn(backend_, config_.hidden, inputs_.ReadersOf(config_.hidden))
            : inputs_.OfWidth(config_.shared_intermediate);
  }
  streams_input_ = inputs_.CreateOwn(backend_, int64_t{config_.streams} * config_.hidden, mixers);
  const Weight* head = weights_.head.get();
  head_input_ = inputs_.CreateOwn(backend_, config_.hidden, {&head, 1});
}

void DeepseekV4Model::ReserveBuffers(int tokens) {
  const int n = config_.streams;
  Grow(&x_, tokens, int64_t{n} * config_.hidden);
  Grow(&raw_, tokens, n * (n + 2));
  Grow(&pre_, tokens, n);
  Grow(&post_, tokens, n);
  Grow(&comb_, tokens, n * n);
  Grow(&u_, tokens, config_.hidden);
  Grow(&y_, tokens, config_.hidden);
  Grow(&low_query_, tokens, config_.q_lora);
  Grow(&q_, tokens, int64_t{config_.heads} * config_.head_dim);
  Grow(&kv_, tokens, config_.head_dim);
  Grow(&attention_, tokens, int64_t{config_.heads} * config_.head_dim);
  Grow(&ffn_, tokens, config_.shared_intermediate);
  if (config_.HasEntries()) {
    Grow(&entry_kv_, tokens, 2 * config_.head_dim);
    Grow(&entry_gate_, tokens, 2 * config_.head_dim);
  }
  if (config_.CountOf(Past::kChosen) == 0) return;
  Grow(&key_kv_, tokens, 2 * config_.index_dim);
  Grow(&key_gate_, tokens, 2 * config_.index_dim);
  Grow(&index_q_, tokens, int64_t{config_.index_heads} * config_.index_dim);
  Grow(&index_weight_, tokens, config_.index_heads);
  Grow(&selected_, tokens, config_.index_top_k);
  Grow(&selected_count_, tokens, 1);
}

TailRope DeepseekV4Model::RopeOf(const DeepseekV4Config::Layer& kind) const {
  const RopeConfig& rope = kind.past == Past::kNone ? config_.main_rope : config_.compress_rope;
  return {.inv_freq = rope.inv_freq.data(), .dim = config_.rope_dim};
}

DeepseekV4Model::LayerRef DeepseekV4Model::Layer(int index) const {
  const auto at = static_cast<size_t>(index);
  return {&weights_.layers[at], config_.layer[at], cache_.places[at]};
}

const float* DeepseekV4Model::Forward(const StepInput& step) {
  const int tokens = step.shape.num_tokens;
  ReserveBuffers(tokens);
  backend_->Embed(weights_.embedding_or_head(), step.token, tokens, u_.data());
  backend_->sparse_ops()->StartStreams(Shape(tokens), u_.data(), x_.data(), pre_.data());
  for (int i = 0; i < config_.layers; ++i) RunLayer(step, Layer(i));
  if (drafting_) FillDraftRings(step);
  CollapseStreams(weights_.head_hyper, tokens);
  return u_.data();
}

void DeepseekV4Model::RunLayer(const StepInput& step, const LayerRef& layer) {
  const int tokens = step.shape.num_tokens;
  EnterSite(layer.weights->attn_hyper, layer.weights->attn_norm.get(), tokens);
  ProjectInputs(*layer.weights, tokens);
  RunCompressors(step, layer);
  AttendAndProject(step, layer);
  LeaveSite(tokens);
  EnterSite(layer.weights->ffn_hyper, layer.weights->ffn_norm.get(), tokens);
  RunExperts(step, layer);
  LeaveSite(tokens);
}

// The streams to one row of u.
void DeepseekV4Model::CollapseStreams(const HyperWeights& hyper, int tokens) {
  backend_->NormQuantize(x_.data(), nullptr, tokens, nullptr, 0.0F, streams_input_);
  const Weight* fn[] = {hyper.fn.get()};
  float* raw[] = {raw_.data()};
  backend_->Linear({.input = streams_input_, .rows = tokens, .weights = fn, .outputs = raw});
  backend_->compressed_ops()->CollapseHead({.shape = Shape(tokens),
                                            .x = x_.data(),
                                            .raw = raw_.data(),
                                            .base = hyper.base.get(),
                                            .scale = hyper.scale.get(),
                                            .norm_eps = config_.norm_eps,
                                            .hc_eps = config_.hc_eps,
                                            .out = u_.data()});
}

// The coefficients of a site from the streams, and the streams collapsed, as the block's input.
void DeepseekV4Model::EnterSite(const HyperWeights& hyper, const Weight* norm, int tokens) {
  SparseOps* ops = backend_->sparse_ops();
  backend_->NormQuantize(x_.data(), nullptr, tokens, nullptr, 0.0F, streams_input_);
  const Weight* fn[] = {hyper.fn.get()};
  float* raw[] = {raw_.data()};
  backend_->Linear({.input = streams_input_, .rows = tokens, .weights = fn, .outputs = raw});
  ops->StreamMix({.shape = Shape(tokens),
                  .x = x_.data(),
                  .raw = raw_.data(),
                  .base = hyper.base.get(),
                  .scale = hyper.scale.get(),
                  .sinkhorn_iters = config_.sinkhorn_iterations,
                  .norm_eps = config_.norm_eps,
                  .hc_eps = config_.hc_eps,
                  .pre = pre_.data(),
                  .post = post_.data(),
                  .comb = comb_.data()});
  ops->Collapse(Shape(tokens), x_.data(), pre_.data(), u_.data());
  backend_->NormQuantize(u_.data(), nullptr, tokens, norm, config_.norm_eps, hidden_input_);
}

void DeepseekV4Model::LeaveSite(int tokens) {
  backend_->sparse_ops()->Expand(Shape(tokens), y_.data(), post_.data(), comb_.data(), x_.data());
}

// Everything that reads the block's input, as one stage; then what reads the low-rank query.
void DeepseekV4Model::ProjectInputs(const DeepseekV4Layer& layer, int tokens) {
  std::vector<const Weight*> weights = {layer.q_a.get(), layer.kv.get()};
  std::vector<float*> outputs = {low_query_.data(), kv_.data()};
  const auto add = [&](const std::unique_ptr<Weight>& weight, std::vector<float>* to) {
    if (weight == nullptr) return;
    weights.push_back(weight.get());
    outputs.push_back(to->data());
  };
  add(layer.entries.kv, &entry_kv_);
  add(layer.entries.gate, &entry_gate_);
  add(layer.keys.kv, &key_kv_);
  add(layer.keys.gate, &key_gate_);
  add(layer.index_weights, &index_weight_);
  backend_->Linear(
      {.input = hidden_input_, .rows = tokens, .weights = weights, .outputs = outputs});
  backend_->NormQuantize(low_query_.data(), nullptr, tokens, layer.q_norm.get(), config_.norm_eps,
                         query_input_);
  weights = {layer.q_b.get()};
  outputs = {q_.data()};
  add(layer.index_q, &index_q_);
  backend_->Linear({.input = query_input_, .rows = tokens, .weights = weights, .outputs = outputs});
}

// A step's entries are there before its queries look at them.
void DeepseekV4Model::RunCompressors(const StepInput& step, const LayerRef& ref) {
  const DeepseekV4Config::Layer& kind = ref.kind;
  if (kind.past == Past::kNone) return;
  const DeepseekV4Layer& layer = *ref.weights;
  const Place& place = ref.place;
  const bool chosen = kind.past == Past::kChosen;
  const bool rounded = config_.rounding == Rounding::kAsTrained;
  CompressedOps* ops = backend_->compressed_ops();
  const Groups& groups = chosen ? cache_.chosen : cache_.every;
  CompressorSpec spec{
      .ring = {groups.ring, place.entries_ring},
      .entries = {groups.history, place.entries},
      .dim = config_.head_dim,
      .ratio = kind.ratio,
      .reach = ReachOf(kind.past),
      .bias = layer.entries.bias.get(),
      .norm = layer.entries.norm.get(),
      .norm_eps = config_.norm_eps,
      .rope = RopeOf(kind),
      .rounding = rounded ? StoredRounding::kFp8Blocks64 : StoredRounding::kNone,
  };
  ops->WriteWindows(step, spec, entry_kv_.data(), entry_gate_.data());
  if (!chosen) return;
  spec.ring = {cache_.keys.ring, place.keys_ring};
  spec.entries = {cache_.keys.history, place.keys};
  spec.dim = config_.index_dim;
  spec.float32_entries = true;
  spec.bias = layer.keys.bias.get();
  spec.norm = layer.keys.norm.get();
  spec.rounding = rounded ? StoredRounding::kHadamardFp4 : StoredRounding::kNone;
  ops->WriteWindows(step, spec, key_kv_.data(), key_gate_.data());
  const auto width = static_cast<float>(config_.index_dim);
  const EntryChoiceSpec choice{
      .keys = spec.entries,
      .ratio = kind.ratio,
      .heads = config_.index_heads,
      .dim = config_.index_dim,
      .top_k = config_.index_top_k,
      .scale = 1.0F / std::sqrt(width * static_cast<float>(config_.index_heads)),
      .rope = RopeOf(kind),
      .rounding = spec.rounding,
  };
  ops->ChooseEntries(step, choice, index_q_.data(), index_weight_.data(), selected_.data(),
                     selected_count_.data());
}

WindowAttentionSpec DeepseekV4Model::WindowOf(const LayerRef& ref) const {
  const DeepseekV4Config::Layer& kind = ref.kind;
  const DeepseekV4Layer& layer = *ref.weights;
  const Place& place = ref.place;
  WindowAttentionSpec spec{
      .heads = config_.heads,
      .head_dim = config_.head_dim,
      .window = config_.window,
      .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
      .rope = RopeOf(kind),
      .query_norm = WindowAttentionSpec::QueryNorm::kRms,
      .kv_norm = layer.kv_norm.get(),
      .sinks = layer.sinks.get(),
      .norm_eps = config_.norm_eps,
      .rounding = config_.rounding == Rounding::kAsTrained ? StoredRounding::kFp8Blocks64
                                                           : StoredRounding::kNone,
      .ring = {cache_.window_ring, place.window},
      .ratio = kind.ratio,
  };
  if (kind.past != Past::kNone) {
    const bool chosen = kind.past == Past::kChosen;
    spec.entries = {chosen ? cache_.chosen.history : cache_.every.history, place.entries};
  }
  return spec;
}

void DeepseekV4Model::AttendAndProject(const StepInput& step, const LayerRef& layer) {
  const int tokens = step.shape.num_tokens;
  const bool chosen = layer.kind.past == Past::kChosen;
  backend_->compressed_ops()->Attend(step, WindowOf(layer),
                                     {.q = q_.data(),
                                      .kv = kv_.data(),
                                      .selected = chosen ? selected_.data() : nullptr,
                                      .selected_count = chosen ? selected_count_.data() : nullptr,
                                      .selected_stride = config_.index_top_k,
                                      .out = attention_.data()});
  backend_->sparse_ops()->GroupedLinear({.x = attention_.data(),
                                         .rows = tokens,
                                         .weight = layer.weights->o_a.get(),
                                         .out = o_input_});
  const Weight* o[] = {layer.weights->o_b.get()};
  float* out[] = {y_.data()};
  backend_->Linear({.input = o_input_, .rows = tokens, .weights = o, .outputs = out});
}

void DeepseekV4Model::RunExperts(const StepInput& step, const LayerRef& ref) {
  const DeepseekV4Layer& layer = *ref.weights;
  const int tokens = step.shape.num_tokens;
  if (layer.shared_gate != nullptr) {
    const Weight* gate_up[] = {layer.shared_gate.get(), layer.shared_up.get()};
    float* inner[] = {ffn_.data()};
    backend_->Linear({.input = hidden_input_,
                      .rows = tokens,
                      .weights = gate_up,
                      .outputs = inner,
                      .epilogue = Epilogue::kSiluMul,
                      .gate_limit = config_.gate_limit});
    backend_->NormQuantize(ffn_.data(), nullptr, tokens, nullptr, 0.0F, shared_input_);
    const Weight* down[] = {layer.shared_down.get()};
    float* out[] = {y_.data()};
    backend_->Linear({.input = shared_input_, .rows = tokens, .weights = down, .outputs = out});
  } else {
    std::fill(y_.begin(), y_.end(), 0.0F);
  }
  RouterSpec routing{.scoring = RouterScoring::kSqrtSoftplus,
                     .bias = layer.router_bias.get(),
                     .normalize_eps = kRoutingEps,
                     .scale = config_.routed_scale};
  if (ref.kind.hashed) {
    routing.token_experts = layer.token_experts.data();
    routing.token_count = config_.vocab;
    routing.token = step.token;
  }
  backend_->Moe({.input = hidden_input_,
                 .rows = tokens,
                 .router = layer.router.get(),
                 .gate = layer.expert_gate.get(),
                 .up = layer.expert_up.get(),
                 .down = layer.expert_down.get(),
                 .top_k = config_.top_k,
                 .normalize_top_k = config_.normalize_top_k,
                 .out = y_.data(),
                 .routing = routing,
                 .gate_limit = config_.gate_limit});
}

void DeepseekV4Model::Head(const float* hidden, const int32_t* row_index, int rows, float* logits) {
  if (rows == 0) return;
  backend_->NormQuantize(hidden, row_index, rows, weights_.output_norm.get(), config_.norm_eps,
                         head_input_);
  const Weight* head[] = {weights_.head.get()};
  float* outputs[] = {logits};
  backend_->Linear({.input = head_input_, .rows = rows, .weights = head, .outputs = outputs});
}

}  // namespace deepinfer
