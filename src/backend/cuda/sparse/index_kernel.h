// Launches of the choice among entries: queries, scores of index keys, the best of them
// (backend/sparse_ops.h, backend/compressed_ops.h). Scores round as those of the CPU do.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sparse/row_views.h"

namespace deepinfer::cuda {

// Which entries a token's scores stand for.
enum ScoredRows : int {
  kScoredVisible,     // entry i
  kScoredCandidates,  // entries of the candidate blocks, side by side
  kScoredBlocks,      // block i of the visible entries
};

struct IndexAt {
  StepAt step;
  int first;  // tokens [first, first + tokens) in this launch
  int tokens;
  RopeAt rope;
  float* q;             // [step tokens, heads, dim]
  const float* weight;  // [step tokens, heads]
  int heads;
  int dim;
  int ratio;
  HistoryAt keys;
  ScoredRows rows;
  int block_size;
  int candidate_blocks;
  const int32_t* candidate;  // [step tokens, candidate_blocks]
  const int32_t* candidate_count;
  int entries_max;
  // Scratch: codes [step tokens, heads, dim] twice the FP4 values, a quarter of each block's scale,
  // and scores [tokens, entries_max].
  int8_t* codes;
  float* scales;  // [step tokens, heads, dim / 32]
  float* scores;
};
// Rotates and quantises all queries of the step.
void PrepareIndexQueries(const IndexAt& at, cudaStream_t stream);
void ScoreIndexKeys(const IndexAt& at, cudaStream_t stream);
// blocks [tokens, stride]: the best score of each block, infinite for the newest.
void ScoreBlocks(const IndexAt& at, float* blocks, int stride, cudaStream_t stream);

struct ChoiceAt {  // scores of float32 keys
  StepAt step;
  int first;
  int tokens;
  RopeAt rope;
  float* q;  // [step tokens, heads, dim]
  const float* weight;
  int heads;
  int dim;
  int ratio;
  int entry_ratio;
  int top_k;
  float scale;
  int rounding;
  HistoryAt keys;
  int entries_max;
  float* scores;  // [tokens, entries_max]
};
// Of tokens that see more than top_k entries.
void PrepareChoiceQueries(const ChoiceAt& at, cudaStream_t stream);
void ScoreChoiceKeys(const ChoiceAt& at, cudaStream_t stream);

struct TopRowsAt {
  StepAt step;
  int first;
  int tokens;
  ScoredRows rows;
  const float* scores;  // [tokens, stride]
  int64_t stride;
  int keep;
  int ratio;
  int block_size;
  int candidate_blocks;
  const int32_t* candidate;
  const int32_t* candidate_count;
  bool lost_count;  // what is not a number may be chosen, as the worst
  int32_t* out;     // [step tokens, keep] ascending; the lower on a tie
  int32_t* count;   // [step tokens]
};
void TakeTopRows(const TopRowsAt& at, cudaStream_t stream);

}  // namespace deepinfer::cuda
