#include <immintrin.h>

#include "backend/cpu/sparse_loops.h"

namespace deepinfer::cpu {
namespace {

// 16 E4M3 codes; the float's exponent bias is 120 more, which reaches the subnormals too.
inline __m512 E4m3(__m128i codes) {
  const __m512i wide = _mm512_cvtepu8_epi32(codes);
  const __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi32(0x7f));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)), 24);
  const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)),
                                     _mm512_set1_ps(0x1p120F));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
  const __m512 all =
      _mm512_mask_mov_ps(value, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(all), sign));
}

inline __m128i Load16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// The scales of up to 16 blocks, E8M0.
inline void StorePowers(const uint8_t* codes, int count, float* out) {
  const auto mask = static_cast<__mmask16>((1U << count) - 1);
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, codes));
  __m512i bits = _mm512_slli_epi32(wide, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(wide, wide),
                               _mm512_set1_epi32(0x00400000));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(255)),
                               _mm512_set1_epi32(0x7fc00000));
  _mm512_store_si512(out, bits);
}

void DecodeWindow(const void* row, int count, float* out) {
  const auto* codes = static_cast<const uint8_t*>(row);
  const uint8_t* scales = codes + count;
  for (int first = 0; first < count; first += 512) {
    const int blocks = count - first < 512 ? (count - first) / 32 : 16;
    alignas(64) float scale[16];
    StorePowers(scales + first / 32, blocks, scale);
    for (int b = 0; b < blocks; ++b) {
      const int i = first + 32 * b;
      const __m512 all = _mm512_set1_ps(scale[b]);
      _mm512_storeu_ps(out + i, _mm512_mul_ps(E4m3(Load16(codes + i)), all));
      _mm512_storeu_ps(out + i + 16, _mm512_mul_ps(E4m3(Load16(codes + i + 16)), all));
    }
  }
}

void DecodeEntry(const void* row, int count, float* out) {
  const auto* codes = static_cast<const uint8_t*>(row);
  const uint8_t* scales = codes + count / 2;
  const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F,
                                       -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F);
  // A byte to each of two lanes: the choice among `values` looks at four bits of a lane.
  const __m512i spread = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i shift = _mm512_set1_epi64(int64_t{4} << 32);
  const __m512i eight = _mm512_set1_epi32(8);
  for (int first = 0; first < count; first += 256) {
    const int blocks = count - first < 256 ? (count - first) / 16 : 16;
    alignas(64) float scale[16];
    const __mmask16 mask = static_cast<__mmask16>((1U << blocks) - 1);
    _mm512_store_ps(scale, E4m3(_mm_maskz_loadu_epi8(mask, scales + first / 16)));
    for (int b = 0; b < blocks; b += 8) {
      const int left = blocks - b < 8 ? blocks - b : 8;
      const __mmask64 bytes = left == 8 ? ~__mmask64{0} : (__mmask64{1} << (8 * left)) - 1;
      const __m512i pairs = _mm512_maskz_loadu_epi8(bytes, codes + (first + 16 * b) / 2);
      __m512i at = spread;
      for (int i = 0; i < left; ++i) {
        const __m512i code = _mm512_srlv_epi32(_mm512_permutexvar_epi8(at, pairs), shift);
        _mm512_storeu_ps(
            out + first + 16 * (b + i),
            _mm512_mul_ps(_mm512_permutexvar_ps(code, values), _mm512_set1_ps(scale[b + i])));
        at = _mm512_add_epi32(at, eight);
      }
    }
  }
}

// e^(x ln 2) for x <= 0; below 2^-126 zero, NaN stays NaN.
inline __m512 Exp2(__m512 x) {
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-126.0F), x);
  const __m512 n = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(bounded, n);
  __m512 p = _mm512_set1_ps(1.54035304e-4F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.33335581e-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812911e-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  const __mmask16 gone = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), gone, _mm512_setzero_ps());
}

// Lane 4 r + c is the sum of a[4 c + r].
inline __m512 FoldSixteen(const __m512* a) {
  __m512 b[8], c[4], d[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44),
                         _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d x = _mm512_castps_pd(c[2 * i]);
    const __m512d y = _mm512_castps_pd(c[2 * i + 1]);
    d[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  return _mm512_add_ps(_mm512_shuffle_ps(d[0], d[1], 0x88), _mm512_shuffle_ps(d[0], d[1], 0xdd));
}

// p[r, j ...] = q[r] . row j ... of four rows; the last one repeats.
template <int R>
void ScoreRows(const RowAttention& step, int head, int j, float* p) {
  const float* q = step.q + int64_t{head} * step.dim;
  const float* k[4];
  for (int c = 0; c < 4; ++c) k[c] = step.rows[j + c < step.count ? j + c : step.count - 1];
  __m512 sum[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_ps();
  for (int d = 0; d < step.dim; d += 16) {
    __m512 x[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) x[c] = _mm512_loadu_ps(k[c] + d);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512 y = _mm512_loadu_ps(q + int64_t{r} * step.dim + d);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) sum[4 * c + r] = _mm512_fmadd_ps(x[c], y, sum[4 * c + r]);
    }
  }
  const __m512 all = FoldSixteen(sum);
  p += j;
  _mm_storeu_ps(p, _mm512_castps512_ps128(all));
  if (R > 1) _mm_storeu_ps(p + kAttendRows, _mm512_extractf32x4_ps(all, 1));
  if (R > 2) _mm_storeu_ps(p + 2 * kAttendRows, _mm512_extractf32x4_ps(all, 2));
  if (R > 3) _mm_storeu_ps(p + 3 * kAttendRows, _mm512_extractf32x4_ps(all, 3));
}

// Scores to weights; what the old state keeps.
inline float SoftmaxRow(int count, float* p, float* running_max, float* running_sum) {
  const int whole = (count + 15) / 16 * 16;
  for (int i = count; i < whole; ++i) p[i] = -1e30F;
  const __m512 old = _mm512_set1_ps(*running_max);
  __m512 max = old;
  for (int i = 0; i < whole; i += 16) max = _mm512_max_ps(_mm512_loadu_ps(p + i), max);
  const float largest = _mm512_reduce_max_ps(max);
  const __m512 all = _mm512_set1_ps(largest);
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < whole; i += 16) {
    const __m512 weight = Exp2(_mm512_sub_ps(_mm512_loadu_ps(p + i), all));
    _mm512_storeu_ps(p + i, weight);
    sum = _mm512_add_ps(sum, weight);
  }
  const float keep = _mm512_cvtss_f32(Exp2(_mm512_sub_ps(old, all)));
  *running_max = largest;
  *running_sum = *running_sum * keep + _mm512_reduce_add_ps(sum);
  return keep;
}

template <int R, int C>
void WeighRows(const RowAttention& step, int head, int column, const float* p, const float* keep) {
  float* out = step.acc + int64_t{head} * step.dim + column;
  __m512 acc[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      acc[r][c] = _mm512_mul_ps(_mm512_set1_ps(keep[r]),
                                _mm512_loadu_ps(out + int64_t{r} * step.dim + 16 * c));
    }
  }
  for (int j = 0; j < step.count; ++j) {
    const float* v = step.rows[j] + column;
    __m512 x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = _mm512_loadu_ps(v + 16 * c);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512 weight = _mm512_set1_ps(p[r * kAttendRows + j]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = _mm512_fmadd_ps(weight, x[c], acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      _mm512_storeu_ps(out + int64_t{r} * step.dim + 16 * c, acc[r][c]);
    }
  }
}

constexpr void (*kScore[5])(const RowAttention&, int, int, float*) = {
    nullptr, ScoreRows<1>, ScoreRows<2>, ScoreRows<3>, ScoreRows<4>};
constexpr void (*kWeigh[5][2])(const RowAttention&, int, int, const float*, const float*) = {
    {nullptr, nullptr},
    {WeighRows<1, 2>, WeighRows<1, 4>},
    {WeighRows<2, 2>, WeighRows<2, 4>},
    {WeighRows<3, 2>, WeighRows<3, 4>},
    {WeighRows<4, 2>, WeighRows<4, 4>}};

// Rows stay in the first-level cache for all heads of a group.
void Attend(const RowAttention& step) {
  constexpr int kGroup = 16;
  alignas(64) float p[kGroup * kAttendRows];
  float keep[kGroup];
  for (int first = 0; first < step.heads; first += kGroup) {
    const int heads = step.heads - first < kGroup ? step.heads - first : kGroup;
    for (int j = 0; j < step.count; j += 4) {
      for (int h = 0; h < heads; h += 4) {
        kScore[heads - h < 4 ? heads - h : 4](step, first + h, j, p + h * kAttendRows);
      }
    }
    for (int h = 0; h < heads; ++h) {
      keep[h] =
          SoftmaxRow(step.count, p + h * kAttendRows, step.max + first + h, step.sum + first + h);
    }
    for (int column = 0; column < step.dim;) {
      const int wide = step.dim - column >= 64 ? 1 : 0;
      for (int h = 0; h < heads; h += 4) {
        kWeigh[heads - h < 4 ? heads - h : 4][wide](step, first + h, column, p + h * kAttendRows,
                                                    keep + h);
      }
      column += wide != 0 ? 64 : 32;
    }
  }
}

// The codes of 16 keys side by side: a lane holds 8 elements of one key, its low nibbles the even.
struct KeyLanes {
  alignas(64) uint32_t low[kIndexKeyDimMax / 8][16];
  alignas(64) uint32_t high[kIndexKeyDimMax / 8][16];
  alignas(64) float scale[kIndexKeyDimMax / kIndexBlock][16];
};

// Elements become twice their value plus 12: the product takes one side without sign.
void LoadKeys(const IndexScore& score, KeyLanes* keys) {
  const int words = score.dim / 8;
  alignas(64) uint32_t lanes[kIndexKeyDimMax / 8][16];
  for (int k = 0; k < kIndexBatch; ++k) {
    const auto* row = static_cast<const uint8_t*>(score.key[k < score.count ? k : 0]);
    for (int w = 0; w < words; ++w) __builtin_memcpy(&lanes[w][k], row + 4 * w, 4);
    for (int b = 0; b < score.dim / kIndexBlock; ++b) {
      keys->scale[b][k] = PowerOf(row[score.dim / 2 + b]);
    }
  }
  const __m512i values = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i low_bits = _mm512_set1_epi8(15);
  for (int w = 0; w < words; ++w) {
    const __m512i pairs = _mm512_load_si512(lanes[w]);
    const __m512i low = _mm512_and_si512(pairs, low_bits);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low_bits);
    _mm512_store_si512(keys->low[w], _mm512_shuffle_epi8(values, low));
    _mm512_store_si512(keys->high[w], _mm512_shuffle_epi8(values, high));
  }
}

inline __m512 ScoreLanes(const IndexScore& score, int token, const KeyLanes& keys) {
  const int blocks = score.dim / kIndexBlock;
  __m512 sum = _mm512_setzero_ps();
  for (int h = token * score.heads; h < (token + 1) * score.heads; ++h) {
    const int8_t* q = score.q + int64_t{h} * score.dim;
    __m512 dot = _mm512_setzero_ps();
    for (int b = 0; b < blocks; ++b) {
      __m512i even = _mm512_set1_epi32(-12 * score.q_sum[h * blocks + b]);
      __m512i odd = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int w = 4 * b; w < 4 * b + 4; ++w) {
        int32_t q_even, q_odd;
        __builtin_memcpy(&q_even, q + 8 * w, 4);
        __builtin_memcpy(&q_odd, q + 8 * w + 4, 4);
        const __m512i even_all = _mm512_set1_epi32(q_even);
        const __m512i odd_all = _mm512_set1_epi32(q_odd);
        even = _mm512_dpbusd_epi32(even, _mm512_load_si512(keys.low[w]), even_all);
        odd = _mm512_dpbusd_epi32(odd, _mm512_load_si512(keys.high[w]), odd_all);
      }
      const __m512i exact = _mm512_add_epi32(even, odd);
      const __m512 scaled =
          _mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_set1_ps(score.q_scale[h * blocks + b]));
      dot = _mm512_add_ps(dot, _mm512_mul_ps(scaled, _mm512_load_ps(keys.scale[b])));
    }
    const __m512 weight = _mm512_set1_ps(score.weight[h] * score.head_scale);
    // The second operand comes back when one is NaN.
    const __m512 positive = _mm512_max_ps(_mm512_setzero_ps(), dot);
    sum = _mm512_add_ps(sum, _mm512_mul_ps(weight, positive));
  }
  return _mm512_mul_ps(sum, _mm512_set1_ps(score.scale));
}

void IndexScores(const IndexScore& score) {
  KeyLanes keys;
  LoadKeys(score, &keys);
  const __mmask16 mask = static_cast<__mmask16>((1U << score.count) - 1);
  for (int t = 0; t < score.tokens; ++t) {
    _mm512_mask_storeu_ps(score.scores + t * score.stride, mask, ScoreLanes(score, t, keys));
  }
}

}  // namespace

const SparseKernels kAvx512Sparse = {Dot,           GatedDot,     Collapse,    Expand,
                                     PoolPair,      DecodeWindow, DecodeEntry, Attend,
                                     QuantizeQuery, IndexScores};

}  // namespace deepinfer::cpu
