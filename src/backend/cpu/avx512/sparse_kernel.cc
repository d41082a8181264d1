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

void DecodeWindow(const void* row, int count, float* out) {
  const auto* codes = static_cast<const uint8_t*>(row);
  const uint8_t* scales = codes + count;
  for (int i = 0; i < count; i += 32) {
    const __m512 scale = _mm512_set1_ps(PowerOf(scales[i / 32]));
    _mm512_storeu_ps(out + i, _mm512_mul_ps(E4m3(Load16(codes + i)), scale));
    _mm512_storeu_ps(out + i + 16, _mm512_mul_ps(E4m3(Load16(codes + i + 16)), scale));
  }
}

void DecodeEntry(const void* row, int count, float* out) {
  const auto* codes = static_cast<const uint8_t*>(row);
  const uint8_t* scales = codes + count / 2;
  const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F,
                                       -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F);
  const __m128i low_bits = _mm_set1_epi8(15);
  for (int first = 0; first < count; first += 256) {
    const int blocks = count - first < 256 ? (count - first) / 16 : 16;
    alignas(64) float scale[16];
    const __mmask16 mask = static_cast<__mmask16>((1U << blocks) - 1);
    _mm512_store_ps(scale, E4m3(_mm_maskz_loadu_epi8(mask, scales + first / 16)));
    for (int b = 0; b < blocks; ++b) {
      const int i = first + 16 * b;
      const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i / 2));
      const __m128i low = _mm_and_si128(pairs, low_bits);
      const __m128i high = _mm_and_si128(_mm_srli_epi16(pairs, 4), low_bits);
      const __m512i index = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high));
      _mm512_storeu_ps(
          out + i, _mm512_mul_ps(_mm512_permutexvar_ps(index, values), _mm512_set1_ps(scale[b])));
    }
  }
}

// 16 x 16 at a time: pairs, fours, then quarters of the registers.
void TurnTile(const float* rows, int dim, float* out) {
  for (int d = 0; d < dim; d += 16) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) a[t] = _mm512_loadu_ps(rows + int64_t{t} * dim + d);
#pragma GCC unroll 16
    for (int t = 0; t < 16; t += 2) {
      b[t] = _mm512_unpacklo_ps(a[t], a[t + 1]);
      b[t + 1] = _mm512_unpackhi_ps(a[t], a[t + 1]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < 16; t += 4) {
      a[t] =
          _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b[t]), _mm512_castps_pd(b[t + 2])));
      a[t + 1] =
          _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b[t]), _mm512_castps_pd(b[t + 2])));
      a[t + 2] = _mm512_castpd_ps(
          _mm512_unpacklo_pd(_mm512_castps_pd(b[t + 1]), _mm512_castps_pd(b[t + 3])));
      a[t + 3] = _mm512_castpd_ps(
          _mm512_unpackhi_pd(_mm512_castps_pd(b[t + 1]), _mm512_castps_pd(b[t + 3])));
    }
    // a[4 g + c] holds, in quarter k, column 4 k + c of rows 4 g ... 4 g + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512 low01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x44);
      const __m512 high01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xee);
      const __m512 low23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x44);
      const __m512 high23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xee);
      float* to = out + int64_t{d + c} * 16;
      _mm512_storeu_ps(to, _mm512_shuffle_f32x4(low01, low23, 0x88));
      _mm512_storeu_ps(to + 4 * 16, _mm512_shuffle_f32x4(low01, low23, 0xdd));
      _mm512_storeu_ps(to + 8 * 16, _mm512_shuffle_f32x4(high01, high23, 0x88));
      _mm512_storeu_ps(to + 12 * 16, _mm512_shuffle_f32x4(high01, high23, 0xdd));
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

void IndexScores(const IndexScore& score) {
  KeyLanes keys;
  LoadKeys(score, &keys);
  const int blocks = score.dim / kIndexBlock;
  __m512 sum = _mm512_setzero_ps();
  for (int h = 0; h < score.heads; ++h) {
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
  const __mmask16 mask = static_cast<__mmask16>((1U << score.count) - 1);
  _mm512_mask_storeu_ps(score.scores, mask, _mm512_mul_ps(sum, _mm512_set1_ps(score.scale)));
}

}  // namespace

const SparseKernels kAvx512Sparse = {Dot,           GatedDot,     Collapse,    Expand,
                                     PoolPair,      DecodeWindow, DecodeEntry, TurnTile,
                                     QuantizeQuery, IndexScores};

}  // namespace deepinfer::cpu
