// Activation rows to blocks of int8 and to bf16 on AVX2.
#include <immintrin.h>

#include "backend/cpu/avx2/products256.h"

namespace deepinfer::cpu {
namespace {

// 32 floats at x, zeros from `left` on.
void LoadBlock(const float* x, int64_t left, __m256 v[4]) {
  alignas(32) float padded[kBlock];
  if (left < kBlock) {
    for (int i = 0; i < kBlock; ++i) padded[i] = i < left ? x[i] : 0.0F;
    x = padded;
  }
  for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
}

uint32_t LargestMagnitude(const __m256 v[4]) {
  // Magnitudes compare like their bits, NaN above all.
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  }
  __m128i t = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(t));
}

int32_t Sum(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

// Quantises v; leaves in v what rounding left. Returns the largest magnitude.
float QuantizeBlock(__m256 v[4], ActBlock* out) {
  const uint32_t top = LargestMagnitude(v);
  float max;
  __builtin_memcpy(&max, &top, 4);
  __m256i q[4] = {};
  float scale = 0.0F;
  if (top >= 0x7f800000U) {
    scale = __builtin_nanf("");
  } else if (max >= kActSmallest) {
    scale = max / 127.0F;
    const __m256 inverse = _mm256_set1_ps(127.0F / max);
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  }
  // Packing works inside of 128-bit lanes: the permutation restores the order.
  const __m256i words_low = _mm256_packs_epi32(q[0], q[1]);
  const __m256i words_high = _mm256_packs_epi32(q[2], q[3]);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words_low, words_high),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->q), bytes);
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_fnmadd_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(q[i]), v[i]);
  }
  const int32_t sum_low = Sum(_mm256_add_epi32(q[0], q[1]));
  const int32_t sum_high = Sum(_mm256_add_epi32(q[2], q[3]));
  const int32_t sum = sum_low + sum_high;
  out->scale = scale;
  out->scaled_sum = scale * static_cast<float>(sum);
  out->minus8 = -8 * sum;
  out->minus16 = -16 * sum;
  out->minus128 = -128 * sum;
  out->minus32[0] = -32 * sum_low;
  out->minus32[1] = -32 * sum_high;
  out->refined = 0;
  return max;
}

float Energy(const __m256 v[4]) {
  __m256 sum = _mm256_mul_ps(v[0], v[0]);
  for (int i = 1; i < 4; ++i) sum = _mm256_fmadd_ps(v[i], v[i], sum);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

void Quantize(const float* x, int64_t cols, ActBlock* out, ActBlock* rest) {
  for (int64_t k = 0; k < cols; k += kBlock, ++out, ++rest) {
    __m256 v[4];
    LoadBlock(x + k, cols - k, v);
    const float energy = Energy(v);
    const float max = QuantizeBlock(v, out);
    if (max * max > kRefineShare * energy && out->scale != 0.0F) {
      QuantizeBlock(v, rest);
      out->refined = 1;
    }
  }
}

void ToBf16(const float* x, int64_t cols, uint16_t* out) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
  for (int64_t k = 0; k < cols; k += kBlock) {
    __m256 v[4];
    LoadBlock(x + k, cols - k, v);
    __m256i rounded[4];
    for (int i = 0; i < 4; ++i) {
      const __m256i bits = _mm256_castps_si256(v[i]);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
      const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, half));
      const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
      rounded[i] = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), nan);
    }
    for (int i = 0; i < 4; i += 2) {
      const __m256i words =
          _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded[i], rounded[i + 1]), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k + 8 * i), words);
    }
  }
}

}  // namespace

const KernelTable kAvx2Kernels = {
    {ProductF32Avx2, ProductF16Avx2, ProductBF16Avx2, ProductQ8_0Avx2, ProductQ4_0Avx2,
     ProductQ4_1Avx2, ProductQ5_0Avx2, ProductQ5_1Avx2, ProductQ4KAvx2, ProductQ5KAvx2,
     ProductQ6KAvx2, ProductMXFP4Avx2, ProductF8Avx2},
    {Quantize, ToBf16},
};

}  // namespace deepinfer::cpu
