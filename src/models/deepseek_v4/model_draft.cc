// The draft layer: from the streams of a token and the embedding of the next one to the token after
// that. Its window is filled while the model runs, a token late, because the next token of a step's
// last one is not known yet; that one's streams wait in a ring.
#include <algorithm>
#include <utility>

#include "models/deepseek_v4/model.h"

namespace deepinfer {
namespace {

int32_t Likeliest(const float* logits, int vocab) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
}

}  // namespace

DraftInfo DeepseekV4Model::draft_info() const {
  if (weights_.draft != nullptr) return {.block = 1, .note = ""};
  if (config_.draft_layers == 0) return {};
  return {.block = 0, .note = "the checkpoint has no tensors of the draft layer (mtp.0)"};
}

DeepseekV4Model::LayerRef DeepseekV4Model::DraftLayer() const {
  return {&weights_.draft->layer, {}, {.window = config_.layers}};
}

// x = token_proj norm(embedding of the next token) + stream_proj norm(stream), for each stream.
void DeepseekV4Model::MixPairs(const PairStep& pairs) {
  const DeepseekV4Draft& draft = *weights_.draft;
  const int tokens = pairs.step.shape.num_tokens;
  const int rows = tokens * config_.streams;
  backend_->NormQuantize(x_.data(), nullptr, rows, draft.stream_norm.get(), config_.norm_eps,
                         hidden_input_);
  const Weight* stream_proj[] = {draft.stream_proj.get()};
  float* streams[] = {x_.data()};
  backend_->Linear(
      {.input = hidden_input_, .rows = rows, .weights = stream_proj, .outputs = streams});
  backend_->Embed(weights_.embedding_or_head(), pairs.step.token, tokens, u_.data());
  backend_->NormQuantize(u_.data(), nullptr, tokens, draft.token_norm.get(), config_.norm_eps,
                         hidden_input_);
  const Weight* token_proj[] = {draft.token_proj.get()};
  float* embedded[] = {u_.data()};
  backend_->Linear(
      {.input = hidden_input_, .rows = tokens, .weights = token_proj, .outputs = embedded});
  backend_->compressed_ops()->AddToStreams(Shape(tokens), u_.data(), x_.data());
}

// The window rows of every token of the step whose next one is known.
void DeepseekV4Model::FillDraftRings(const StepInput& step) {
  CompressedOps* ops = backend_->compressed_ops();
  const WindowRing ring{cache_.draft_ring, 0};
  const int64_t width = int64_t{config_.streams} * config_.hidden;
  const PairStep pairs = ops->TakePairs(step);
  const int tokens = pairs.step.shape.num_tokens;
  if (tokens > 0) {
    Grow(&draft_x_, std::max(tokens, step.shape.num_tokens), width);
    ops->GatherPairs(pairs, ring, width, x_.data(), draft_x_.data());
    std::swap(x_, draft_x_);
    ReserveBuffers(tokens);
    MixPairs(pairs);
    const DeepseekV4Layer& layer = weights_.draft->layer;
    EnterSite(layer.attn_hyper, layer.attn_norm.get(), tokens);
    const Weight* kv[] = {layer.kv.get()};
    float* rows[] = {kv_.data()};
    backend_->Linear({.input = hidden_input_, .rows = tokens, .weights = kv, .outputs = rows});
    ops->StoreWindow(pairs.step, WindowOf(DraftLayer()), kv_.data());
    std::swap(x_, draft_x_);
  }
  ops->StorePairs(step, ring, width, x_.data());
}

// One token per row: the last one that was run, with the anchor as its next.
StepInput DeepseekV4Model::AnchorStep(const DraftInput& input) {
  anchor_position_.clear();
  anchor_row_.clear();
  anchor_start_.assign(1, 0);
  for (int i = 0; i < input.rows; ++i) {
    anchor_position_.push_back(input.position[i] - 1);
    anchor_row_.push_back(i);
    anchor_start_.push_back(i + 1);
  }
  anchor_kind_.assign(static_cast<size_t>(input.rows), TokenKind::kText);
  StepInput step;
  step.shape = {.num_rows = input.rows, .num_tokens = input.rows, .query_len_max = 1};
  step.token = input.anchor;
  step.position = anchor_position_.data();
  step.token_row = anchor_row_.data();
  step.query_start = anchor_start_.data();
  step.slot = input.slot;
  step.kind = anchor_kind_.data();
  step.cache_slots = input.cache_slots;
  step.layout = input.layout;
  return step;
}

void DeepseekV4Model::DraftBlock(const DraftInput& input, const DraftOutput& output) {
  if (input.rows == 0) return;
  const DeepseekV4Draft& draft = *weights_.draft;
  const int64_t width = int64_t{config_.streams} * config_.hidden;
  const PairStep pairs{.step = AnchorStep(input)};
  // The rows that Forward returned stay as they are.
  std::swap(x_, draft_x_);
  std::swap(u_, draft_u_);
  ReserveBuffers(input.rows);
  backend_->compressed_ops()->GatherPairs(pairs, {cache_.draft_ring, 0}, width, nullptr, x_.data());
  MixPairs(pairs);
  RunLayer(pairs.step, DraftLayer());
  CollapseStreams(draft.head_hyper, input.rows);
  backend_->NormQuantize(u_.data(), nullptr, input.rows, draft.output_norm.get(), config_.norm_eps,
                         head_input_);
  std::swap(x_, draft_x_);
  std::swap(u_, draft_u_);
  Grow(&draft_logits_, input.rows, config_.vocab);
  const Weight* head[] = {weights_.head.get()};
  float* logits[] = {draft_logits_.data()};
  backend_->Linear({.input = head_input_, .rows = input.rows, .weights = head, .outputs = logits});
  struct Context {
    const DraftInput* input;
    const DraftOutput* output;
    float* logits;
    int vocab;
  };
  Context context{&input, &output, draft_logits_.data(), config_.vocab};
  backend_->ParallelRows(
      input.rows,
      [](void* raw, int row) {
        const auto& c = *static_cast<Context*>(raw);
        float* of_row = c.logits + int64_t{row} * c.vocab;
        c.output->token[row] = c.input->choose != nullptr
                                   ? c.input->choose(c.input->context, row, 0, of_row)
                                   : Likeliest(of_row, c.vocab);
        c.output->confidence[row] = 0.0F;  // the layer does not estimate any
      },
      &context);
}

}  // namespace deepinfer
