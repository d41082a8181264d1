#include "backend/cpu/window_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "backend/cpu/step_rows.h"
#include "base/check.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

constexpr int kHeadsPerItem = 8;
constexpr int kRopeHalfMax = 256;

void RotateTail(const CpuContext& context, const WindowSpec& spec, const float* cos,
                const float* sin, float* x) {
  context.rows->rope_interleaved(x + spec.dim - spec.rope.dim, cos, sin, spec.rope.dim / 2);
}

}  // namespace

void WindowStage::EncodeToken(const WindowSpec& spec, int token, float* q, const float* kv,
                              std::byte* row, float* scratch) const {
  const float* cos = rope_.cos(token);
  const float* sin = rope_.sin(token);
  if (q != nullptr) {
    for (int h = 0; h < spec.heads; ++h) {
      RotateTail(*context_, spec, cos, sin, q + int64_t{h} * spec.dim);
    }
  }
  context_->rows->rms_norm(kv, Cpu(*spec.kv_norm).vector.data(), spec.dim, spec.norm_eps, scratch);
  RotateTail(*context_, spec, cos, sin, scratch);
  EncodeWindowRow(scratch, spec.dim, row);
}

void WindowStage::Encode(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) {
  const int tokens = step.shape.num_tokens;
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.rope.inv_freq, spec.rope.dim / 2,
                1.0F);
  ReserveScratch(spec, 0);
  const int64_t row_bytes = WindowRowBytes(spec.dim);
  context_->pool->Run(tokens, [&](int t, int thread) {
    if (step.kind[t] == TokenKind::kDead) return;
    float* q = args.q == nullptr ? nullptr : args.q + int64_t{t} * spec.heads * spec.dim;
    EncodeToken(spec, t, q, args.kv + int64_t{t} * spec.dim, args.rows + t * row_bytes,
                scratch_.get() + thread * scratch_stride_);
  });
}

void WindowStage::ReserveScratch(const WindowSpec& spec, int rows_max) {
  scratch_stride_ = (std::max(spec.dim, rows_max) + 15) / 16 * 16;
  scratch_.Reserve(scratch_stride_ * context_->pool->threads());
}

// Decodes what the token sees, window rows first; returns their count.
int WindowStage::DecodeRows(const StepInput& step, const WindowSpec& spec, const WindowArgs& args,
                            int token, float* rows) const {
  const int row = step.token_row[token];
  const int first_token = step.query_start[row];
  const int first = step.position[first_token];
  const int position = step.position[token];
  const int64_t row_bytes = WindowRowBytes(spec.dim);
  const StateView ring(step, spec.ring.group, spec.ring.layer, row_bytes);
  int count = 0;
  for (int p = std::max(position - spec.window + 1, std::max(RowValue(args.begin, row), 0));
       p <= position; ++p) {
    const std::byte* from =
        p >= first ? args.rows + (first_token + p - first) * row_bytes : ring.At(step.slot[row], p);
    DecodeWindowRow(from, spec.dim, rows + int64_t{count++} * spec.dim);
  }
  if (spec.entries.group < 0) return count;
  const HistoryView entries(step, spec.entries, MainEntryBytes(spec.dim));
  const int32_t* selected = args.selected + int64_t{token} * args.top_k;
  for (int i = 0; i < args.selected_count[token]; ++i) {
    DecodeMainEntry(entries.Entry(row, selected[i]), spec.dim, rows + int64_t{count++} * spec.dim);
  }
  return count;
}

void WindowStage::AttendHeads(const WindowSpec& spec, const Query& query, const float* rows,
                              int count, int head_begin, int head_end, float* scores) const {
  const float* sinks = Cpu(*spec.sink).vector.data();
  const float* cos = rope_.cos(query.rope);
  float inverse_sin[kRopeHalfMax];
  for (int i = 0; i < spec.rope.dim / 2; ++i) inverse_sin[i] = -rope_.sin(query.rope)[i];
  for (int h = head_begin; h < head_end; ++h) {
    const float* q = query.q + int64_t{h} * spec.dim;
    float max = sinks[h];
    for (int j = 0; j < count; ++j) {
      scores[j] = DotLanes(q, rows + int64_t{j} * spec.dim, spec.dim) * spec.scale;
      max = std::max(max, scores[j]);
    }
    float sum = 0.0F;
    for (int j = 0; j < count; ++j) {
      scores[j] = std::exp(scores[j] - max);
      sum += scores[j];
    }
    sum += std::exp(sinks[h] - max);
    float* out = query.out + int64_t{h} * spec.dim;
    std::fill_n(out, spec.dim, 0.0F);
    for (int j = 0; j < count; ++j) {
      context_->rows->add_scaled(scores[j] / sum, rows + int64_t{j} * spec.dim, spec.dim, out);
    }
    RotateTail(*context_, spec, cos, inverse_sin, out);
  }
}

void WindowStage::Attend(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) {
  DI_CHECK(spec.rope.dim / 2 <= kRopeHalfMax && spec.rope.dim <= spec.dim, "rope of {} elements",
           spec.rope.dim);
  const int tokens = step.shape.num_tokens;
  const int threads = context_->pool->threads();
  const int rows_max = spec.window + (spec.entries.group >= 0 ? args.top_k : 0);
  ReserveScratch(spec, rows_max);
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.rope.inv_freq, spec.rope.dim / 2,
                1.0F);
  const int64_t rows_stride = int64_t{rows_max} * spec.dim;
  const auto query = [&](int t) {
    return Query{.q = args.q + int64_t{t} * spec.heads * spec.dim,
                 .out = args.out + int64_t{t} * spec.heads * spec.dim,
                 .rope = t};
  };
  const auto dead = [&](int t) {
    if (step.kind[t] != TokenKind::kDead) return false;
    std::fill_n(args.out + int64_t{t} * spec.heads * spec.dim, int64_t{spec.heads} * spec.dim,
                0.0F);
    return true;
  };
  if (tokens >= 2 * threads) {  // a token is an item
    rows_.Reserve(rows_stride * threads);
    context_->pool->Run(tokens, [&](int t, int thread) {
      if (dead(t)) return;
      float* rows = rows_.get() + thread * rows_stride;
      const int count = DecodeRows(step, spec, args, t, rows);
      AttendHeads(spec, query(t), rows, count, 0, spec.heads,
                  scratch_.get() + thread * scratch_stride_);
    });
  } else {  // few tokens: their heads are shared out
    rows_.Reserve(rows_stride * tokens);
    counts_.assign(static_cast<size_t>(tokens), 0);
    context_->pool->Run(tokens, [&](int t, int) {
      if (dead(t)) return;
      counts_[static_cast<size_t>(t)] =
          DecodeRows(step, spec, args, t, rows_.get() + t * rows_stride);
    });
    const int groups = (spec.heads + kHeadsPerItem - 1) / kHeadsPerItem;
    context_->pool->Run(tokens * groups, [&](int item, int thread) {
      const int t = item / groups;
      if (counts_[static_cast<size_t>(t)] == 0) return;
      const int begin = item % groups * kHeadsPerItem;
      AttendHeads(spec, query(t), rows_.get() + t * rows_stride, counts_[static_cast<size_t>(t)],
                  begin, std::min(spec.heads, begin + kHeadsPerItem),
                  scratch_.get() + thread * scratch_stride_);
    });
  }
  StoreRows(step, spec, args);
}

// After all reads: only the newest rows of the step survive in the ring.
void WindowStage::StoreRows(const StepInput& step, const WindowSpec& spec,
                            const WindowArgs& args) const {
  const int64_t row_bytes = WindowRowBytes(spec.dim);
  const StateView ring(step, spec.ring.group, spec.ring.layer, row_bytes);
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int live = LiveTokens(step, row);
    const int end = step.query_start[row] + live;
    for (int t = end - std::min(live, ring.positions()); t < end; ++t) {
      std::memcpy(ring.At(step.slot[row], step.position[t]), args.rows + t * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
}

void WindowStage::Store(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) {
  Encode(step, spec, args);
  StoreRows(step, spec, args);
}

void WindowStage::AttendDraft(const WindowSpec& spec, const DraftWindowArgs& args) {
  const int tokens = args.rows * args.block;
  const int64_t row_bytes = WindowRowBytes(spec.dim);
  positions_.resize(static_cast<size_t>(tokens));
  for (int t = 0; t < tokens; ++t) {
    positions_[static_cast<size_t>(t)] = args.position[t / args.block] + t % args.block;
  }
  rope_.Prepare(context_->pool.get(), positions_.data(), tokens, spec.rope.inv_freq,
                spec.rope.dim / 2, 1.0F);
  const int rows_max = spec.window + args.block;
  ReserveScratch(spec, rows_max);
  const int64_t rows_stride = int64_t{rows_max} * spec.dim;
  rows_.Reserve(rows_stride * args.rows);
  counts_.assign(static_cast<size_t>(args.rows), 0);
  const StateView ring(args.cache_slots, *args.layout, spec.ring.group, spec.ring.layer, row_bytes);
  context_->pool->Run(args.rows, [&](int row, int thread) {
    float* rows = rows_.get() + row * rows_stride;
    int& count = counts_[static_cast<size_t>(row)];
    const int anchor = args.position[row];
    for (int p = std::max(anchor - spec.window, std::max(RowValue(args.begin, row), 0)); p < anchor;
         ++p) {
      DecodeWindowRow(ring.At(args.slot[row], p), spec.dim, rows + int64_t{count++} * spec.dim);
    }
    for (int t = row * args.block; t < (row + 1) * args.block; ++t) {
      std::byte* encoded = args.encoded + t * row_bytes;
      EncodeToken(spec, t, args.q + int64_t{t} * spec.heads * spec.dim,
                  args.kv + int64_t{t} * spec.dim, encoded,
                  scratch_.get() + thread * scratch_stride_);
      DecodeWindowRow(encoded, spec.dim, rows + int64_t{count++} * spec.dim);
    }
  });
  context_->pool->Run(tokens, [&](int t, int thread) {
    const int row = t / args.block;
    AttendHeads(spec,
                {.q = args.q + int64_t{t} * spec.heads * spec.dim,
                 .out = args.out + int64_t{t} * spec.heads * spec.dim,
                 .rope = t},
                rows_.get() + row * rows_stride, counts_[static_cast<size_t>(row)], 0, spec.heads,
                scratch_.get() + thread * scratch_stride_);
  });
}

}  // namespace deepinfer::cpu
