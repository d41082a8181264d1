#include "backend/cuda/cuda_sparse_ops.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/sparse/hyper_kernel.h"
#include "backend/cuda/sparse/step_kernel.h"
#include "backend/cuda/sparse/step_views.h"
#include "backend/cuda/sparse/window_kernel.h"
#include "base/check.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kScoresMost = int64_t{64} << 20;  // in work at once
constexpr int kIndexDimMost = 512;

StreamsAt ShapeOf(const StreamShape& shape) {
  DI_CHECK(shape.streams >= 1 && shape.streams <= kStreamsMax, "{} streams", shape.streams);
  return {.rows = shape.rows, .streams = shape.streams, .hidden = shape.hidden};
}

// What all lists of window rows and entries share.
RowAttentionAt SparseRows(const CudaContext& context, const WindowSpec& spec) {
  RowAttentionAt at{};
  at.kind = kListSparse;
  at.float32 = context.float32;
  at.heads = spec.heads;
  at.q_dim = at.row_dim = at.value_dim = spec.dim;
  at.scale = spec.scale;
  at.sink = Vector(spec.sink);
  at.unrotate = ViewOf(spec.rope);
  at.fresh_bytes = WindowRowBytes(spec.dim);
  at.window = spec.window;
  at.ratio = 1;
  at.entry_ratio = 1;
  at.block = 1;
  return at;
}

}  // namespace

// ---- streams

void CudaSparseOps::StartStreams(const StreamShape& shape, const float* embedded, float* x,
                                 float* pre) {
  if (shape.rows == 0) return;
  cuda::StartStreams(ShapeOf(shape), embedded, x, pre, context_->stream);
}

void CudaSparseOps::StreamMix(const StreamMixArgs& args) {
  if (args.shape.rows == 0) return;
  MixStreams({.shape = ShapeOf(args.shape),
              .x = args.x,
              .raw = args.raw,
              .base = Vector(args.base),
              .scale = Vector(args.scale),
              .sinkhorn_iters = args.sinkhorn_iters,
              .norm_eps = args.norm_eps,
              .hc_eps = args.hc_eps,
              .pre = args.pre,
              .post = args.post,
              .comb = args.comb},
             context_->stream);
}

void CudaSparseOps::Collapse(const StreamShape& shape, const float* x, const float* pre,
                             float* out) {
  if (shape.rows > 0) CollapseStreams(ShapeOf(shape), x, pre, out, context_->stream);
}

void CudaSparseOps::Expand(const StreamShape& shape, const float* y, const float* post,
                           const float* comb, float* x) {
  if (shape.rows > 0) ExpandStreams(ShapeOf(shape), y, post, comb, x, context_->stream);
}

void CudaSparseOps::StreamMean(const StreamShape& shape, const float* x, float* out,
                               int64_t stride) {
  if (shape.rows > 0) MeanStreams(ShapeOf(shape), x, out, stride, context_->stream);
}

// ---- windows

void CudaSparseOps::EncodeWindow(const StepInput& step, const WindowSpec& spec,
                                 const WindowArgs& args) {
  if (step.shape.num_tokens == 0) return;
  const StepAt at = ViewOf(step);
  cuda::EncodeWindow({.tokens = at.num_tokens,
                      .position = at.position,
                      .block = 1,
                      .kind = at.kind,
                      .rope = ViewOf(spec.rope),
                      .q = args.q,
                      .kv = args.kv,
                      .norm = Vector(spec.kv_norm),
                      .heads = spec.heads,
                      .dim = spec.dim,
                      .norm_eps = spec.norm_eps,
                      .rows = args.rows},
                     context_->stream);
}

void CudaSparseOps::StoreRows(const StepInput& step, const WindowSpec& spec,
                              const WindowArgs& args) {
  StoreRing(ViewOf(step), StateView(step, spec.ring, WindowRowBytes(spec.dim)), args.rows, nullptr,
            context_->stream);
}

void CudaSparseOps::WindowAttention(const StepInput& step, const WindowSpec& spec,
                                    const WindowArgs& args) {
  if (step.shape.num_tokens == 0) return;
  RowAttentionAt at = SparseRows(*context_, spec);
  at.step = ViewOf(step);
  at.q = args.q;
  at.out = args.out;
  at.ring = StateView(step, spec.ring, at.fresh_bytes);
  at.fresh = args.rows;
  at.begin = args.begin;
  at.rows_max = spec.window;
  if (spec.entries.group >= 0) {
    at.entries = HistoryView(step, spec.entries, MainEntryBytes(spec.dim));
    at.ratio = spec.ratio;
    at.selected = args.selected;
    at.selected_count = args.selected_count;
    at.top_k = args.top_k;
    at.rows_max = spec.window + args.top_k;
  }
  attention_.Attend(at, context_->stream);
  StoreRows(step, spec, args);
}

void CudaSparseOps::StoreWindow(const StepInput& step, const WindowSpec& spec,
                                const WindowArgs& args) {
  if (step.shape.num_tokens == 0) return;
  WindowArgs stored = args;
  stored.q = nullptr;
  EncodeWindow(step, spec, stored);
  StoreRows(step, spec, args);
}

void CudaSparseOps::DraftWindowAttention(const WindowSpec& spec, const DraftWindowArgs& args) {
  const int tokens = args.rows * args.block;
  if (tokens == 0) return;
  cuda::EncodeWindow({.tokens = tokens,
                      .position = args.position,
                      .block = args.block,
                      .kind = nullptr,
                      .rope = ViewOf(spec.rope),
                      .q = args.q,
                      .kv = args.kv,
                      .norm = Vector(spec.kv_norm),
                      .heads = spec.heads,
                      .dim = spec.dim,
                      .norm_eps = spec.norm_eps,
                      .rows = args.encoded},
                     context_->stream);
  RowAttentionAt at = SparseRows(*context_, spec);
  at.kind = kListDraft;
  at.step.num_tokens = tokens;
  at.step.position = args.position;
  at.step.slot = args.slot;
  at.q = args.q;
  at.out = args.out;
  at.ring = StateView(args.cache_slots, *args.layout, spec.ring, at.fresh_bytes);
  at.fresh = args.encoded;
  at.begin = args.begin;
  at.block = args.block;
  at.rows_max = spec.window + args.block;
  attention_.Attend(at, context_->stream);
}

// ---- entries

void CudaSparseOps::Compress(const StepInput& step, const CompressSpec& spec,
                             const CompressArgs& args) {
  DI_CHECK(spec.ratio == 1 || spec.ratio == 2, "groups of {} tokens", spec.ratio);
  if (step.shape.num_tokens == 0) return;
  CompressAt at{.step = ViewOf(step),
                .tail = {},
                .dim = spec.dim,
                .ratio = spec.ratio,
                .norm = Vector(spec.norm),
                .norm_eps = spec.norm_eps,
                .k = args.k,
                .gate = args.gate,
                .latent = args.latent};
  if (spec.ratio > 1) {
    at.tail = StateView(step, {spec.tail_group, spec.tail_layer}, int64_t{8} * spec.dim);
  }
  CompressPairs(at, context_->stream);
}

void CudaSparseOps::WriteEntries(const StepInput& step, const EntrySpec& spec,
                                 const EntryArgs& args) {
  if (step.shape.num_tokens == 0) return;
  cuda::WriteEntries({.step = ViewOf(step),
                      .write_floor = step.write_floor,
                      .entries = HistoryView(step, spec.entries, MainEntryBytes(spec.dim)),
                      .keys = HistoryView(step, spec.keys, IndexKeyBytes(spec.key_dim)),
                      .rope = ViewOf(spec.rope),
                      .dim = spec.dim,
                      .key_dim = spec.key_dim,
                      .ratio = spec.ratio,
                      .key_norm = Vector(spec.key_norm),
                      .norm_eps = spec.norm_eps,
                      .latent = args.latent,
                      .key = args.key},
                     context_->stream);
}

// Scores, then choices, of the tokens of a slab.
void CudaSparseOps::IndexSlab(const IndexAt& slab, const IndexSpec& spec, const IndexArgs& args) {
  ScoreIndexKeys(slab, context_->stream);
  TopRowsAt top{.step = slab.step,
                .first = slab.first,
                .tokens = slab.tokens,
                .rows = slab.rows,
                .scores = slab.scores,
                .stride = slab.entries_max,
                .keep = spec.top_k,
                .ratio = spec.ratio,
                .block_size = spec.block_size,
                .candidate_blocks = spec.candidate_blocks,
                .candidate = args.candidate,
                .candidate_count = args.candidate_count,
                .lost_count = false,
                .out = args.selected,
                .count = args.selected_count};
  TakeTopRows(top, context_->stream);
  if (spec.candidates != CandidateUse::kBuild) return;
  const int blocks = (slab.entries_max + spec.block_size - 1) / spec.block_size;
  float* best = blocks_.Floats(int64_t{slab.tokens} * blocks);
  ScoreBlocks(slab, best, blocks, context_->stream);
  top.rows = kScoredBlocks;
  top.scores = best;
  top.stride = blocks;
  top.keep = spec.candidate_blocks;
  top.out = args.candidate;
  top.count = args.candidate_count;
  TakeTopRows(top, context_->stream);
}

void CudaSparseOps::IndexSelect(const StepInput& step, const IndexSpec& spec,
                                const IndexArgs& args) {
  DI_CHECK(spec.dim <= kIndexDimMost && spec.dim % kIndexKeyBlock == 0, "index keys of {} elements",
           spec.dim);
  const int tokens = step.shape.num_tokens;
  if (tokens == 0) return;
  const int64_t width = int64_t{spec.heads} * spec.dim;
  const bool limited = spec.candidates == CandidateUse::kLimit;
  int entries = std::max(1, step.shape.kv_len_max / spec.ratio);
  if (limited) entries = spec.candidate_blocks * spec.block_size;
  const auto slab = static_cast<int>(std::clamp<int64_t>(kScoresMost / entries, 1, tokens));
  IndexAt at{.step = ViewOf(step),
             .first = 0,
             .tokens = 0,
             .rope = ViewOf(spec.rope),
             .q = args.q,
             .weight = args.weight,
             .heads = spec.heads,
             .dim = spec.dim,
             .ratio = spec.ratio,
             .keys = HistoryView(step, spec.keys, IndexKeyBytes(spec.dim)),
             .rows = limited ? kScoredCandidates : kScoredVisible,
             .block_size = spec.block_size,
             .candidate_blocks = spec.candidate_blocks,
             .candidate = args.candidate,
             .candidate_count = args.candidate_count,
             .entries_max = entries,
             .codes = codes_.Array<int8_t>(tokens * width),
             .scales = scales_.Floats(tokens * width / kIndexKeyBlock),
             .scores = scores_.Floats(int64_t{slab} * entries)};
  PrepareIndexQueries(at, context_->stream);
  scan_clock_.Begin(context_->stream);
  for (at.first = 0; at.first < tokens; at.first += slab) {
    at.tokens = std::min(slab, tokens - at.first);
    IndexSlab(at, spec, args);
  }
  scan_clock_.End(context_->stream);
}

// ---- n-grams

void CudaSparseOps::NgramGate(const NgramGateArgs& args) {
  if (args.shape.rows == 0) return;
  cuda::NgramGate({.shape = ShapeOf(args.shape),
                   .x = args.x,
                   .kv = args.kv,
                   .q_weight = Vector(args.q_weight),
                   .k_weight = Vector(args.k_weight),
                   .kind = reinterpret_cast<const uint8_t*>(args.kind),
                   .norm_eps = args.norm_eps},
                  context_->stream);
}

// The constants of a model's tables in device memory: multipliers, primes, offsets of each.
const int64_t* CudaSparseOps::NgramConstants(const NgramSpec& spec) {
  if (ngram_key_ == spec.tables[0].multiplier.data()) return ngram_constants_.Array<int64_t>(0);
  std::vector<int64_t> constants;
  for (const NgramTable& table : spec.tables) {
    for (const std::span<const int64_t> part : {table.multiplier, table.prime, table.offset}) {
      constants.insert(constants.end(), part.begin(), part.end());
    }
  }
  auto* device = ngram_constants_.Array<int64_t>(static_cast<int64_t>(constants.size()));
  context_->Upload(constants.data(), constants.size() * sizeof(int64_t), device);
  auto* map = token_map_.Array<int32_t>(static_cast<int64_t>(spec.token_map.size()));
  context_->Upload(spec.token_map.data(), spec.token_map.size_bytes(), map);
  ngram_key_ = spec.tables[0].multiplier.data();
  return device;
}

void CudaSparseOps::NgramRows(const StepInput& step, const NgramSpec& spec,
                              std::span<int64_t* const> rows) {
  DI_CHECK(spec.ngram >= 2 && spec.ngram <= kNgramMost, "n-grams of {} tokens", spec.ngram);
  DI_CHECK(rows.size() <= kNgramTablesMost && rows.size() == spec.tables.size(), "{} tables",
           rows.size());
  static_assert(kNgramMost == kLeadTokens + 1 && kLeadMost == kLeadTokens);
  if (step.shape.num_tokens == 0 || rows.empty()) return;
  NgramAt at{};
  at.step = ViewOf(step);
  at.state = StateView(step, {spec.state_group, 0}, sizeof(int32_t));
  at.lead_token = step.lead_token;
  at.constants = NgramConstants(spec);
  at.token_map = token_map_.Array<int32_t>(0);
  at.map_size = static_cast<int>(spec.token_map.size());
  at.pad = spec.pad;
  at.ngram = spec.ngram;
  at.heads = spec.heads;
  at.tables = static_cast<int>(rows.size());
  std::copy(rows.begin(), rows.end(), at.rows);
  cuda::NgramRows(at, context_->stream);
}

// ---- tokens of a step

SparseOps::Suffix CudaSparseOps::TakeSuffix(const StepInput& step) {
  Suffix suffix{.step = step};
  suffix.index = suffix_.TakeSuffix(&suffix.step, context_->stream);
  return suffix;
}

void CudaSparseOps::Gather(const float* from, const int32_t* index, int rows, int64_t cols,
                           float* to) {
  cuda::GatherRows(from, index, rows, cols, to, context_->stream);
}

void CudaSparseOps::Scatter(const float* from, const int32_t* index, int rows, int64_t cols,
                            float* to, int to_rows) {
  ScatterRows(from, index, rows, cols, to, to_rows, context_->stream);
}

// ---- grouped output

void CudaSparseOps::GroupedLinear(const GroupedLinearArgs& args) {
  if (args.rows == 0) return;
  const Weight& weight = *args.weight;
  float* joined = joined_.Floats(args.rows * weight.experts * weight.rows);
  grouped_.Run(weight, args.x, weight.cols, args.rows, joined, weight.rows);
  SetInput(*context_, joined, args.rows, args.out);
}

}  // namespace deepinfer::cuda
