#include "backend/cpu/entry_choice_stage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/cpu/lanes.h"
#include "backend/cpu/step_rows.h"
#include "backend/cpu/stored_rows.h"

namespace deepinfer::cpu {
void EntryChoiceStage::SelectToken(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                                   const float* weights, int token, std::vector<Scored>* scored,
                                   int32_t* selected, int32_t* count) const {
  *count = 0;
  if (step.kind[token] == TokenKind::kDead) return;
  const int visible = (step.position[token] + 1) / spec.ratio;
  *count = std::min(visible, spec.top_k);
  if (visible <= spec.top_k) {
    std::iota(selected, selected + visible, 0);
    return;
  }
  for (int head = 0; head < spec.heads; ++head) {
    float* row = q + int64_t{head} * spec.dim;
    context_->rows->rope_interleaved(row + spec.dim - spec.rope.dim, rope_.cos(token),
                                     rope_.sin(token), spec.rope.dim / 2);
    RoundRow(spec.rounding, spec.dim, spec.rope.dim, row);
  }
  const HistoryView rows(step, spec.keys,
                         int64_t{EntryElements(spec.dim)} * static_cast<int64_t>(sizeof(float)));
  scored->clear();
  for (int entry = 0; entry < visible; ++entry) {
    const auto* key = reinterpret_cast<const float*>(
        rows.Entry(step.token_row[token], EntryRow(entry, spec.ratio)));
    float score = 0.0F;
    for (int head = 0; head < spec.heads; ++head) {
      const float dot = DotLanes(q + int64_t{head} * spec.dim, key, spec.dim);
      score += weights[head] * (dot > 0.0F ? dot * spec.scale : 0.0F);
    }
    // A NaN would break the order; the row's hidden state is lost to it anyway.
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
    scored->push_back({score, entry});
  }
  std::nth_element(scored->begin(), scored->begin() + spec.top_k, scored->end(),
                   [](const Scored& a, const Scored& b) {
                     return a.score > b.score || (a.score == b.score && a.entry < b.entry);
                   });
  for (int i = 0; i < spec.top_k; ++i) selected[i] = (*scored)[static_cast<size_t>(i)].entry;
  std::sort(selected, selected + spec.top_k);
}

void EntryChoiceStage::Select(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                              const float* weights, int32_t* selected, int32_t* count) {
  const int tokens = step.shape.num_tokens;
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.rope.inv_freq, spec.rope.dim / 2,
                1.0F);
  scored_.resize(static_cast<size_t>(context_->pool->threads()));
  context_->pool->Run(tokens, [&](int token, int thread) {
    SelectToken(step, spec, q + int64_t{token} * spec.heads * spec.dim,
                weights + int64_t{token} * spec.heads, token, &scored_[static_cast<size_t>(thread)],
                selected + int64_t{token} * spec.top_k, count + token);
  });
}

}  // namespace deepinfer::cpu
