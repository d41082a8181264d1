// Launches between the router's logits and the products of experts, and after them
// (RouterSpec, backend/backend.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace deepinfer::cuda {

enum ScoringAt : int { kScoreSoftmax, kScoreSigmoid, kScoreSqrtSoftplus };

constexpr int kTopExpertsMost = 64;
constexpr int kExpertGroupsMost = 64;

struct RouteAt {
  const float* logits;  // [rows, experts]
  int rows;
  int experts;
  int top_k;
  ScoringAt scoring;
  bool normalize;
  const float* bias;        // [experts] or nullptr
  const float* image_bias;  // for rows of kind image, or nullptr
  const uint8_t* kind;      // [rows] or nullptr
  int groups;
  int group_top_k;
  float normalize_eps;
  float scale;
  const int32_t* token_experts;  // [vocab, top_k] or nullptr
  const int32_t* token;
  int32_t* expert;  // [rows, top_k] ascending
  float* weight;    // [rows, top_k]
};
void Route(const RouteAt& at, cudaStream_t stream);

struct SortAt {
  const int32_t* expert;  // [rows, top_k]
  int rows;
  int top_k;
  int experts;
  int32_t* begin;      // [experts + 1] entries of each expert
  int32_t* entry;      // [rows, top_k] entry of a choice
  int32_t* entry_row;  // [rows * top_k] row of an entry
};
void SortByExpert(const SortAt& at, cudaStream_t stream);

// out[row] += sum over the row's choices, ascending, of weight * y[entry].
struct CombineAt {
  const float* y;  // [entries, cols]
  const int32_t* entry;
  const float* weight;
  int rows;
  int top_k;
  int cols;
  float* out;  // [rows, cols]
};
void Combine(const CombineAt& at, cudaStream_t stream);

}  // namespace deepinfer::cuda
