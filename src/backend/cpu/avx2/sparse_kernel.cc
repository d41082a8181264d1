#include <immintrin.h>

#include "backend/cpu/sparse_loops.h"

namespace deepinfer::cpu {
namespace {

// 8 E4M3 codes; the float's exponent bias is 120 more, which reaches the subnormals too.
inline __m256 E4m3(__m128i codes) {
  const __m256i wide = _mm256_cvtepu8_epi32(codes);
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi32(0x7f));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)), 24);
  const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                                     _mm256_set1_ps(0x1p120F));
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  const __m256 all = _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)),
                                      _mm256_castsi256_ps(nan));
  return _mm256_or_ps(all, _mm256_castsi256_ps(sign));
}

inline __m128i Load8(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

void DecodeWindow(const void* row, int count, float* out) {
  const auto* codes = static_cast<const uint8_t*>(row);
  const uint8_t* scales = codes + count;
  for (int i = 0; i < count; i += 8) {
    const __m256 scale = _mm256_set1_ps(PowerOf(scales[i / 32]));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(E4m3(Load8(codes + i)), scale));
  }
}

// 8 E2M1 codes in the low bytes.
inline __m256 E2m1(__m128i codes) {
  const __m256 values = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
  const __m256i index = _mm256_cvtepu8_epi32(codes);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(index, _mm256_set1_epi32(8)), 28);
  return _mm256_or_ps(_mm256_permutevar8x32_ps(values, index), _mm256_castsi256_ps(sign));
}

void DecodeEntry(const void* row, int count, float* out) {
  const auto* codes = static_cast<const uint8_t*>(row);
  const uint8_t* scales = codes + count / 2;
  const __m128i low_bits = _mm_set1_epi8(15);
  for (int first = 0; first < count; first += 128) {
    const int blocks = count - first < 128 ? (count - first) / 16 : 8;
    uint8_t bytes[8] = {};
    for (int b = 0; b < blocks; ++b) bytes[b] = scales[first / 16 + b];
    alignas(32) float scale[8];
    _mm256_store_ps(scale, E4m3(Load8(bytes)));
    for (int b = 0; b < blocks; ++b) {
      const int i = first + 16 * b;
      const __m128i pairs = Load8(codes + i / 2);
      const __m128i low = _mm_and_si128(pairs, low_bits);
      const __m128i high = _mm_and_si128(_mm_srli_epi16(pairs, 4), low_bits);
      const __m128i index = _mm_unpacklo_epi8(low, high);
      const __m256 all = _mm256_set1_ps(scale[b]);
      _mm256_storeu_ps(out + i, _mm256_mul_ps(E2m1(index), all));
      _mm256_storeu_ps(out + i + 8, _mm256_mul_ps(E2m1(_mm_unpackhi_epi64(index, index)), all));
    }
  }
}

// e^(x ln 2) for x <= 0; below 2^-126 zero, NaN stays NaN.
inline __m256 Exp2(__m256 x) {
  const __m256 bounded = _mm256_max_ps(_mm256_set1_ps(-126.0F), x);
  const __m256 n = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 f = _mm256_sub_ps(bounded, n);
  __m256 p = _mm256_set1_ps(1.54035304e-4F);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.33335581e-3F));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.61812911e-3F));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.55041087e-2F));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.40226507e-1F));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.93147181e-1F));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0F));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 gone = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0F), _CMP_LT_OQ);
  return _mm256_andnot_ps(gone, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

inline float SumOf(__m256 x) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, x);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Lane 4 r + c is the sum of a[2 c + r].
inline __m256 FoldEight(const __m256* a) {
  __m256 b[4], c[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x20),
                         _mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x31));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256d x = _mm256_castps_pd(b[2 * i]);
    const __m256d y = _mm256_castps_pd(b[2 * i + 1]);
    c[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  }
  return _mm256_add_ps(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xdd));
}

// p[r, j ...] = q[r] . row j ... of four rows; the last one repeats.
template <int R>
void ScoreRows(const RowAttention& step, int head, int j, float* p) {
  const float* q = step.q + int64_t{head} * step.dim;
  const float* k[4];
  for (int c = 0; c < 4; ++c) k[c] = step.rows[j + c < step.count ? j + c : step.count - 1];
  __m256 sum[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) sum[i] = _mm256_setzero_ps();
  for (int d = 0; d < step.dim; d += 8) {
    __m256 x[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) x[c] = _mm256_loadu_ps(k[c] + d);
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      const __m256 y = _mm256_loadu_ps(q + int64_t{r} * step.dim + d);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) sum[2 * c + r] = _mm256_fmadd_ps(x[c], y, sum[2 * c + r]);
    }
  }
  const __m256 all = FoldEight(sum);
  _mm_storeu_ps(p + j, _mm256_castps256_ps128(all));
  if (R > 1) _mm_storeu_ps(p + kAttendRows + j, _mm256_extractf128_ps(all, 1));
}

// Scores to weights; what the old state keeps.
inline float SoftmaxRow(int count, float* p, float* running_max, float* running_sum) {
  const int whole = (count + 7) / 8 * 8;
  for (int i = count; i < whole; ++i) p[i] = -1e30F;
  const __m256 old = _mm256_set1_ps(*running_max);
  __m256 max = old;
  for (int i = 0; i < whole; i += 8) max = _mm256_max_ps(_mm256_loadu_ps(p + i), max);
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, max);
  float largest = lanes[0];
  for (int i = 1; i < 8; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  const __m256 all = _mm256_set1_ps(largest);
  __m256 sum = _mm256_setzero_ps();
  for (int i = 0; i < whole; i += 8) {
    const __m256 weight = Exp2(_mm256_sub_ps(_mm256_loadu_ps(p + i), all));
    _mm256_storeu_ps(p + i, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  const float keep = _mm256_cvtss_f32(Exp2(_mm256_sub_ps(old, all)));
  *running_max = largest;
  *running_sum = *running_sum * keep + SumOf(sum);
  return keep;
}

// Four registers of columns.
template <int R>
void WeighRows(const RowAttention& step, int head, int column, const float* p, const float* keep) {
  float* out = step.acc + int64_t{head} * step.dim + column;
  __m256 acc[R][4];
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      acc[r][c] = _mm256_mul_ps(_mm256_set1_ps(keep[r]),
                                _mm256_loadu_ps(out + int64_t{r} * step.dim + 8 * c));
    }
  }
  for (int j = 0; j < step.count; ++j) {
    const float* v = step.rows[j] + column;
    __m256 x[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) x[c] = _mm256_loadu_ps(v + 8 * c);
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      const __m256 weight = _mm256_set1_ps(p[r * kAttendRows + j]);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) acc[r][c] = _mm256_fmadd_ps(weight, x[c], acc[r][c]);
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      _mm256_storeu_ps(out + int64_t{r} * step.dim + 8 * c, acc[r][c]);
    }
  }
}

// Rows stay in the first-level cache for all heads of a group.
void Attend(const RowAttention& step) {
  constexpr int kGroup = 16;
  alignas(32) float p[kGroup * kAttendRows];
  float keep[kGroup];
  for (int first = 0; first < step.heads; first += kGroup) {
    const int heads = step.heads - first < kGroup ? step.heads - first : kGroup;
    const int pairs = heads / 2 * 2;
    for (int j = 0; j < step.count; j += 4) {
      for (int h = 0; h < pairs; h += 2) ScoreRows<2>(step, first + h, j, p + h * kAttendRows);
      if (pairs < heads) ScoreRows<1>(step, first + pairs, j, p + pairs * kAttendRows);
    }
    for (int h = 0; h < heads; ++h) {
      keep[h] =
          SoftmaxRow(step.count, p + h * kAttendRows, step.max + first + h, step.sum + first + h);
    }
    for (int column = 0; column < step.dim; column += 32) {
      for (int h = 0; h < pairs; h += 2) {
        WeighRows<2>(step, first + h, column, p + h * kAttendRows, keep + h);
      }
      if (pairs < heads) {
        WeighRows<1>(step, first + pairs, column, p + pairs * kAttendRows, keep + pairs);
      }
    }
  }
}

// The codes of 8 keys side by side: a lane holds 8 elements of one key, its low nibbles the even.
struct KeyLanes {
  alignas(32) uint32_t low[kIndexKeyDimMax / 8][8];
  alignas(32) uint32_t high[kIndexKeyDimMax / 8][8];
  alignas(32) float scale[kIndexKeyDimMax / kIndexBlock][8];
};

inline __m256i LoadLanes(const uint32_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
inline void StoreLanes(uint32_t* p, __m256i x) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), x);
}

void LoadKeys(const IndexScore& score, int first, KeyLanes* keys) {
  const int words = score.dim / 8;
  alignas(32) uint32_t lanes[kIndexKeyDimMax / 8][8];
  for (int k = 0; k < 8; ++k) {
    const auto* row =
        static_cast<const uint8_t*>(score.key[first + k < score.count ? first + k : first]);
    for (int w = 0; w < words; ++w) __builtin_memcpy(&lanes[w][k], row + 4 * w, 4);
    for (int b = 0; b < score.dim / kIndexBlock; ++b) {
      keys->scale[b][k] = PowerOf(row[score.dim / 2 + b]);
    }
  }
  const __m256i values = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m256i low_bits = _mm256_set1_epi8(15);
  for (int w = 0; w < words; ++w) {
    const __m256i pairs = LoadLanes(lanes[w]);
    const __m256i low = _mm256_and_si256(pairs, low_bits);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low_bits);
    StoreLanes(keys->low[w], _mm256_shuffle_epi8(values, low));
    StoreLanes(keys->high[w], _mm256_shuffle_epi8(values, high));
  }
}

// Pairs of products in 16 bits: 16 terms of at most 144 fit a pair's sum eight times over.
inline __m256i Pairs(__m256i key, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  const __m256i all = _mm256_set1_epi32(four);
  return _mm256_maddubs_epi16(_mm256_abs_epi8(all), _mm256_sign_epi8(key, all));
}

void ScoreLanes(const IndexScore& score, int token, int first, const KeyLanes& keys) {
  const int blocks = score.dim / kIndexBlock;
  __m256 sum = _mm256_setzero_ps();
  for (int h = token * score.heads; h < (token + 1) * score.heads; ++h) {
    const int8_t* q = score.q + int64_t{h} * score.dim;
    __m256 dot = _mm256_setzero_ps();
    for (int b = 0; b < blocks; ++b) {
      __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int w = 4 * b; w < 4 * b + 4; ++w) {
        pairs = _mm256_add_epi16(pairs, Pairs(LoadLanes(keys.low[w]), q + 8 * w));
        pairs = _mm256_add_epi16(pairs, Pairs(LoadLanes(keys.high[w]), q + 8 * w + 4));
      }
      const __m256i exact = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
      const __m256 scaled =
          _mm256_mul_ps(_mm256_cvtepi32_ps(exact), _mm256_set1_ps(score.q_scale[h * blocks + b]));
      dot = _mm256_add_ps(dot, _mm256_mul_ps(scaled, _mm256_load_ps(keys.scale[b])));
    }
    const __m256 weight = _mm256_set1_ps(score.weight[h] * score.head_scale);
    // The second operand comes back when one is NaN.
    const __m256 positive = _mm256_max_ps(_mm256_setzero_ps(), dot);
    sum = _mm256_add_ps(sum, _mm256_mul_ps(weight, positive));
  }
  alignas(32) float scores[8];
  _mm256_store_ps(scores, _mm256_mul_ps(sum, _mm256_set1_ps(score.scale)));
  const int count = score.count - first < 8 ? score.count - first : 8;
  float* out = score.scores + token * score.stride + first;
  for (int k = 0; k < count; ++k) out[k] = scores[k];
}

void IndexScores(const IndexScore& score) {
  KeyLanes keys;
  for (int first = 0; first < score.count; first += 8) {
    LoadKeys(score, first, &keys);
    for (int t = 0; t < score.tokens; ++t) ScoreLanes(score, t, first, keys);
  }
}

}  // namespace

const SparseKernels kAvx2Sparse = {Dot,          GatedDot,    Collapse, Expand,        PoolPair,
                                   DecodeWindow, DecodeEntry, Attend,   QuantizeQuery, IndexScores};

}  // namespace deepinfer::cpu
