// What follows the forward of a step: head rows, sampling, verification of drafts, new drafts.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/model_runner.h"

namespace deepinfer {
namespace {

bool AllFinite(const float* x, int n) {
  float sum = 0;  // NaN and infinity survive: inf * 0 and nan * 0 are NaN
  for (int i = 0; i < n; ++i) sum += x[i] * 0.0F;
  return sum == 0.0F;
}

}  // namespace

void ModelRunner::AddHeadRow(int hidden, int plan_row, int position, TokenId target) {
  HeadRow& head = head_rows_.emplace_back();
  head.hidden = hidden;
  head.plan_row = plan_row;
  head.position = position;
  head.target = target;
}

// Log-probabilities of the prompt tokens that follow query tokens first..last.
void ModelRunner::ListPromptRows(const PlanRow& row, int plan_row, int32_t first, int32_t last) {
  const std::vector<TokenId>& prompt = rows_[static_cast<size_t>(row.slot)].request->prompt;
  for (int32_t at = first; at <= last; ++at) {
    const int predicted = position_[at] + 1;
    if (predicted >= static_cast<int>(prompt.size())) break;
    head_groups_.push_back({.begin = static_cast<int>(head_rows_.size()), .count = 1});
    AddHeadRow(at, plan_row, predicted, prompt[static_cast<size_t>(predicted)]);
  }
}

void ModelRunner::ListHeadRows(const StepPlan& plan, const LateInputs& late,
                               const StepResult& result) {
  head_rows_.clear();
  head_groups_.clear();
  ended_.assign(plan.rows.size(), 0);
  for (const int32_t row : late.ended_rows) ended_[static_cast<size_t>(row)] = 1;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    const int input_row = input_row_[i];
    if (ended_[i] != 0 || input_row < 0 || result.rows[i].status != RowStatus::kOk) continue;
    const int32_t first = query_start_[input_row];
    const int32_t last = query_start_[input_row + 1] - 1;
    const auto plan_row = static_cast<int>(i);
    if (row.prompt_logprobs) ListPromptRows(row, plan_row, first, last);
    if (!row.sample) continue;
    const int32_t from = row.num_known > 0 ? last : first;
    head_groups_.push_back(
        {.begin = static_cast<int>(head_rows_.size()), .count = last - from + 1});
    for (int32_t at = from; at <= last; ++at) AddHeadRow(at, plan_row, position_[at] + 1, -1);
  }
  AddMasks(late);
}

// Both lists are in plan order.
void ModelRunner::AddMasks(const LateInputs& late) {
  mask_words_ = late.mask_words;
  auto masks = late.masks.begin();
  for (HeadGroup& group : head_groups_) {
    const HeadRow& head = head_rows_[static_cast<size_t>(group.begin)];
    if (head.target >= 0) continue;
    while (masks != late.masks.end() && masks->row < head.plan_row) ++masks;
    if (masks == late.masks.end()) return;
    if (masks->row != head.plan_row) continue;
    group.masks = late.mask_bits + static_cast<size_t>(masks->first) * mask_words_;
    group.num_masks = masks->count;
  }
}

void ModelRunner::RunHead(const StepPlan& plan, const float* hidden) {
  auto* logits = reinterpret_cast<float*>(logits_.get());
  struct Context {
    ModelRunner* runner;
    const StepPlan* plan;
    HeadGroup* groups;
    HeadRow* rows;
    float* logits;
  };
  size_t next = 0;
  while (next < head_groups_.size()) {
    HeadGroup* groups = head_groups_.data() + next;
    HeadRow* rows = head_rows_.data() + groups->begin;
    int count = 0;
    int num_groups = 0;
    while (next < head_groups_.size() && count + head_groups_[next].count <= head_rows_max_) {
      count += head_groups_[next].count;
      ++num_groups;
      ++next;
    }
    for (int i = 0; i < count; ++i) row_index_[i] = rows[i].hidden;
    model_->Head(hidden, row_index_, count, logits);
    for (int i = 0; i < count; ++i) EmbedRow(plan, hidden, &rows[i]);
    Context context{this, &plan, groups, rows, logits};
    backend_->ParallelRows(
        num_groups,
        [](void* raw, int i) {
          auto& c = *static_cast<Context*>(raw);
          const int at = c.groups[i].begin - c.groups[0].begin;
          c.runner->RunHeadGroup(*c.plan, &c.groups[i], c.rows + at,
                                 c.logits + static_cast<ptrdiff_t>(at) * c.runner->vocab_);
        },
        &context);
  }
}

void ModelRunner::EmbedRow(const StepPlan& plan, const float* hidden, HeadRow* head) {
  const PlanRow& row = plan.rows[static_cast<size_t>(head->plan_row)];
  if (head->target >= 0 || !rows_[static_cast<size_t>(row.slot)].request->embed) return;
  head->embedding.resize(static_cast<size_t>(model_->embedding_size()));
  model_->Embed(hidden, head->hidden, head->embedding.data());
}

// On any compute thread; touches its own row alone.
void ModelRunner::RunHeadGroup(const StepPlan& plan, HeadGroup* group, HeadRow* rows,
                               float* logits) {
  const PlanRow& row = plan.rows[static_cast<size_t>(rows->plan_row)];
  RowState& state = rows_[static_cast<size_t>(row.slot)];
  if (rows->target < 0) {
    VerifyRow(&state, group, rows, logits);
  } else if (!AllFinite(logits, vocab_)) {
    rows->sampled.status = RowStatus::kNan;
  } else {
    rows->logprob =
        LogprobAt(logits, vocab_, rows->target, *state.request->sampling.prompt_logprobs);
  }
}

// Samples the row's positions in order, each with the sampler's state after the tokens before it,
// exactly as a step per token would; goes on as long as the sample is the draft that was run, and
// not beyond the masks: then the output ended.
void ModelRunner::VerifyRow(RowState* state, HeadGroup* group, HeadRow* rows, float* logits) {
  RowSampler& sampler = *state->sampler;
  const int count =
      group->masks == nullptr ? group->count : std::min(group->count, group->num_masks);
  for (int i = 0; i < count; ++i) {
    SampledToken& sampled = rows[i].sampled;
    const uint64_t* mask =
        group->masks == nullptr ? nullptr : group->masks + static_cast<size_t>(i) * mask_words_;
    float* at = logits + static_cast<ptrdiff_t>(i) * vocab_;
    const bool has_draft = i + 1 < group->count;
    const TokenId draft = has_draft ? state->drafts.ids[static_cast<size_t>(i)] : -1;
    sampled = has_draft && options_.verify == VerifyMode::kRejection
                  ? sampler.SampleOrReject(at, rows[i].position, draft, mask)
                  : sampler.Sample(at, rows[i].position, mask);
    if (sampled.status != RowStatus::kOk) return;
    sampler.Observe(sampled.id);
    group->emitted = i + 1;
    if (sampled.id != draft) return;
  }
}

void ModelRunner::Finish(const StepPlan& plan, StepResult* result) {
  draft_rows_.clear();
  for (const HeadGroup& group : head_groups_) {
    HeadRow& head = head_rows_[static_cast<size_t>(group.begin)];
    const PlanRow& row = plan.rows[static_cast<size_t>(head.plan_row)];
    RowResult& out = result->rows[static_cast<size_t>(head.plan_row)];
    if (head.target < 0) {
      FinishSampled(row, group, &out, result);
    } else if (head.sampled.status == RowStatus::kOk) {
      out.prompt_logprobs.push_back(std::move(head.logprob));
    } else {
      out.status = head.sampled.status;
      rows_[static_cast<size_t>(row.slot)].bad_token = true;
    }
  }
}

// Commits what a row sampled. The positions of its first `emitted` query tokens are final; what the
// rejected drafts left behind them in the cache is written over.
void ModelRunner::FinishSampled(const PlanRow& row, const HeadGroup& group, RowResult* out,
                                StepResult* result) {
  RowState& state = rows_[static_cast<size_t>(row.slot)];
  out->emitted_begin = static_cast<int>(result->emitted.size());
  out->num_emitted = group.emitted;
  for (int i = 0; i < group.emitted; ++i) {
    HeadRow& head = head_rows_[static_cast<size_t>(group.begin + i)];
    SampledToken& sampled = head.sampled;
    state.last_token = sampled.id;
    if (drafter_ != nullptr && drafter_->NeedsHistory()) state.history.push_back(sampled.id);
    result->emitted.push_back({sampled.id, std::move(sampled.logprob), std::move(head.embedding)});
  }
  if (row.num_known == 0) state.length += group.emitted;
  state.drafts.count = 0;
  const HeadRow& last =
      head_rows_[static_cast<size_t>(group.begin + std::min(group.emitted, group.count - 1))];
  if (last.sampled.status != RowStatus::kOk) {
    out->status = last.sampled.status;
    state.bad_token = true;
  }
  // The next step runs last_token; drafts are of use for the positions behind it.
  const int room = state.length_max - state.length - 1;
  if (drafter_ == nullptr || state.bad_token || room <= 0) return;
  DraftRow& draft = draft_rows_.emplace_back();
  draft.slot = row.slot;
  draft.position = state.length;
  draft.anchor = state.last_token;
  draft.suffix_begin = state.replay.suffix_begin;
  draft.history = state.history;
  draft.sampler = state.sampler.get();
  draft.drafts_max = std::min(room, options_.draft_tokens_max);
  draft.drafts = &state.drafts;
}

void ModelRunner::Draft() {
  if (draft_rows_.empty()) return;
  drafter_->Propose(draft_rows_, {cache_slots_.get(), &layout_});
  for (const DraftRow& row : draft_rows_) {
    const std::span<const TokenId> ids(row.drafts->ids);
    DI_CHECK(row.drafts->count <= row.drafts_max, "{} drafts of {}", row.drafts->count,
             row.drafts_max);
    int good = 0;
    while (good < row.drafts->count && ids[static_cast<size_t>(good)] >= 0 &&
           ids[static_cast<size_t>(good)] < vocab_) {
      ++good;
    }
    row.drafts->count = good;
  }
}

}  // namespace deepinfer
