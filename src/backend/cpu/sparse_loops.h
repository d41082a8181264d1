// The loops behind SparseKernels that the compiler turns into the registers of each ISA, in sixteen
// lanes. Included by one file per ISA; everything lives in an unnamed namespace and uses no library
// code (see row_kernels.h).
#pragma once

#include <stdint.h>

#include "backend/cpu/sparse_kernels.h"

namespace deepinfer::cpu {
namespace {

constexpr int kWide = 16;
constexpr int kStreamsHeld = 8;

using Wide = float __attribute__((vector_size(64)));
using WideAt = float __attribute__((vector_size(64), aligned(4), may_alias));

inline float FoldWide(const float* lanes) {
  float eight[8];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
  float four[4];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

[[maybe_unused]] float Dot(const float* a, const float* b, int64_t n) {
  Wide sum = {};
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    sum += *reinterpret_cast<const WideAt*>(a + i) * *reinterpret_cast<const WideAt*>(b + i);
  }
  float lanes[kWide];
  *reinterpret_cast<WideAt*>(lanes) = sum;
  for (int l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  return FoldWide(lanes);
}

[[maybe_unused]] float GatedDot(const float* x, const float* q, const float* k, const float* key,
                                int64_t n) {
  Wide sum = {};
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    const Wide weight =
        *reinterpret_cast<const WideAt*>(q + i) * *reinterpret_cast<const WideAt*>(k + i);
    sum += *reinterpret_cast<const WideAt*>(x + i) * weight *
           *reinterpret_cast<const WideAt*>(key + i);
  }
  float lanes[kWide];
  *reinterpret_cast<WideAt*>(lanes) = sum;
  for (int l = 0; i < n; ++i, ++l) lanes[l] += x[i] * (q[i] * k[i]) * key[i];
  return FoldWide(lanes);
}

[[maybe_unused]] void Collapse(const float* x, int64_t stride, int streams, const float* pre, int n,
                               float* out) {
  int d = 0;
  for (; d + kWide <= n; d += kWide) {
    Wide sum = pre[0] * *reinterpret_cast<const WideAt*>(x + d);
    for (int i = 1; i < streams; ++i) {
      sum += pre[i] * *reinterpret_cast<const WideAt*>(x + i * stride + d);
    }
    *reinterpret_cast<WideAt*>(out + d) = sum;
  }
  for (; d < n; ++d) {
    float sum = pre[0] * x[d];
    for (int i = 1; i < streams; ++i) sum += pre[i] * x[i * stride + d];
    out[d] = sum;
  }
}

template <int kStreams>
void ExpandStreams(const float* y, const float* post, const float* comb, int64_t stride, int n,
                   float* x) {
  int d = 0;
  for (; d + kWide <= n; d += kWide) {
    const Wide added = *reinterpret_cast<const WideAt*>(y + d);
    Wide old[kStreams];
    for (int j = 0; j < kStreams; ++j) {
      old[j] = *reinterpret_cast<const WideAt*>(x + j * stride + d);
    }
    for (int k = 0; k < kStreams; ++k) {
      Wide sum = post[k] * added;
      for (int j = 0; j < kStreams; ++j) sum += comb[j * kStreams + k] * old[j];
      *reinterpret_cast<WideAt*>(x + k * stride + d) = sum;
    }
  }
  for (; d < n; ++d) {
    float old[kStreams];
    for (int j = 0; j < kStreams; ++j) old[j] = x[j * stride + d];
    for (int k = 0; k < kStreams; ++k) {
      float sum = post[k] * y[d];
      for (int j = 0; j < kStreams; ++j) sum += comb[j * kStreams + k] * old[j];
      x[k * stride + d] = sum;
    }
  }
}

[[maybe_unused]] void Expand(const float* y, const float* post, const float* comb, int streams,
                             int64_t stride, int n, float* x) {
  static constexpr auto kOf = [] {
    struct Table {
      void (*run[kStreamsHeld + 1])(const float*, const float*, const float*, int64_t, int, float*);
    };
    return Table{{nullptr, ExpandStreams<1>, ExpandStreams<2>, ExpandStreams<3>, ExpandStreams<4>,
                  ExpandStreams<5>, ExpandStreams<6>, ExpandStreams<7>, ExpandStreams<8>}};
  }();
  kOf.run[streams](y, post, comb, stride, n, x);
}

// e^x for x <= 0; below 2^-126 zero, NaN stays NaN.
inline float ExpNegative(float x) {
  float t = x * 1.44269504088896341F;
  const float bounded = t < -126.0F ? -126.0F : t;
  const float n = __builtin_rintf(bounded);
  const float f = bounded - n;
  float p = 1.54035304e-4F;
  p = p * f + 1.33335581e-3F;
  p = p * f + 9.61812911e-3F;
  p = p * f + 5.55041087e-2F;
  p = p * f + 2.40226507e-1F;
  p = p * f + 6.93147181e-1F;
  p = p * f + 1.0F;
  // Not a number: any power will do, p is NaN.
  const int32_t power = n >= -126.0F ? static_cast<int32_t>(n) + 127 : 1;
  union {
    int32_t bits;
    float value;
  } scale = {power << 23};
  return t < -126.0F ? 0.0F : p * scale.value;
}

[[maybe_unused]] void PoolPair(const float* const k[2], const float* const gate[2], int n,
                               float* out) {
  const float* k0 = k[0];
  const float* k1 = k[1];
  const float* g0 = gate[0];
  const float* g1 = gate[1];
  for (int c = 0; c < n; ++c) {
    const float max = g0[c] > g1[c] ? g0[c] : g1[c];
    const float a = ExpNegative(g0[c] - max);
    const float b = ExpNegative(g1[c] - max);
    const float sum = a + b;
    out[c] = a / sum * k0[c] + b / sum * k1[c];
  }
}

inline float PowerOf(uint32_t code) {  // E8M0
  union {
    uint32_t bits;
    float value;
  } x = {code == 255 ? 0x7fc00000U : (code == 0 ? 0x00400000U : code << 23)};
  return x.value;
}

inline uint32_t BitsOf(float value) {
  union {
    float value;
    uint32_t bits;
  } x = {value};
  return x.bits;
}

// A block of 32: the scale is the power of two not below a sixth of the largest magnitude.
[[maybe_unused]] void QuantizeQuery(float* x, int n, int8_t* codes, int32_t* sums, float* scales) {
  for (int begin = 0; begin < n; begin += kIndexBlock) {
    uint32_t top = 0;  // magnitudes are ordered like their bits, NaN above all
    for (int i = begin; i < begin + kIndexBlock; ++i) {
      const uint32_t bits = BitsOf(x[i]) & 0x7fffffffU;
      top = bits > top ? bits : top;
    }
    uint32_t code = 255;
    if (top < 0x7f800000U) {
      union {
        uint32_t bits;
        float value;
      } largest = {top};
      const float least = 0x6p-126F;
      const uint32_t bits = BitsOf((largest.value < least ? least : largest.value) * (1.0F / 6.0F));
      code = (bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1U : 0U);
    }
    const float scale = PowerOf(code);
    scales[begin / kIndexBlock] = 0.25F * scale;
    sums[begin / kIndexBlock] = 0;
    if (code == 255) {
      for (int i = begin; i < begin + kIndexBlock; ++i) {
        x[i] = scale;
        codes[i] = 0;
      }
      continue;
    }
    int twice[kIndexBlock];
    for (int i = 0; i < kIndexBlock; ++i) {
      const float v = x[begin + i] / scale;
      float m = v < 0.0F ? -v : v;
      m = m > 6.0F ? 6.0F : m;
      const float fine = __builtin_rintf(m * 2.0F);
      const float middle = __builtin_rintf(m) * 2.0F;
      const float coarse = __builtin_rintf(m * 0.5F) * 4.0F;
      const float value = m < 2.0F ? fine : (m < 4.0F ? middle : coarse);
      twice[i] = static_cast<int>(v < 0.0F ? -value : value);
      // The sign of a zero stays, as the code keeps it.
      const float magnitude = value * 0.5F * scale;
      x[begin + i] = BitsOf(v) >> 31 != 0 ? -magnitude : magnitude;
    }
    int sum = 0;
    for (int i = 0; i < kIndexBlock; ++i) sum += twice[i];
    sums[begin / kIndexBlock] = sum;
    for (int i = 0; i < kIndexBlock; i += 8) {
      for (int j = 0; j < 4; ++j) {
        codes[begin + i + j] = static_cast<int8_t>(twice[i + 2 * j]);
        codes[begin + i + 4 + j] = static_cast<int8_t>(twice[i + 2 * j + 1]);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::cpu
