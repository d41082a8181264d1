// The reference: plain loops.
#include <cmath>

#include "backend/cpu/row_kernels.h"
#include "tensor/block_formats.h"

namespace deepinfer::cpu {
namespace {

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  float sum = 0.0F;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void RopeHalves(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void RopeInterleaved(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

void SiluMul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

void Add(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] += x[i];
}

void AddScaled(float scale, const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] += scale * x[i];
}

struct Half {
  uint16_t bits;
};

float Load(float value) { return value; }
float Load(Half value) { return HalfToFloat(value.bits); }
void Store(float value, float* out) { *out = value; }
void Store(float value, Half* out) {
  constexpr float kHalfMax = 65504.0F;
  if (value > kHalfMax) value = kHalfMax;
  if (value < -kHalfMax) value = -kHalfMax;
  out->bits = FloatToHalf(value);
}

template <typename T>
void WriteCache(const CacheWrite& write) {
  for (int head = 0; head < write.kv_heads; ++head) {
    const int64_t row = int64_t{head} * write.head_dim;
    const float* k_in = write.k + row;
    const float* v_in = write.v + row;
    T* k = static_cast<T*>(write.tile) + 2 * row * kCacheTile;
    T* k_out = k + write.lane;
    T* v_out = k + int64_t{kCacheTile + write.lane} * write.head_dim;
    for (int d = 0; d < write.head_dim; ++d) {
      Store(k_in[d], k_out + int64_t{d} * kCacheTile);
      Store(v_in[d], v_out + d);
    }
  }
}

template <typename T>
void AttendRow(const AttentionStep& step, int row) {
  const int visible = step.visible[row];
  if (visible == 0) return;
  const float* q = step.q + int64_t{row} * step.head_dim;
  float* acc = step.acc + int64_t{row} * step.head_dim;
  float p[kKeyTile];
  float max = step.max[row];
  for (int key = 0; key < visible; ++key) {
    const T* k = static_cast<const T*>(step.k[key / kCacheTile]) + key % kCacheTile;
    float score = 0.0F;
    for (int d = 0; d < step.head_dim; ++d) score += q[d] * Load(k[int64_t{d} * kCacheTile]);
    p[key] = score;
    max = score > max ? score : max;
  }
  const float keep = std::exp2(step.max[row] - max);
  float sum = 0.0F;
  for (int d = 0; d < step.head_dim; ++d) acc[d] *= keep;
  for (int key = 0; key < visible; ++key) {
    const T* v =
        static_cast<const T*>(step.v[key / kCacheTile]) + int64_t{key % kCacheTile} * step.head_dim;
    const float weight = std::exp2(p[key] - max);
    sum += weight;
    for (int d = 0; d < step.head_dim; ++d) acc[d] += weight * Load(v[d]);
  }
  step.max[row] = max;
  step.sum[row] = step.sum[row] * keep + sum;
}

template <typename T>
void Attend(const AttentionStep& step) {
  for (int row = 0; row < step.rows; ++row) AttendRow<T>(step, row);
}

void Merge(float max, float sum, const float* acc, int head_dim, float* total_max, float* total_sum,
           float* total_acc) {
  if (sum == 0.0F) return;
  if (*total_sum == 0.0F) {
    *total_max = max;
    *total_sum = sum;
    for (int d = 0; d < head_dim; ++d) total_acc[d] = acc[d];
    return;
  }
  const float new_max = max > *total_max ? max : *total_max;
  const float keep = std::exp2(*total_max - new_max);
  const float take = std::exp2(max - new_max);
  *total_max = new_max;
  *total_sum = *total_sum * keep + sum * take;
  for (int d = 0; d < head_dim; ++d) total_acc[d] = total_acc[d] * keep + acc[d] * take;
}

}  // namespace

const RowKernels kScalarRows = {
    RmsNorm,
    RopeHalves,
    RopeInterleaved,
    SiluMul,
    Add,
    AddScaled,
    {WriteCache<Half>, WriteCache<float>},
    {Attend<Half>, Attend<float>},
    Merge,
};

}  // namespace deepinfer::cpu
