// Launches of attention where all heads of a token share a list of rows that are key and value:
// window and selected entries, window and plain entries, latents. Lists are cut into splits of
// fixed length that are merged in order, so that nothing depends on the company of a token.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sparse/row_views.h"

namespace deepinfer::cuda {

enum RowListKind : int {
  kListSparse,   // window rows (FP8), then selected entries (FP4)
  kListDraft,    // as kListSparse without entries: the window before the block, then the block
  kListPlain,    // entries (selected, or every visible one), then the window; plain elements
  kListHistory,  // history rows of positions 0 to the token's own; plain elements
};

struct RowAttentionAt {
  RowListKind kind;
  StepAt step;     // kListDraft: position, slot and num_tokens alone
  const float* q;  // [tokens, heads, q_dim]
  float* out;      // [tokens, heads, value_dim]; zero for dead tokens
  int heads;
  int q_dim;
  int row_dim;    // elements of a stored row, zeros beyond q_dim
  int value_dim;  // leading elements of a row that are its value
  float scale;
  const float* sink;  // [heads] or nullptr
  RopeAt unrotate;    // half > 0: the tail of the output is rotated back
  bool float32;       // float32 arithmetic, and plain elements of that type

  StateAt ring;
  const std::byte* fresh;  // [tokens, row bytes] of the step
  int64_t fresh_bytes;     // of a row
  int window;
  const int32_t* begin;  // [rows] or nullptr: 0
  int block;             // kListDraft: tokens of a row

  HistoryAt entries;        // base nullptr: none
  int ratio;                // tokens of an entry
  int entry_ratio;          // kListPlain: tokens of a history row
  const int32_t* selected;  // [tokens, top_k] or nullptr: all
  const int32_t* selected_count;
  int top_k;

  int rows_max;  // longest list
  // Scratch of RowAttentionScratch() floats.
  float* partial;
};

constexpr int kRowElementsMost = 1024;
constexpr int kRowSplit = 256;  // rows
inline int RowSplits(int rows_max) { return (rows_max + kRowSplit - 1) / kRowSplit; }
// Floats of scratch for `tokens` tokens.
inline int64_t RowAttentionScratch(int tokens, int heads, int value_dim, int rows_max) {
  return int64_t{tokens} * RowSplits(rows_max) * heads * (value_dim + 2);
}
// Tokens [first, first + tokens) of the step; scratch for `tokens` of them.
void AttendRows(const RowAttentionAt& at, int first, int tokens, cudaStream_t stream);

// The same on tensor cores, for rows that they hold exactly: queries and weights are rounded to
// bf16 or f16. Needs no scratch. `tokens` changes the launch, not the result.
bool CanAttendByMma(const RowAttentionAt& at);
void AttendByMma(const RowAttentionAt& at, int first, int tokens, cudaStream_t stream);

}  // namespace deepinfer::cuda
