// The list of rows that a token attends over, as its position and configuration fix it.
#pragma once

#include "backend/cuda/sparse/device_rows.cuh"
#include "backend/cuda/sparse/row_attention_kernel.h"

namespace deepinfer::cuda {

struct RowList {
  int count = 0;
  int first_part = 0;  // rows of the first kind
  int window_first = 0;
  int fresh_first = 0;  // position of the step's first row of the sequence
  const std::byte* fresh = nullptr;
  const int32_t* selected = nullptr;
  int row = 0;
  int slot = 0;
  int position = 0;
};

__device__ inline RowList ListOf(const RowAttentionAt& at, int t) {
  RowList list;
  if (at.kind == kListDraft) {
    list.row = t / at.block;
    const int anchor = at.step.position[list.row];
    const int begin = at.begin != nullptr ? at.begin[list.row] : 0;
    list.position = anchor + t % at.block;
    list.window_first = min(anchor, max(max(anchor - at.window, begin), 0));
    list.count = list.first_part = anchor - list.window_first + at.block;
    list.fresh_first = anchor;
    list.fresh = at.fresh + int64_t{list.row} * at.block * at.fresh_bytes;
    list.slot = at.step.slot[list.row];
    return list;
  }
  if (at.step.Dead(t)) return list;
  list.row = at.step.token_row[t];
  list.position = at.step.position[t];
  if (at.kind == kListHistory) {
    list.count = list.first_part = list.position + 1;
    return list;
  }
  const int first_token = at.step.query_start[list.row];
  list.slot = at.step.slot[list.row];
  list.fresh_first = at.step.position[first_token];
  list.fresh = at.fresh + first_token * at.fresh_bytes;
  const int begin = at.begin != nullptr ? at.begin[list.row] : 0;
  list.window_first = max(max(list.position - at.window + 1, begin), 0);
  const int window = max(0, list.position + 1 - list.window_first);
  int entries = 0;
  if (at.entries.base != nullptr) {
    if (at.selected != nullptr) {
      list.selected = at.selected + int64_t{t} * at.top_k;
      entries = at.selected_count[t];
    } else {
      entries = (list.position + 1) / at.ratio;
    }
  }
  list.count = window + entries;
  list.first_part = at.kind == kListPlain ? entries : window;
  return list;
}

__device__ inline const std::byte* WindowRow(const RowAttentionAt& at, const RowList& list,
                                             int position) {
  if (position >= list.fresh_first) {
    return list.fresh + (position - list.fresh_first) * at.fresh_bytes;
  }
  return at.ring.At(list.slot, position);
}

// Row i of the list; true in *fp4: a row of entry codes, else of window codes or plain elements.
__device__ inline const std::byte* RowOf(const RowAttentionAt& at, const RowList& list, int i,
                                         bool* fp4) {
  *fp4 = false;
  if (at.kind == kListHistory) return at.entries.Entry(list.row, i);
  if (at.kind == kListPlain) {
    if (i >= list.first_part) return WindowRow(at, list, list.window_first + i - list.first_part);
    const int entry = list.selected != nullptr ? list.selected[i] : i;
    return at.entries.Entry(list.row, ((entry + 1) * at.ratio - 1) / at.entry_ratio);
  }
  if (i < list.first_part) return WindowRow(at, list, list.window_first + i);
  *fp4 = true;
  return at.entries.Entry(list.row, list.selected[i - list.first_part]);
}

}  // namespace deepinfer::cuda
