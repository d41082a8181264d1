#include "backend/cuda/sparse/step_views.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::cuda {

static_assert(sizeof(TokenKind) == 1 && static_cast<uint8_t>(TokenKind::kText) == kTextToken &&
              static_cast<uint8_t>(TokenKind::kImage) == kImageToken &&
              static_cast<uint8_t>(TokenKind::kDead) == kDeadToken);

StepAt ViewOf(const StepInput& step) {
  return {.num_rows = step.shape.num_rows,
          .num_tokens = step.shape.num_tokens,
          .token = step.token,
          .position = step.position,
          .token_row = step.token_row,
          .query_start = step.query_start,
          .slot = step.slot,
          .kind = reinterpret_cast<const uint8_t*>(step.kind)};
}

RopeAt RopeView(const float* inv_freq, int half, float factor) {
  DI_CHECK(half >= 0 && half <= kRopeHalfMax, "rope of {} elements", 2 * half);
  RopeAt rope{.half = half, .factor = factor, .inv_freq = {}};
  std::copy_n(inv_freq, half, rope.inv_freq);
  return rope;
}

RopeAt ViewOf(const TailRope& rope) { return RopeView(rope.inv_freq, rope.dim / 2, 1.0F); }

HistoryAt HistoryView(const StepInput& step, const HistoryRows& rows, int64_t row_bytes) {
  const HistoryGroup& group = step.layout->history[static_cast<size_t>(rows.group)];
  DI_CHECK(group.row_bytes == row_bytes && rows.layer < group.layers,
           "group {}: rows of {} bytes, layer {}", group.name, row_bytes, rows.layer);
  return {.base = step.cache_blocks +
                  step.layout->history_offset(static_cast<size_t>(rows.group), rows.layer),
          .table = step.block_table,
          .table_stride = step.block_table_stride,
          .per_block = step.layout->block_tokens / group.ratio,
          .block_bytes = step.layout->block_bytes(),
          .row_bytes = row_bytes};
}

StateAt StateView(std::byte* slots, const CacheLayout& layout, const WindowRing& ring,
                  int64_t position_bytes) {
  const StateGroup& state = layout.state[static_cast<size_t>(ring.group)];
  DI_CHECK(state.position_bytes == position_bytes && ring.layer < state.layers,
           "state {}: positions of {} bytes, layer {}", state.name, position_bytes, ring.layer);
  return {.base = slots + layout.state_offset(static_cast<size_t>(ring.group), ring.layer),
          .slot_bytes = layout.slot_bytes(),
          .position_bytes = position_bytes,
          .positions = state.positions};
}

}  // namespace deepinfer::cuda
