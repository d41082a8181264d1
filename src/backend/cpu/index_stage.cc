#include "backend/cpu/index_stage.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/step_rows.h"
#include "base/check.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kScoresMax = int64_t{4} << 20;  // in work at once
constexpr int kEntriesPerItem = 1024;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The `count` best of order by score, the lower index first on a tie; sorted by index.
void KeepBest(const float* scores, int count, std::vector<int32_t>* order) {
  if (static_cast<int>(order->size()) <= count) return;
  std::nth_element(order->begin(), order->begin() + count, order->end(),
                   [scores](int32_t a, int32_t b) {
                     return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
                   });
  order->resize(static_cast<size_t>(count));
  std::sort(order->begin(), order->end());
}

}  // namespace

void IndexStage::PrepareQueries(const StepInput& step, const IndexSpec& spec,
                                const IndexArgs& args) {
  const int tokens = step.shape.num_tokens;
  const int half = spec.rope.dim / 2;
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.rope.inv_freq, half, 1.0F);
  const int64_t width = int64_t{spec.heads} * spec.dim;
  const int64_t blocks = width / kIndexBlock;
  codes_.resize(static_cast<size_t>(tokens * width));
  sums_.resize(static_cast<size_t>(tokens * blocks));
  float* scales = scales_.Reserve(tokens * blocks);
  context_->pool->Run(tokens, [&](int t, int) {
    if (step.kind[t] == TokenKind::kDead) return;
    float* q = args.q + t * width;
    for (int h = 0; h < spec.heads; ++h) {
      context_->rows->rope_interleaved(q + int64_t{h} * spec.dim + spec.dim - spec.rope.dim,
                                       rope_.cos(t), rope_.sin(t), half);
    }
    context_->sparse().quantize_query(q, static_cast<int>(width), codes_.data() + t * width,
                                      sums_.data() + t * blocks, scales + t * blocks);
  });
}

// Entries [begin, end).
void IndexStage::ScoreEntries(const StepInput& step, const IndexSpec& spec, const IndexArgs& args,
                              int token, int begin, int end, float* scores) const {
  const HistoryView keys(step, spec.keys, IndexKeyBytes(spec.dim));
  const int64_t width = int64_t{spec.heads} * spec.dim;
  const int64_t blocks = width / kIndexBlock;
  const int row = step.token_row[token];
  IndexScore score{.q = codes_.data() + token * width,
                   .q_sum = sums_.data() + token * blocks,
                   .q_scale = scales_.get() + token * blocks,
                   .weight = args.weight + int64_t{token} * spec.heads,
                   .heads = spec.heads,
                   .dim = spec.dim,
                   .head_scale = 1.0F / std::sqrt(static_cast<float>(spec.heads)),
                   .scale = 1.0F / std::sqrt(static_cast<float>(spec.dim)),
                   .key = {},
                   .count = 0,
                   .scores = nullptr};
  for (int first = begin; first < end; first += kIndexBatch) {
    score.count = std::min(kIndexBatch, end - first);
    keys.Entries(row, first, score.count, score.key);
    score.scores = scores + first - begin;
    context_->sparse().index_scores(score);
  }
}

// The best blocks; the one that holds the newest visible entry always belongs to them.
void IndexStage::BuildCandidates(const IndexSpec& spec, const IndexArgs& args, int token,
                                 int visible, const float* scores, Workspace* work) const {
  const int blocks = (visible + spec.block_size - 1) / spec.block_size;
  work->block_score.assign(static_cast<size_t>(blocks), kHidden);
  for (int j = 0; j < visible; ++j) {
    float& best = work->block_score[static_cast<size_t>(j / spec.block_size)];
    best = std::max(best, scores[j]);
  }
  if (blocks > 0) work->block_score.back() = std::numeric_limits<float>::infinity();
  work->order.clear();
  for (int b = 0; b < blocks; ++b) {
    if (work->block_score[static_cast<size_t>(b)] > kHidden) work->order.push_back(b);
  }
  KeepBest(work->block_score.data(), spec.candidate_blocks, &work->order);
  std::copy(work->order.begin(), work->order.end(),
            args.candidate + int64_t{token} * spec.candidate_blocks);
  args.candidate_count[token] = static_cast<int32_t>(work->order.size());
}

// The entries of a token's candidate blocks alone: scores stand side by side, and `entries` says
// whose they are.
int IndexStage::CandidateEntries(const IndexSpec& spec, const IndexArgs& args, int token,
                                 int visible, int32_t* entries) {
  const int32_t* candidate = args.candidate + int64_t{token} * spec.candidate_blocks;
  int count = 0;
  for (int i = 0; i < args.candidate_count[token]; ++i) {
    const int begin = candidate[i] * spec.block_size;
    const int end = std::min(visible, begin + spec.block_size);
    for (int j = begin; j < end; ++j) entries[count++] = j;
  }
  return count;
}

// Runs of neighbours in entries[begin, end).
void IndexStage::ScoreList(const StepInput& step, const IndexSpec& spec, const IndexArgs& args,
                           int token, const int32_t* entries, int begin, int end,
                           float* scores) const {
  for (int i = begin; i < end;) {
    int next = i + 1;
    while (next < end && entries[next] == entries[next - 1] + 1) ++next;
    ScoreEntries(step, spec, args, token, entries[i], entries[next - 1] + 1, scores + i);
    i = next;
  }
}

void IndexStage::ChooseEntries(const IndexSpec& spec, const IndexArgs& args, int token, int count,
                               const int32_t* entries, const float* scores, Workspace* work) const {
  work->order.clear();
  for (int j = 0; j < count; ++j) {
    if (scores[j] > kHidden) work->order.push_back(j);  // not NaN
  }
  KeepBest(scores, spec.top_k, &work->order);
  int32_t* selected = args.selected + int64_t{token} * spec.top_k;
  for (const int32_t j : work->order) *selected++ = entries != nullptr ? entries[j] : j;
  args.selected_count[token] = static_cast<int32_t>(work->order.size());
}

void IndexStage::Select(const StepInput& step, const IndexSpec& spec, const IndexArgs& args) {
  DI_CHECK(spec.dim <= kIndexKeyDimMax && spec.dim % kIndexBlock == 0, "index keys of {} elements",
           spec.dim);
  PrepareQueries(step, spec, args);
  workspaces_.resize(static_cast<size_t>(context_->pool->threads()));
  const auto visible = [&](int t) {
    return step.kind[t] == TokenKind::kDead ? 0 : (step.position[t] + 1) / spec.ratio;
  };
  const bool limited = spec.candidates == CandidateUse::kLimit;
  int64_t entries_max = std::max(1, step.shape.kv_len_max / spec.ratio);
  if (limited) {
    entries_max = std::min(entries_max, int64_t{spec.candidate_blocks} * spec.block_size);
  }
  const auto slab = static_cast<int>(std::max<int64_t>(1, kScoresMax / entries_max));
  const auto items = static_cast<int>((entries_max + kEntriesPerItem - 1) / kEntriesPerItem);
  for (int first = 0; first < step.shape.num_tokens; first += slab) {
    const int count = std::min(slab, step.shape.num_tokens - first);
    float* scores = scores_.Reserve(count * entries_max);
    counts_.resize(static_cast<size_t>(count));
    if (limited) entries_.resize(static_cast<size_t>(count * entries_max));
    for (int i = 0; i < count; ++i) {
      const int seen = visible(first + i);
      counts_[static_cast<size_t>(i)] =
          limited && seen > 0
              ? CandidateEntries(spec, args, first + i, seen, entries_.data() + i * entries_max)
              : seen;
    }
    context_->pool->Run(count * items, [&](int item, int) {
      const int i = item / items;
      const int begin = item % items * kEntriesPerItem;
      const int end = std::min(counts_[static_cast<size_t>(i)], begin + kEntriesPerItem);
      float* own = scores + i * entries_max;
      if (limited) {
        ScoreList(step, spec, args, first + i, entries_.data() + i * entries_max, begin, end, own);
      } else {
        ScoreEntries(step, spec, args, first + i, begin, end, own + begin);
      }
    });
    context_->pool->Run(count, [&](int i, int thread) {
      Workspace* work = &workspaces_[static_cast<size_t>(thread)];
      const float* own = scores + i * entries_max;
      const int total = counts_[static_cast<size_t>(i)];
      if (spec.candidates == CandidateUse::kBuild) {
        BuildCandidates(spec, args, first + i, total, own, work);
      }
      ChooseEntries(spec, args, first + i, total,
                    limited ? entries_.data() + i * entries_max : nullptr, own, work);
    });
  }
}

}  // namespace deepinfer::cpu
