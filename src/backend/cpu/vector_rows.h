// The vector code behind RowKernels, written once over a policy of registers and operations.
// Included by one file per ISA, whose policy type lives in an unnamed namespace: every
// instantiation stays inside that file. Uses no library code (see row_kernels.h).
// Reductions: four accumulators over strides of four registers, folded in a fixed order.
#pragma once

#include <stdint.h>

#include "backend/cpu/row_kernels.h"

namespace deepinfer::cpu {

struct CacheHalf {
  uint16_t bits;
};

#define DI_INLINE inline __attribute__((always_inline))

// V: register F; kWidth lanes; kRows x kCols accumulators fit beside operands.
template <typename V>
struct VectorRows {
  using F = typename V::F;
  static constexpr int kWidth = V::kWidth;
  static constexpr int kRows = V::kRows;
  static constexpr int kCols = V::kCols;
  static_assert(kCacheTile % kWidth == 0);
  static constexpr int kTileVectors = kCacheTile / kWidth;
  static constexpr float kLog2E = 1.44269504088896341F;

  // 2^x; below 2^-126 zero, NaN stays NaN. The series of 2^f on [-1/2, 1/2], exact at 0.
  static DI_INLINE F Exp2(F x) {
    const F n = V::Round(x);
    const F f = V::Sub(x, n);
    F p = V::Set(1.54035304e-4F);
    p = V::Fma(p, f, V::Set(1.33335581e-3F));
    p = V::Fma(p, f, V::Set(9.61812911e-3F));
    p = V::Fma(p, f, V::Set(5.55041087e-2F));
    p = V::Fma(p, f, V::Set(2.40226507e-1F));
    p = V::Fma(p, f, V::Set(6.93147181e-1F));
    p = V::Fma(p, f, V::Set(1.0F));
    return V::Scale(p, n, x);
  }

  static float Exp2One(float x) { return V::First(Exp2(V::Set(x))); }

  static void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    F sum[4] = {V::Zero(), V::Zero(), V::Zero(), V::Zero()};
    int64_t i = 0;
    for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
      for (int j = 0; j < 4; ++j) {
        const F v = V::Load(x + i + j * kWidth);
        sum[j] = V::Fma(v, v, sum[j]);
      }
    }
    for (; i + kWidth <= n; i += kWidth) {
      const F v = V::Load(x + i);
      sum[0] = V::Fma(v, v, sum[0]);
    }
    if (i < n) {
      const F v = V::LoadPart(x + i, static_cast<int>(n - i));
      sum[1] = V::Fma(v, v, sum[1]);
    }
    const float total = V::Sum(V::Add(V::Add(sum[0], sum[1]), V::Add(sum[2], sum[3])));
    const F scale = V::Set(1.0F / __builtin_sqrtf(total / static_cast<float>(n) + eps));
    for (i = 0; i + kWidth <= n; i += kWidth) {
      V::Store(out + i, V::Mul(V::Mul(V::Load(x + i), scale), V::Load(weight + i)));
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      const F v = V::Mul(V::Mul(V::LoadPart(x + i, rest), scale), V::LoadPart(weight + i, rest));
      V::StorePart(out + i, rest, v);
    }
  }

  static void RopeHalves(float* x, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; i += kWidth) {
      const int count = half - i < kWidth ? half - i : kWidth;
      const F a = V::LoadPart(x + i, count);
      const F b = V::LoadPart(x + half + i, count);
      const F c = V::LoadPart(cos + i, count);
      const F s = V::LoadPart(sin + i, count);
      V::StorePart(x + i, count, V::Sub(V::Mul(a, c), V::Mul(b, s)));
      V::StorePart(x + half + i, count, V::Add(V::Mul(b, c), V::Mul(a, s)));
    }
  }

  static void RopeInterleaved(float* x, const float* cos, const float* sin, int half) {
    constexpr int kPairs = kWidth / 2;
    int i = 0;
    for (; i + kPairs <= half; i += kPairs) {
      const F v = V::Load(x + 2 * i);
      V::Store(x + 2 * i, V::Rotate(v, V::LoadTwice(cos + i), V::LoadTwice(sin + i)));
    }
    for (; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
  }

  static DI_INLINE F Silu(F x) {
    const F one = V::Set(1.0F);
    return V::Div(x, V::Add(one, Exp2(V::Mul(x, V::Set(-kLog2E)))));
  }

  static void SiluMul(const float* gate, const float* up, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      V::Store(out + i, V::Mul(Silu(V::Load(gate + i)), V::Load(up + i)));
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      V::StorePart(out + i, rest,
                   V::Mul(Silu(V::LoadPart(gate + i, rest)), V::LoadPart(up + i, rest)));
    }
  }

  static void Add(const float* x, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth)
      V::Store(out + i, V::Add(V::Load(out + i), V::Load(x + i)));
    for (; i < n; ++i) out[i] += x[i];
  }

  static void AddScaled(float scale, const float* x, int64_t n, float* out) {
    const F s = V::Set(scale);
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      V::Store(out + i, V::Fma(s, V::Load(x + i), V::Load(out + i)));
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      V::StorePart(out + i, rest, V::Fma(s, V::LoadPart(x + i, rest), V::LoadPart(out + i, rest)));
    }
  }

  static DI_INLINE void Scatter(const float* x, float* out) {
    for (int i = 0; i < kWidth; ++i) out[i * kCacheTile] = x[i];
  }
  static DI_INLINE void Scatter(const float* x, CacheHalf* out) {
    CacheHalf half[kWidth];
    V::Store(half, V::Load(x));
    for (int i = 0; i < kWidth; ++i) out[i * kCacheTile] = half[i];
  }

  template <typename T>
  static void WriteCache(const CacheWrite& write) {
    for (int head = 0; head < write.kv_heads; ++head) {
      const int64_t row = int64_t{head} * write.head_dim;
      T* k = static_cast<T*>(write.tile) + 2 * row * kCacheTile;
      T* k_out = k + write.lane;
      T* v_out = k + int64_t{kCacheTile + write.lane} * write.head_dim;
      for (int d = 0; d < write.head_dim; d += kWidth) {
        Scatter(write.k + row + d, k_out + int64_t{d} * kCacheTile);
        V::Store(v_out + d, V::Load(write.v + row + d));
      }
    }
  }

  // Four tiles that are fetched behind the arithmetic, their lines interleaved: memory serves
  // several runs at once faster than one after the other.
  struct Ahead {
    const char* tile[kTilesPerStep];
    int count;  // tiles
    int at;     // tile of the next line
    int64_t offset;
    int64_t end;
    DI_INLINE void Fetch(int lines) {
      if (offset >= end) return;
      for (int i = 0; i < lines; ++i) {
        __builtin_prefetch(tile[at] + offset);
        if (++at < count) continue;
        at = 0;
        offset += 64;
      }
    }
  };
  template <typename T>
  static Ahead AheadOf(const void* const* tiles, bool wanted, int head_dim) {
    Ahead ahead = {};
    if (!wanted || tiles[0] == nullptr) return ahead;
    for (; ahead.count < kTilesPerStep && tiles[ahead.count] != nullptr; ++ahead.count) {
      ahead.tile[ahead.count] = static_cast<const char*>(tiles[ahead.count]);
    }
    ahead.end = int64_t{head_dim} * kCacheTile * static_cast<int64_t>(sizeof(T));
    return ahead;
  }

  // acc[r][c] += a[r, k] * b[c][k], k ascending: one fused chain per element.
  template <int R, int C, typename T>
  static DI_INLINE void Chain(const float* a, int64_t a_stride, const T* const* b, int64_t b_stride,
                              int count, Ahead* ahead, int lines, F (&acc)[R][C]) {
    for (int k = 0; k < count; ++k) {
      ahead->Fetch(lines);
      F column[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) column[c] = V::Load(b[c] + k * b_stride);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F x = V::Set(a[r * a_stride + k]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = V::Fma(x, column[c], acc[r][c]);
      }
    }
  }

  // scores[r, lanes of C registers] = q[r] . k
  template <int R, int C, typename T>
  static void Scores(const float* q, int head_dim, const void* const* k, Ahead ahead,
                     float* scores) {
    F acc[R][C];
    const T* b[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      b[c] = static_cast<const T*>(k[c / kTileVectors]) + c % kTileVectors * kWidth;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::Zero();
    }
    Chain<R, C, T>(q, head_dim, b, kCacheTile, head_dim, &ahead, static_cast<int>(sizeof(T)), acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) V::Store(scores + r * kKeyTile + c * kWidth, acc[r][c]);
    }
  }

  // acc[r, C registers from `column`] = acc * keep[r] + p[r] . v over the first `keys` keys
  template <int R, int C, typename T>
  static void Outputs(const float* p, const float* keep, const AttentionStep& step, int keys,
                      int column, Ahead ahead, float* out) {
    F acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F scale = V::Set(keep[r]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        acc[r][c] = V::Mul(scale, V::Load(out + int64_t{r} * step.head_dim + c * kWidth));
      }
    }
    const int lines = (step.head_dim * static_cast<int>(sizeof(T)) + 63) / 64;
    for (int tile = 0; tile * kCacheTile < keys; ++tile) {
      const T* b[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) b[c] = static_cast<const T*>(step.v[tile]) + column + c * kWidth;
      const int rest = keys - tile * kCacheTile;
      Chain<R, C, T>(p + tile * kCacheTile, kKeyTile, b, step.head_dim,
                     rest < kCacheTile ? rest : kCacheTile, &ahead, lines, acc);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        V::Store(out + int64_t{r} * step.head_dim + c * kWidth, acc[r][c]);
      }
    }
  }

  // Scores of one row to weights: running maximum and sum move on; returns what the old state
  // keeps. Lanes that the row does not see become zero whatever they held.
  static DI_INLINE float Softmax(int visible, float* scores, float* running_max,
                                 float* running_sum) {
    constexpr int kVectors = kKeyTile / kWidth;
    F score[kVectors];
    F max = V::Set(*running_max);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      score[i] = V::Load(scores + i * kWidth);
      max = V::Max(max, V::Select(score[i], max, visible - i * kWidth));
    }
    const float new_max = V::LargestOf(max);
    const F new_max_all = V::Set(new_max);
    F sum = V::Zero();
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const F weight =
          V::Select(Exp2(V::Sub(score[i], new_max_all)), V::Zero(), visible - i * kWidth);
      V::Store(scores + i * kWidth, weight);
      sum = V::Add(sum, weight);
    }
    const float keep = Exp2One(*running_max - new_max);
    *running_max = new_max;
    *running_sum = *running_sum * keep + V::Sum(sum);
    return keep;
  }

  template <int R, typename T>
  static void AttendRows(const AttentionStep& step, int row) {
    using ScoresFn = void (*)(const float*, int, const void* const*, Ahead, float*);
    using OutputsFn =
        void (*)(const float*, const float*, const AttentionStep&, int, int, Ahead, float*);
    // No more than fit the registers: the last entries repeat.
    constexpr int kThird = kCols < 3 ? kCols : 3;
    static constexpr ScoresFn kScores[4] = {Scores<R, 1, T>, Scores<R, 2, T>, Scores<R, kThird, T>,
                                            Scores<R, kCols, T>};
    static constexpr OutputsFn kOutputs[4] = {Outputs<R, 1, T>, Outputs<R, 2, T>,
                                              Outputs<R, kThird, T>, Outputs<R, kCols, T>};
    int keys = 0;
    for (int r = 0; r < R; ++r) keys = keys > step.visible[row + r] ? keys : step.visible[row + r];
    if (keys == 0) return;
    alignas(64) float p[R * kKeyTile];
    const float* q = step.q + int64_t{row} * step.head_dim;
    const int vectors = (keys + kCacheTile - 1) / kCacheTile * kTileVectors;
    for (int first = 0; first < vectors; first += kCols) {
      const int count = vectors - first < kCols ? vectors - first : kCols;
      kScores[count - 1](q, step.head_dim, step.k + first / kTileVectors,
                         AheadOf<T>(step.v, row == 0 && first == 0, step.head_dim),
                         p + first * kWidth);
    }
    for (int r = 0; r < R; ++r) {
      for (int i = vectors * kWidth; i < kKeyTile; ++i) p[r * kKeyTile + i] = 0.0F;
    }
    float keep[R];
    for (int r = 0; r < R; ++r) {
      keep[r] =
          Softmax(step.visible[row + r], p + r * kKeyTile, step.max + row + r, step.sum + row + r);
    }
    float* acc = step.acc + int64_t{row} * step.head_dim;
    for (int column = 0; column < step.head_dim; column += kCols * kWidth) {
      const int left = (step.head_dim - column) / kWidth;
      const int count = left < kCols ? left : kCols;
      kOutputs[count - 1](p, keep, step, keys, column,
                          AheadOf<T>(step.soon, row == 0 && column == 0, step.head_dim),
                          acc + column);
    }
  }

  template <typename T>
  static void Attend(const AttentionStep& step) {
    int row = 0;
    for (; row + kRows <= step.rows; row += kRows) AttendRows<kRows, T>(step, row);
    switch (step.rows - row) {
      case 5:
        return AttendRows<5, T>(step, row);
      case 4:
        return AttendRows<4, T>(step, row);
      case 3:
        return AttendRows<3, T>(step, row);
      case 2:
        return AttendRows<2, T>(step, row);
      case 1:
        return AttendRows<1, T>(step, row);
      default:
        return;
    }
  }

  static void Merge(float max, float sum, const float* acc, int head_dim, float* total_max,
                    float* total_sum, float* total_acc) {
    if (sum == 0.0F) return;
    float keep = 0.0F;
    float take = 1.0F;
    if (*total_sum == 0.0F) {
      *total_max = max;
    } else {
      const float new_max = max > *total_max ? max : *total_max;
      keep = Exp2One(*total_max - new_max);
      take = Exp2One(max - new_max);
      *total_max = new_max;
    }
    *total_sum = *total_sum * keep + sum * take;
    const F keep_all = V::Set(keep);
    const F take_all = V::Set(take);
    for (int d = 0; d < head_dim; d += kWidth) {
      const F total = V::Mul(keep_all, V::Load(total_acc + d));
      V::Store(total_acc + d, V::Fma(take_all, V::Load(acc + d), total));
    }
  }

  static constexpr RowKernels Table() {
    return {
        RmsNorm,
        RopeHalves,
        RopeInterleaved,
        SiluMul,
        Add,
        AddScaled,
        {WriteCache<CacheHalf>, WriteCache<float>},
        {Attend<CacheHalf>, Attend<float>},
        Merge,
    };
  }
};

}  // namespace deepinfer::cpu
