// Launches of attention with keys and values per head (AttentionSpec, backend/backend.h). A cache
// row holds the keys of all kv heads, then their values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/sparse/row_views.h"

namespace deepinfer::cuda {

constexpr int kHeadDimMost = 256;  // a multiple of 8
constexpr int kSplitKeys = 256;    // keys of one partial result, at absolute positions

struct RopeCacheAt {
  StepAt step;
  HistoryAt rows;
  RopeAt rope;
  bool halves;  // pairs (i, i + half), else (2 i, 2 i + 1)
  int heads;
  int kv_heads;
  int head_dim;
  const float* q_norm;  // [head_dim] or nullptr
  const float* k_norm;
  float norm_eps;
  bool float32;
  float* q;  // in place
  float* k;
  const float* v;
};
void RopeAndCacheRows(const RopeCacheAt& at, cudaStream_t stream);

struct AttendAt {
  StepAt step;
  HistoryAt rows;
  int heads;
  int kv_heads;
  int head_dim;
  float scale;  // with log2(e)
  bool float32;
  int splits_max;  // of the longest row
  int query_len_max;
  const float* q;  // [tokens, heads, head_dim]
  // [tokens, heads, splits_max] of head_dim + 2 floats, where AttendScratch is not 0
  float* partial;
  float* out;
};
// Floats of partial results: few tokens are spread over their splits as well.
int64_t AttendScratch(const AttendAt& at);
void AttendHeads(const AttendAt& at, cudaStream_t stream);

}  // namespace deepinfer::cuda
