#include "backend/cuda/cuda_compressed_ops.h"

#include <algorithm>

#include "backend/cuda/sparse/hyper_kernel.h"
#include "backend/cuda/sparse/index_kernel.h"
#include "backend/cuda/sparse/step_kernel.h"
#include "backend/cuda/sparse/step_views.h"
#include "backend/cuda/sparse/window_kernel.h"
#include "base/check.h"

namespace deepinfer::cuda {
namespace {

constexpr int kSlotsMost = 512;  // tokens that one entry reads
constexpr int64_t kScoresMost = int64_t{64} << 20;

// Checks what the kernel takes for granted.
int RoundingOf(StoredRounding rounding, int count, int tail) {
  if (rounding == StoredRounding::kFp8Blocks64) {
    DI_CHECK((count - tail) % 64 == 0, "{} elements before the tail", count - tail);
    return kRoundFp8Blocks64;
  }
  if (rounding == StoredRounding::kHadamardFp4) {
    DI_CHECK(count % 32 == 0 && (count & (count - 1)) == 0, "{} elements", count);
    return kRoundHadamardFp4;
  }
  return kNoRounding;
}

StreamsAt ShapeOf(const StreamShape& shape) {
  DI_CHECK(shape.streams >= 1 && shape.streams <= kStreamsMax, "{} streams", shape.streams);
  return {.rows = shape.rows, .streams = shape.streams, .hidden = shape.hidden};
}

}  // namespace

void CudaCompressedOps::CollapseHead(const HeadCollapseArgs& args) {
  if (args.shape.rows == 0) return;
  cuda::CollapseHead({.shape = ShapeOf(args.shape),
                      .x = args.x,
                      .raw = args.raw,
                      .base = Vector(args.base),
                      .scale = Vector(args.scale),
                      .norm_eps = args.norm_eps,
                      .hc_eps = args.hc_eps,
                      .out = args.out},
                     context_->stream);
}

void CudaCompressedOps::WriteWindows(const StepInput& step, const CompressorSpec& spec,
                                     const float* kv, const float* gate) {
  DI_CHECK(2 * spec.ratio <= kSlotsMost, "windows of {} tokens", spec.ratio);
  if (step.shape.num_tokens == 0) return;
  const bool float32 = spec.float32_entries || context_->float32;
  const int padded = EntryElements(spec.dim);
  const int64_t position_bytes = int64_t{8} * spec.width();
  const CompressorAt at{
      .step = ViewOf(step),
      .ring = StateView(step, spec.ring, position_bytes),
      .entries = HistoryView(step, spec.entries, int64_t{padded} * (float32 ? 4 : 2)),
      .rope = ViewOf(spec.rope),
      .dim = spec.dim,
      .width = spec.width(),
      .ratio = spec.ratio,
      .window_before = spec.reach == CompressorSpec::Reach::kWindowBefore,
      .bias = Vector(spec.bias),
      .norm = Vector(spec.norm),
      .norm_eps = spec.norm_eps,
      .rounding = RoundingOf(spec.rounding, spec.dim, spec.rope.dim),
      .float32 = float32,
      .padded = padded,
      .entry_ratio = EntryRatio(spec.ratio),
      .kv = kv,
      .gate = gate};
  WriteCompressed(at, context_->stream);
  StoreRing(at.step, at.ring, kv, gate, context_->stream);
}

void CudaCompressedOps::ChooseEntries(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                                      const float* weight, int32_t* selected, int32_t* count) {
  const int tokens = step.shape.num_tokens;
  if (tokens == 0) return;
  const int entries = std::max(1, step.shape.kv_len_max / spec.ratio);
  const auto slab = static_cast<int>(std::clamp<int64_t>(kScoresMost / entries, 1, tokens));
  ChoiceAt at{.step = ViewOf(step),
              .first = 0,
              .tokens = 0,
              .rope = ViewOf(spec.rope),
              .q = q,
              .weight = weight,
              .heads = spec.heads,
              .dim = spec.dim,
              .ratio = spec.ratio,
              .entry_ratio = EntryRatio(spec.ratio),
              .top_k = spec.top_k,
              .scale = spec.scale,
              .rounding = RoundingOf(spec.rounding, spec.dim, spec.rope.dim),
              .keys = HistoryView(step, spec.keys, int64_t{4} * EntryElements(spec.dim)),
              .entries_max = entries,
              .scores = scores_.Floats(int64_t{slab} * entries)};
  PrepareChoiceQueries(at, context_->stream);
  for (at.first = 0; at.first < tokens; at.first += slab) {
    at.tokens = std::min(slab, tokens - at.first);
    ScoreChoiceKeys(at, context_->stream);
    TakeTopRows({.step = at.step,
                 .first = at.first,
                 .tokens = at.tokens,
                 .rows = kScoredVisible,
                 .scores = at.scores,
                 .stride = entries,
                 .keep = spec.top_k,
                 .ratio = spec.ratio,
                 .block_size = 1,
                 .candidate_blocks = 0,
                 .candidate = nullptr,
                 .candidate_count = nullptr,
                 .lost_count = true,
                 .out = selected,
                 .count = count},
                context_->stream);
  }
}

std::byte* CudaCompressedOps::Prepare(const StepInput& step, const WindowAttentionSpec& spec,
                                      float* q, float* kv) {
  const int padded = EntryElements(spec.head_dim);
  const int64_t row_bytes = int64_t{padded} * (context_->float32 ? 4 : 2);
  auto* rows = rows_.Array<std::byte>(step.shape.num_tokens * row_bytes);
  PreparePlainRows({.step = ViewOf(step),
                    .rope = ViewOf(spec.rope),
                    .q = q,
                    .kv = kv,
                    .norm = Vector(spec.kv_norm),
                    .heads = spec.heads,
                    .dim = spec.head_dim,
                    .norm_eps = spec.norm_eps,
                    .norm_q = spec.query_norm == WindowAttentionSpec::QueryNorm::kRms,
                    .rounding = RoundingOf(spec.rounding, spec.head_dim, spec.rope.dim),
                    .float32 = context_->float32,
                    .padded = padded,
                    .rows = rows},
                   context_->stream);
  return rows;
}

void CudaCompressedOps::Attend(const StepInput& step, const WindowAttentionSpec& spec,
                               const WindowAttentionArgs& args) {
  if (step.shape.num_tokens == 0) return;
  const int padded = EntryElements(spec.head_dim);
  RowAttentionAt at{};
  at.kind = kListPlain;
  at.step = ViewOf(step);
  at.q = args.q;
  at.out = args.out;
  at.heads = spec.heads;
  at.q_dim = at.value_dim = spec.head_dim;
  at.row_dim = padded;
  at.scale = spec.scale;
  at.sink = Vector(spec.sinks);
  at.unrotate = ViewOf(spec.rope);
  at.float32 = context_->float32;
  at.fresh_bytes = int64_t{padded} * (context_->float32 ? 4 : 2);
  at.fresh = Prepare(step, spec, args.q, args.kv);
  at.ring = StateView(step, spec.ring, at.fresh_bytes);
  at.window = spec.window;
  at.block = 1;
  at.ratio = std::max(1, spec.ratio);
  at.entry_ratio = EntryRatio(at.ratio);
  at.rows_max = spec.window;
  if (spec.entries.group >= 0) {
    at.entries = HistoryView(step, spec.entries, at.fresh_bytes);
    at.selected = args.selected;
    at.selected_count = args.selected_count;
    at.top_k = args.selected_stride;
    at.rows_max +=
        args.selected != nullptr ? args.selected_stride : step.shape.kv_len_max / at.ratio;
  }
  attention_.Attend(at, context_->stream);
  StoreRing(at.step, at.ring, at.fresh, nullptr, context_->stream);
}

void CudaCompressedOps::StoreWindow(const StepInput& step, const WindowAttentionSpec& spec,
                                    float* kv) {
  if (step.shape.num_tokens == 0) return;
  const std::byte* rows = Prepare(step, spec, nullptr, kv);
  const int64_t row_bytes = int64_t{EntryElements(spec.head_dim)} * (context_->float32 ? 4 : 2);
  StoreRing(ViewOf(step), StateView(step, spec.ring, row_bytes), rows, nullptr, context_->stream);
}

PairStep CudaCompressedOps::TakePairs(const StepInput& step) {
  PairStep pairs{.step = step};
  pairs.source = pairs_.TakePairs(&pairs.step, context_->stream);
  return pairs;
}

void CudaCompressedOps::GatherPairs(const PairStep& pairs, const WindowRing& ring, int64_t width,
                                    const float* x, float* out) {
  cuda::GatherPairs(ViewOf(pairs.step), pairs.source,
                    StateView(pairs.step, ring, width * static_cast<int64_t>(sizeof(float))), width,
                    x, out, context_->stream);
}

void CudaCompressedOps::StorePairs(const StepInput& step, const WindowRing& ring, int64_t width,
                                   const float* x) {
  if (step.shape.num_tokens == 0) return;
  StoreRing(ViewOf(step), StateView(step, ring, width * static_cast<int64_t>(sizeof(float))), x,
            nullptr, context_->stream);
}

void CudaCompressedOps::AddToStreams(const StreamShape& shape, const float* row, float* x) {
  if (shape.rows > 0) cuda::AddToStreams(ShapeOf(shape), row, x, context_->stream);
}

}  // namespace deepinfer::cuda
