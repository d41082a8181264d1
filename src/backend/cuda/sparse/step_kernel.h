// Launches that make steps out of steps, move rows by index and hash n-grams
// (backend/sparse_ops.h, backend/compressed_ops.h).
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sparse/row_views.h"

namespace deepinfer::cuda {

// Some tokens of a step, in order, as a step of `bound` tokens. What is left over belongs to the
// last row as dead tokens whose index is kNoToken.
constexpr int32_t kNoToken = INT32_MIN;
struct SubStepAt {
  StepAt step;
  int bound;
  const int32_t* suffix_begin;  // [rows] or nullptr: tokens before it are left out
  // Each token stands for the pair of it and the one before: position and index of that one (-1:
  // before the step). Tokens at position 0 are left out.
  bool pairs;
  // Out:
  int32_t* index;  // [bound]
  int32_t* token;
  int32_t* position;
  int32_t* token_row;
  uint8_t* kind;
  int32_t* query_start;  // [rows + 1]
};
void TakeSubStep(const SubStepAt& at, cudaStream_t stream);

// to[i] = from[index[i]], zeros where the index is kNoToken.
void GatherRows(const float* from, const int32_t* index, int rows, int64_t cols, float* to,
                cudaStream_t stream);
// to is NaN but to[index[i]] = from[i].
void ScatterRows(const float* from, const int32_t* index, int rows, int64_t cols, float* to,
                 int to_rows, cudaStream_t stream);
// out[t] = x[source[t]], or row t's position of the ring where it is -1 (source nullptr: always);
// zeros for dead tokens.
void GatherPairs(const StepAt& step, const int32_t* source, const StateAt& ring, int64_t cols,
                 const float* x, float* out, cudaStream_t stream);

constexpr int kNgramMost = 4;
constexpr int kLeadMost = 3;
constexpr int kNgramTablesMost = 16;
struct NgramAt {
  StepAt step;
  StateAt state;              // int32
  const int32_t* lead_token;  // [rows, 3] or nullptr
  const int32_t* token_map;
  int map_size;
  int32_t pad;
  int ngram;
  int heads;
  int tables;
  // [tables, ngram + 2 (ngram - 1) heads]: multipliers, primes, offsets
  const int64_t* constants;
  int64_t* rows[kNgramTablesMost];  // [tokens, (ngram - 1) heads]
};
// Hashes, then the state of the step's tokens.
void NgramRows(const NgramAt& at, cudaStream_t stream);

}  // namespace deepinfer::cuda
