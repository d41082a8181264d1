// Where the rows of one layer of a cache group are in a step: plain index arithmetic over the block
// table and the slots. Built per stage call; the step outlives it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/sparse_ops.h"
#include "base/check.h"

namespace deepinfer::cpu {

class HistoryView {
 public:
  HistoryView(const StepInput& step, const HistoryRows& rows, int64_t row_bytes) : step_(step) {
    const HistoryGroup& group = step.layout->history[static_cast<size_t>(rows.group)];
    DI_CHECK(group.row_bytes == row_bytes && rows.layer < group.layers,
             "group {}: rows of {} bytes, layer {}", group.name, row_bytes, rows.layer);
    per_block_ = step.layout->block_tokens / group.ratio;
    block_bytes_ = step.layout->block_bytes();
    row_bytes_ = row_bytes;
    base_ = step.cache_blocks +
            step.layout->history_offset(static_cast<size_t>(rows.group), rows.layer);
  }
  std::byte* Entry(int row, int64_t entry) const {
    const int32_t* table = step_.block_table + int64_t{row} * step_.block_table_stride;
    return base_ + table[entry / per_block_] * block_bytes_ + entry % per_block_ * row_bytes_;
  }
  // Addresses of `count` entries from `first` on.
  void Entries(int row, int64_t first, int count, const void** out) const {
    for (int i = 0; i < count;) {
      const int64_t left = per_block_ - (first + i) % per_block_;
      const std::byte* at = Entry(row, first + i);
      for (const auto end = static_cast<int>(std::min<int64_t>(count, i + left)); i < end; ++i) {
        *out++ = at;
        at += row_bytes_;
      }
    }
  }

 private:
  const StepInput& step_;
  std::byte* base_ = nullptr;
  int64_t per_block_ = 1;
  int64_t block_bytes_ = 0;
  int64_t row_bytes_ = 0;
};

class StateView {
 public:
  StateView(std::byte* slots, const CacheLayout& layout, int group, int layer,
            int64_t position_bytes) {
    const StateGroup& state = layout.state[static_cast<size_t>(group)];
    DI_CHECK(state.position_bytes == position_bytes && layer < state.layers,
             "state {}: positions of {} bytes, layer {}", state.name, position_bytes, layer);
    base_ = slots + layout.state_offset(static_cast<size_t>(group), layer);
    slot_bytes_ = layout.slot_bytes();
    position_bytes_ = position_bytes;
    positions_ = state.positions;
  }
  StateView(const StepInput& step, int group, int layer, int64_t position_bytes)
      : StateView(step.cache_slots, *step.layout, group, layer, position_bytes) {}
  std::byte* At(int slot, int64_t position) const {
    return base_ + slot * slot_bytes_ + position % positions_ * position_bytes_;
  }
  int positions() const { return positions_; }

 private:
  std::byte* base_ = nullptr;
  int64_t slot_bytes_ = 0;
  int64_t position_bytes_ = 0;
  int positions_ = 0;
};

// The live tokens of a row stand at the front of its queries.
inline int LiveTokens(const StepInput& step, int row) {
  int end = step.query_start[row + 1];
  while (end > step.query_start[row] && step.kind[end - 1] == TokenKind::kDead) --end;
  return end - step.query_start[row];
}
inline int32_t RowValue(const int32_t* values, int row) {
  return values != nullptr ? values[row] : 0;
}

}  // namespace deepinfer::cpu
