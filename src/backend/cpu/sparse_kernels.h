// Vector code of the stages of sparse models: streams, stored rows, index scores. Plain data and C
// types alone, as in row_kernels.h. Every ISA gives the same bits (but for the exponentials of
// pool_pair): sums run in fixed lanes, products and additions round apart, and the sums of index
// scores are exact within a block.
#pragma once

#include <stdint.h>

namespace deepinfer::cpu {

constexpr int kIndexBatch = 16;  // keys of one call
constexpr int kIndexBlock = 32;  // elements that share a scale
constexpr int kIndexKeyDimMax = 512;

// Scores of up to 16 index keys for neighbouring tokens, each:
//   scale * sum over heads of weight * head_scale * max(0, q . key)
struct IndexScore {
  const int8_t* q;  // [tokens, heads, dim] twice the FP4 values; of every 8 the even elements first
  const int32_t* q_sum;  // [tokens, heads, dim / 32] of the codes of each block
  const float* q_scale;  // [tokens, heads, dim / 32] a quarter of each block's scale
  const float* weight;   // [tokens, heads]
  int tokens;
  int heads;
  int dim;  // a multiple of 32
  float head_scale;
  float scale;
  const void* key[kIndexBatch];  // rows of tensor/fake_quant.h
  int count;
  float* scores;   // [tokens, count], `stride` apart
  int64_t stride;  // may be anything for one token
};

// One step of attention: heads of one query against up to 64 rows, each of them key and value.
// The running state as of AttentionStep (row_kernels.h).
constexpr int kAttendRows = 64;
struct RowAttention {
  const float* q;  // [heads, dim], scaled by softmax scale * log2(e)
  int heads;
  int dim;                   // a multiple of 32
  const float* const* rows;  // [count] of dim
  int count;                 // 1..64
  float* max;                // [heads]
  float* sum;                // [heads]
  float* acc;                // [heads, dim]
};

struct SparseKernels {
  float (*dot)(const float* a, const float* b, int64_t n);
  // Sum of x (q k) key.
  float (*gated_dot)(const float* x, const float* q, const float* k, const float* key, int64_t n);
  // out = sum over streams of pre * x; streams lie `stride` apart, n columns.
  void (*collapse)(const float* x, int64_t stride, int streams, const float* pre, int n,
                   float* out);
  // x_k = post_k y + sum over j of comb[j, k] x_j
  void (*expand)(const float* y, const float* post, const float* comb, int streams, int64_t stride,
                 int n, float* x);
  // Softmax of two gates per channel over k.
  void (*pool_pair)(const float* const k[2], const float* const gate[2], int n, float* out);
  // Rows of tensor/fake_quant.h, `count` a multiple of 32.
  void (*decode_window)(const void* row, int count, float* out);
  void (*decode_entry)(const void* row, int count, float* out);
  // Products are fused, each ISA folds in its own order.
  void (*attend)(const RowAttention& step);
  // FakeQuantFp4E8m0 in place, and its codes, sums and scales as IndexScore takes them.
  void (*quantize_query)(float* x, int n, int8_t* codes, int32_t* sums, float* scales);
  void (*index_scores)(const IndexScore& score);
};

extern const SparseKernels kScalarSparse;
#if defined(__x86_64__)
extern const SparseKernels kAvx2Sparse;
extern const SparseKernels kAvx512Sparse;
#endif

}  // namespace deepinfer::cpu
