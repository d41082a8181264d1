#include "backend/cpu/index_stage.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "backend/cpu/step_rows.h"
#include "base/check.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kScoresMax = int64_t{4} << 20;  // in work at once
constexpr int kEntriesPerItem = 1024;
constexpr int kSpanTokens = 8;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The `keep` best of n scores, the lower index first on a tie; ascending. What is hidden or not a
// number is never among them.
void KeepBest(const float* scores, int n, int keep, std::vector<float>* values,
              std::vector<int32_t>* best) {
  values->clear();
  best->clear();
  for (int j = 0; j < n; ++j) {
    if (scores[j] > kHidden) values->push_back(scores[j]);
  }
  float least = kHidden;
  int64_t equal = 0;  // how many of the least belong to the best
  if (static_cast<int>(values->size()) > keep) {
    const auto last = values->begin() + keep - 1;
    std::nth_element(values->begin(), last, values->end(), std::greater<>());
    least = *last;
    equal = 1 + std::count(values->begin(), last, least);
  }
  for (int j = 0; j < n; ++j) {
    if (scores[j] > least) {
      best->push_back(j);
    } else if (equal > 0 && scores[j] == least) {
      best->push_back(j);
      --equal;
    }
  }
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

// Entries [begin, end) for `tokens` tokens of one row; scores of each `stride` after the last.
void IndexStage::ScoreEntries(const StepInput& step, const IndexSpec& spec, const IndexArgs& args,
                              const Span& span, int begin, int end, float* scores) const {
  const HistoryView keys(step, spec.keys, IndexKeyBytes(spec.dim));
  const int64_t width = int64_t{spec.heads} * spec.dim;
  const int64_t blocks = width / kIndexBlock;
  const int row = step.token_row[span.token];
  IndexScore score{.q = codes_.data() + span.token * width,
                   .q_sum = sums_.data() + span.token * blocks,
                   .q_scale = scales_.get() + span.token * blocks,
                   .weight = args.weight + int64_t{span.token} * spec.heads,
                   .tokens = span.tokens,
                   .heads = spec.heads,
                   .dim = spec.dim,
                   .head_scale = 1.0F / std::sqrt(static_cast<float>(spec.heads)),
                   .scale = 1.0F / std::sqrt(static_cast<float>(spec.dim)),
                   .key = {},
                   .count = 0,
                   .scores = nullptr,
                   .stride = span.stride};
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
  KeepBest(work->block_score.data(), blocks, spec.candidate_blocks, &work->values, &work->order);
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
    ScoreEntries(step, spec, args, {.token = token}, entries[i], entries[next - 1] + 1, scores + i);
    i = next;
  }
}

void IndexStage::ChooseEntries(const IndexSpec& spec, const IndexArgs& args, int token, int count,
                               const int32_t* entries, const float* scores, Workspace* work) const {
  KeepBest(scores, count, spec.top_k, &work->values, &work->order);
  int32_t* selected = args.selected + int64_t{token} * spec.top_k;
  for (const int32_t j : work->order) *selected++ = entries != nullptr ? entries[j] : j;
  args.selected_count[token] = static_cast<int32_t>(work->order.size());
}

void IndexStage::Select(const StepInput& step, const IndexSpec& spec, const IndexArgs& args) {
  DI_CHECK(spec.dim <= kIndexKeyDimMax && spec.dim % kIndexBlock == 0, "index keys of {} elements",
           spec.dim);
  PrepareQueries(step, spec, args);
  const auto begin = std::chrono::steady_clock::now();
  Scan(step, spec, args);
  const auto taken = std::chrono::steady_clock::now() - begin;
  scan_ns_.fetch_add(std::chrono::nanoseconds(taken).count(), std::memory_order_relaxed);
}

// Tokens that share the keys they meet, as long as every thread has work.
int IndexStage::SpanTokens(int tokens, int items) const {
  const int threads = context_->pool->threads();
  if (items >= 2 * threads) return kSpanTokens;
  return std::clamp(tokens / (2 * threads), 1, kSpanTokens);
}

void IndexStage::ListSpans(const StepInput& step, int first, int count, int most) {
  spans_.clear();
  for (int t = first; t < first + count; ++t) {
    if (!spans_.empty() && spans_.back().tokens < most &&
        step.token_row[spans_.back().token] == step.token_row[t]) {
      ++spans_.back().tokens;
    } else {
      spans_.push_back({.token = t});
    }
  }
}

// Scores, then choices, of as many tokens at once as the scores' memory takes.
void IndexStage::Scan(const StepInput& step, const IndexSpec& spec, const IndexArgs& args) {
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
    ListSpans(step, first, count, limited ? 1 : SpanTokens(count, items));
    context_->pool->Run(static_cast<int>(spans_.size()) * items, [&](int item, int) {
      Span span = spans_[static_cast<size_t>(item / items)];
      span.stride = entries_max;
      const int begin = item % items * kEntriesPerItem;
      int seen = 0;  // by the last that lives; those before it see fewer, and read no more
      for (int t = span.token; t < span.token + span.tokens; ++t) {
        seen = std::max(seen, counts_[static_cast<size_t>(t - first)]);
      }
      const int end = std::min(seen, begin + kEntriesPerItem);
      const int64_t at = (span.token - first) * entries_max;
      if (limited) {
        ScoreList(step, spec, args, span.token, entries_.data() + at, begin, end, scores + at);
      } else {
        ScoreEntries(step, spec, args, span, begin, end, scores + at + begin);
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
