// The draft layers (DSpark): context rows from the taps of Forward, and blocks of drafts.
#include <algorithm>
#include <utility>

#include "models/deepseek_v41/v41_model.h"
#include "tensor/fake_quant.h"

namespace deepinfer {
DraftInfo V41Model::draft_info() const {
  return {.block = weights_.draft.layers.empty() ? 0 : config_.draft.block,
          .note = weights_.draft_note};
}

// One context vector per token, the same for all draft layers; each keeps its own kv row of it.
void V41Model::WriteDraftContext(const StepInput& step) {
  const int tokens = step.shape.num_tokens;
  const auto eps = static_cast<float>(config_.norm_eps);
  backend_->NormQuantize(taps_.data(), nullptr, tokens, nullptr, 0.0F, tap_input_);
  const Weight* main[] = {weights_.draft.main_proj.get()};
  float* main_out[] = {output_.data()};
  backend_->Linear({.input = tap_input_, .rows = tokens, .weights = main, .outputs = main_out});
  backend_->NormQuantize(output_.data(), nullptr, tokens, weights_.draft.main_norm.get(), eps,
                         hidden_input_);
  for (size_t s = 0; s < weights_.draft.layers.size(); ++s) {
    const V41Block& layer = weights_.draft.layers[s];
    const Weight* kv[] = {layer.wkv.get()};
    float* kv_out[] = {kv_.data()};
    backend_->Linear({.input = hidden_input_, .rows = tokens, .weights = kv, .outputs = kv_out});
    WindowSpec spec = Window(layer, false);
    spec.ring = {cache_.draft_group, static_cast<int>(s)};
    ops_->StoreWindow(step, spec, {.kv = kv_.data(), .rows = window_rows_.data()});
  }
}

void V41Model::RunDraftLayer(const DraftInput& input, int index) {
  const V41Block& layer = weights_.draft.layers[static_cast<size_t>(index)];
  const int block = config_.draft.block;
  const int tokens = input.rows * block;
  const auto eps = static_cast<float>(config_.norm_eps);
  const StepInput none{.shape = {.num_tokens = tokens}};
  NormedInput(none, *layer.attn_norm, pre_, hidden_input_);
  Mix(tokens, layer.attn_site, &attn_pre_);
  const Weight* first[] = {layer.wq_a.get(), layer.wkv.get()};
  float* first_out[] = {rank_.data(), kv_.data()};
  backend_->Linear(
      {.input = hidden_input_, .rows = tokens, .weights = first, .outputs = first_out});
  backend_->NormQuantize(rank_.data(), nullptr, tokens, layer.q_norm.get(), eps, rank_input_);
  const Weight* second[] = {layer.wq_b.get()};
  float* second_out[] = {q_.data()};
  backend_->Linear(
      {.input = rank_input_, .rows = tokens, .weights = second, .outputs = second_out});
  WindowSpec spec = Window(layer, false);
  spec.ring = {cache_.draft_group, index};
  ops_->DraftWindowAttention(spec, {.rows = input.rows,
                                    .block = block,
                                    .position = input.position,
                                    .slot = input.slot,
                                    .begin = input.suffix_begin,
                                    .cache_slots = input.cache_slots,
                                    .layout = input.layout,
                                    .q = q_.data(),
                                    .kv = kv_.data(),
                                    .encoded = window_rows_.data(),
                                    .out = attention_.data()});
  ProjectOut(layer, tokens);
  ops_->Expand(Shape(tokens), output_.data(), post_.data(), comb_.data(), streams_.data());
  Mix(tokens, layer.ffn_site, &pre_);
  NormedInput(none, *layer.ffn_norm, attn_pre_, hidden_input_);
  RunExperts(layer, config_.draft.experts, draft_kind_.data(), tokens);
  ops_->Expand(Shape(tokens), output_.data(), post_.data(), comb_.data(), streams_.data());
}

void V41Model::DraftBlock(const DraftInput& input, const DraftOutput& output) {
  if (input.rows == 0) return;
  const int block = config_.draft.block;
  const int tokens = input.rows * block;
  Reserve(tokens);
  Grow(&draft_token_, tokens, 1);
  draft_kind_.assign(static_cast<size_t>(tokens), TokenKind::kText);
  for (int t = 0; t < tokens; ++t) {
    const bool anchor = t % block == 0;
    draft_token_[static_cast<size_t>(t)] =
        anchor ? input.anchor[t / block] : static_cast<int32_t>(config_.draft.noise_id);
  }
  backend_->Embed(*weights_.embedding, draft_token_.data(), tokens, embedded_.data());
  ops_->StartStreams(Shape(tokens), embedded_.data(), streams_.data(), pre_.data());
  for (int s = 0; s < config_.draft.layers; ++s) RunDraftLayer(input, s);
  ops_->Collapse(Shape(tokens), streams_.data(), pre_.data(), collapsed_.data());
  ChooseDrafts(input, output);
}

// Places one after the other: each token's embedding shifts the logits of the next.
void V41Model::ChooseDrafts(const DraftInput& input, const DraftOutput& output) {
  const int block = config_.draft.block;
  const int places = input.places > 0 ? std::min(input.places, block) : block;
  const int rows = input.rows;
  const int64_t vocab = config_.vocab;
  Grow(&draft_logits_, int64_t{rows} * places, vocab);
  Grow(&markov_, rows, config_.draft.markov_rank);
  head_rows_.resize(static_cast<size_t>(rows * places));
  for (int k = 0; k < places; ++k) {
    for (int row = 0; row < rows; ++row) {
      head_rows_[static_cast<size_t>(k * rows + row)] = row * block + k;
    }
  }
  backend_->NormQuantize(collapsed_.data(), head_rows_.data(), rows * places,
                         weights_.draft.norm.get(), static_cast<float>(config_.norm_eps),
                         head_input_);
  const Weight* head[] = {weights_.head.get()};
  float* logits[] = {draft_logits_.data()};
  backend_->Linear(
      {.input = head_input_, .rows = rows * places, .weights = head, .outputs = logits});
  previous_.assign(input.anchor, input.anchor + rows);
  for (int place = 0; place < places; ++place) {
    backend_->Embed(*weights_.draft.markov_embed, previous_.data(), rows, markov_.data());
    backend_->NormQuantize(markov_.data(), nullptr, rows, nullptr, 0.0F, markov_input_);
    const Weight* markov[] = {weights_.draft.markov_head.get()};
    float* biased[] = {draft_logits_.data() + place * rows * vocab};
    backend_->Linear({.input = markov_input_,
                      .rows = rows,
                      .weights = markov,
                      .outputs = biased,
                      .epilogue = Epilogue::kAdd});
    struct Context {
      V41Model* model;
      const DraftInput* input;
      const DraftOutput* output;
      int place;
    } context{this, &input, &output, place};
    backend_->ParallelRows(
        rows,
        [](void* raw, int row) {
          const auto& c = *static_cast<Context*>(raw);
          c.model->ChoosePlace(*c.input, *c.output, c.place, row);
        },
        &context);
  }
}

// On any compute thread; touches its own row alone.
void V41Model::ChoosePlace(const DraftInput& input, const DraftOutput& output, int place, int row) {
  const int block = config_.draft.block;
  const int64_t vocab = config_.vocab;
  float* logits = draft_logits_.data() + (int64_t{place} * input.rows + row) * vocab;
  const int rank = config_.draft.markov_rank;
  const float* hidden = collapsed_.data() + (int64_t{row} * block + place) * config_.hidden;
  const float* markov = markov_.data() + int64_t{row} * rank;
  const float* weight = weights_.draft.confidence.data();
  double confidence = 0.0;
  for (int i = 0; i < config_.hidden; ++i) confidence += double{hidden[i]} * weight[i];
  for (int i = 0; i < rank; ++i) confidence += double{markov[i]} * weight[config_.hidden + i];
  output.confidence[row * block + place] = static_cast<float>(confidence);
  const int32_t token =
      input.choose != nullptr
          ? input.choose(input.context, row, place, logits)
          : static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  output.token[row * block + place] = token;
  previous_[static_cast<size_t>(row)] = token;
}

}  // namespace deepinfer
