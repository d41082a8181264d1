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

// 8 x 8 at a time: pairs, fours, then halves of the registers.
void TurnTile(const float* rows, int dim, float* out) {
  for (int first = 0; first < 16; first += 8) {
    for (int d = 0; d < dim; d += 8) {
      __m256 a[8], b[8];
#pragma GCC unroll 8
      for (int t = 0; t < 8; ++t) a[t] = _mm256_loadu_ps(rows + int64_t{first + t} * dim + d);
#pragma GCC unroll 8
      for (int t = 0; t < 8; t += 2) {
        b[t] = _mm256_unpacklo_ps(a[t], a[t + 1]);
        b[t + 1] = _mm256_unpackhi_ps(a[t], a[t + 1]);
      }
#pragma GCC unroll 8
      for (int t = 0; t < 8; t += 4) {
        a[t] = _mm256_shuffle_ps(b[t], b[t + 2], 0x44);
        a[t + 1] = _mm256_shuffle_ps(b[t], b[t + 2], 0xee);
        a[t + 2] = _mm256_shuffle_ps(b[t + 1], b[t + 3], 0x44);
        a[t + 3] = _mm256_shuffle_ps(b[t + 1], b[t + 3], 0xee);
      }
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        float* to = out + int64_t{d + c} * 16 + first;
        _mm256_storeu_ps(to, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
        _mm256_storeu_ps(to + 4 * 16, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
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

void ScoreLanes(const IndexScore& score, int first) {
  KeyLanes keys;
  LoadKeys(score, first, &keys);
  const int blocks = score.dim / kIndexBlock;
  __m256 sum = _mm256_setzero_ps();
  for (int h = 0; h < score.heads; ++h) {
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
  for (int k = 0; k < count; ++k) score.scores[first + k] = scores[k];
}

void IndexScores(const IndexScore& score) {
  for (int first = 0; first < score.count; first += 8) ScoreLanes(score, first);
}

}  // namespace

const SparseKernels kAvx2Sparse = {Dot,          GatedDot,    Collapse, Expand,        PoolPair,
                                   DecodeWindow, DecodeEntry, TurnTile, QuantizeQuery, IndexScores};

}  // namespace deepinfer::cpu
