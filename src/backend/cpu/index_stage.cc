#include "backend/cpu/index_stage.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/lanes.h"
#include "backend/cpu/step_rows.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kScoresMax = int64_t{4} << 20;  // in work at once
constexpr int kEntriesPerItem = 1024;
constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr int kKeyDimMax = 512;

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
  context_->pool->Run(tokens, [&](int t, int) {
    float* q = args.q + t * width;
    for (int h = 0; h < spec.heads; ++h) {
      context_->rows->rope_interleaved(q + int64_t{h} * spec.dim + spec.dim - spec.rope.dim,
                                       rope_.cos(t), rope_.sin(t), half);
    }
    FakeQuantFp4E8m0(q, width, kIndexKeyBlock, q);
  });
}

void IndexStage::ScoreEntries(const StepInput& step, const IndexSpec& spec, const IndexArgs& args,
                              int token, int begin, int end, float* scores) const {
  const HistoryView keys(step, spec.keys, IndexKeyBytes(spec.dim));
  const float head_scale = 1.0F / std::sqrt(static_cast<float>(spec.heads));
  const float scale = 1.0F / std::sqrt(static_cast<float>(spec.dim));
  const float* q = args.q + int64_t{token} * spec.heads * spec.dim;
  const float* weight = args.weight + int64_t{token} * spec.heads;
  const int row = step.token_row[token];
  float key[kKeyDimMax];
  for (int j = begin; j < end; ++j) {
    DecodeIndexKey(keys.Entry(row, j), spec.dim, key);
    float sum = 0.0F;
    for (int h = 0; h < spec.heads; ++h) {
      const float dot = DotLanes(q + int64_t{h} * spec.dim, key, spec.dim);
      sum += weight[h] * head_scale * std::max(dot, 0.0F);
    }
    scores[j] = sum * scale;
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

void IndexStage::LimitToCandidates(const IndexSpec& spec, const IndexArgs& args, int token,
                                   int visible, float* scores) const {
  const int32_t* candidate = args.candidate + int64_t{token} * spec.candidate_blocks;
  int next = 0;
  for (int i = 0; i < args.candidate_count[token]; ++i) {
    const int begin = std::min(visible, candidate[i] * spec.block_size);
    std::fill(scores + next, scores + std::max(next, begin), kHidden);
    next = std::min(visible, begin + spec.block_size);
  }
  std::fill(scores + next, scores + visible, kHidden);
}

void IndexStage::ChooseEntries(const IndexSpec& spec, const IndexArgs& args, int token, int visible,
                               const float* scores, Workspace* work) const {
  work->order.clear();
  for (int j = 0; j < visible; ++j) {
    if (scores[j] > kHidden) work->order.push_back(j);  // neither hidden nor NaN
  }
  KeepBest(scores, spec.top_k, &work->order);
  std::copy(work->order.begin(), work->order.end(), args.selected + int64_t{token} * spec.top_k);
  args.selected_count[token] = static_cast<int32_t>(work->order.size());
}

void IndexStage::Select(const StepInput& step, const IndexSpec& spec, const IndexArgs& args) {
  DI_CHECK(spec.dim <= kKeyDimMax, "index keys of {} elements", spec.dim);
  PrepareQueries(step, spec, args);
  workspaces_.resize(static_cast<size_t>(context_->pool->threads()));
  const int64_t entries_max = std::max(1, step.shape.kv_len_max / spec.ratio);
  const auto slab = static_cast<int>(std::max<int64_t>(1, kScoresMax / entries_max));
  const auto visible = [&](int t) {
    return step.kind[t] == TokenKind::kDead ? 0 : (step.position[t] + 1) / spec.ratio;
  };
  const auto items = static_cast<int>((entries_max + kEntriesPerItem - 1) / kEntriesPerItem);
  for (int first = 0; first < step.shape.num_tokens; first += slab) {
    const int count = std::min(slab, step.shape.num_tokens - first);
    float* scores = scores_.Reserve(count * entries_max);
    context_->pool->Run(count * items, [&](int item, int) {
      const int i = item / items;
      const int begin = item % items * kEntriesPerItem;
      const int end = std::min(visible(first + i), begin + kEntriesPerItem);
      ScoreEntries(step, spec, args, first + i, begin, end, scores + i * entries_max);
    });
    context_->pool->Run(count, [&](int i, int thread) {
      Workspace* work = &workspaces_[static_cast<size_t>(thread)];
      float* own = scores + i * entries_max;
      const int t = first + i;
      if (spec.candidates == CandidateUse::kBuild) {
        BuildCandidates(spec, args, t, visible(t), own, work);
      } else if (spec.candidates == CandidateUse::kLimit) {
        LimitToCandidates(spec, args, t, visible(t), own);
      }
      ChooseEntries(spec, args, t, visible(t), own, work);
    });
  }
}

}  // namespace deepinfer::cpu
