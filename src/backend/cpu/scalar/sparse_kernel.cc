// The reference: plain loops.
#include <cmath>

#include "backend/cpu/sparse_loops.h"
#include "tensor/block_formats.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

void DecodeWindow(const void* row, int count, float* out) {
  DecodeWindowRow(static_cast<const std::byte*>(row), count, out);
}

void DecodeEntry(const void* row, int count, float* out) {
  DecodeMainEntry(static_cast<const std::byte*>(row), count, out);
}

void PoolPairExactly(const float* const k[2], const float* const gate[2], int n, float* out) {
  for (int c = 0; c < n; ++c) {
    const float max = gate[0][c] > gate[1][c] ? gate[0][c] : gate[1][c];
    const float a = std::exp(gate[0][c] - max);
    const float b = std::exp(gate[1][c] - max);
    out[c] = a / (a + b) * k[0][c] + b / (a + b) * k[1][c];
  }
}

void TurnTile(const float* rows, int dim, float* out) {
  for (int t = 0; t < kWide; ++t) {
    for (int d = 0; d < dim; ++d) out[d * kWide + t] = rows[t * dim + d];
  }
}

void ScoreKey(const IndexScore& score, const uint8_t* row, float* out) {
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const int blocks = score.dim / kIndexBlock;
  int8_t key[kIndexKeyDimMax];  // in the order of the query's codes
  for (int i = 0; i < score.dim; i += 8) {
    for (int j = 0; j < 4; ++j) {
      const uint8_t pair = row[i / 2 + j];
      key[i + j] = kTwice[pair & 15U];
      key[i + 4 + j] = kTwice[pair >> 4];
    }
  }
  float sum = 0.0F;
  for (int h = 0; h < score.heads; ++h) {
    float dot = 0.0F;
    for (int b = 0; b < blocks; ++b) {
      const int8_t* q = score.q + int64_t{h} * score.dim + int64_t{b} * kIndexBlock;
      int exact = 0;
      for (int i = 0; i < kIndexBlock; ++i) exact += q[i] * key[b * kIndexBlock + i];
      const float scaled = static_cast<float>(exact) * score.q_scale[h * blocks + b];
      dot += scaled * E8M0ToFloat(row[score.dim / 2 + b]);
    }
    sum += score.weight[h] * score.head_scale * (dot < 0.0F ? 0.0F : dot);
  }
  *out = sum * score.scale;
}

void IndexScores(const IndexScore& score) {
  for (int i = 0; i < score.count; ++i) {
    ScoreKey(score, static_cast<const uint8_t*>(score.key[i]), score.scores + i);
  }
}

}  // namespace

const SparseKernels kScalarSparse = {
    Dot,          GatedDot,    Collapse, Expand,        PoolPairExactly,
    DecodeWindow, DecodeEntry, TurnTile, QuantizeQuery, IndexScores};

}  // namespace deepinfer::cpu
