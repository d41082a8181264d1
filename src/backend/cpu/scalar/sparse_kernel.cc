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

void Attend(const RowAttention& step) {
  float p[kAttendRows];
  for (int h = 0; h < step.heads; ++h) {
    const float* q = step.q + int64_t{h} * step.dim;
    float max = step.max[h];
    for (int j = 0; j < step.count; ++j) {
      p[j] = Dot(q, step.rows[j], step.dim);
      max = p[j] > max ? p[j] : max;
    }
    const float keep = std::exp2(step.max[h] - max);
    float sum = 0.0F;
    for (int j = 0; j < step.count; ++j) {
      p[j] = std::exp2(p[j] - max);
      sum += p[j];
    }
    step.max[h] = max;
    step.sum[h] = step.sum[h] * keep + sum;
    float* acc = step.acc + int64_t{h} * step.dim;
    for (int d = 0; d < step.dim; ++d) acc[d] *= keep;
    for (int j = 0; j < step.count; ++j) {
      for (int d = 0; d < step.dim; ++d) acc[d] += p[j] * step.rows[j][d];
    }
  }
}

// The codes in the order of the query's, then the scales.
struct Key {
  int8_t codes[kIndexKeyDimMax];
  float scales[kIndexKeyDimMax / kIndexBlock];
};

void LoadKey(const uint8_t* row, int dim, Key* key) {
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int i = 0; i < dim; i += 8) {
    for (int j = 0; j < 4; ++j) {
      const uint8_t pair = row[i / 2 + j];
      key->codes[i + j] = kTwice[pair & 15U];
      key->codes[i + 4 + j] = kTwice[pair >> 4];
    }
  }
  for (int b = 0; b < dim / kIndexBlock; ++b) key->scales[b] = E8M0ToFloat(row[dim / 2 + b]);
}

float ScoreKey(const IndexScore& score, int token, const Key& key) {
  const int blocks = score.dim / kIndexBlock;
  float sum = 0.0F;
  for (int h = token * score.heads; h < (token + 1) * score.heads; ++h) {
    float dot = 0.0F;
    for (int b = 0; b < blocks; ++b) {
      const int8_t* q = score.q + int64_t{h} * score.dim + int64_t{b} * kIndexBlock;
      int exact = 0;
      for (int i = 0; i < kIndexBlock; ++i) exact += q[i] * key.codes[b * kIndexBlock + i];
      const float scaled = static_cast<float>(exact) * score.q_scale[h * blocks + b];
      dot += scaled * key.scales[b];
    }
    sum += score.weight[h] * score.head_scale * (dot < 0.0F ? 0.0F : dot);
  }
  return sum * score.scale;
}

void IndexScores(const IndexScore& score) {
  Key key;
  for (int i = 0; i < score.count; ++i) {
    LoadKey(static_cast<const uint8_t*>(score.key[i]), score.dim, &key);
    for (int t = 0; t < score.tokens; ++t)
      score.scores[t * score.stride + i] = ScoreKey(score, t, key);
  }
}

}  // namespace

const SparseKernels kScalarSparse = {
    Dot,          GatedDot,    Collapse, Expand,        PoolPairExactly,
    DecodeWindow, DecodeEntry, Attend,   QuantizeQuery, IndexScores};

}  // namespace deepinfer::cpu
