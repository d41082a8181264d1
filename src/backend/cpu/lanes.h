// Sums in sixteen fixed lanes folded in one order: the reference arithmetic of stages that have no
// kernel of their own. The order depends on the length alone.
#pragma once

#include <cmath>
#include <cstdint>

namespace deepinfer::cpu {

constexpr int kLanes = 16;

inline float FoldLanes(const float* lanes) {
  float eight[8];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
  float four[4];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

inline float DotLanes(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (int l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  return FoldLanes(lanes);
}

inline float SigmoidOf(float x) { return 1.0F / (1.0F + std::exp(-x)); }

}  // namespace deepinfer::cpu
