// Activation rows to blocks of int8 and to bf16 on AVX-512.
#include <immintrin.h>

#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

__mmask16 Lanes(int64_t left) {
  if (left >= 16) return 0xffff;
  return static_cast<__mmask16>(left <= 0 ? 0 : (1U << left) - 1U);
}

// What follows the bytes of an ActBlock: scale, scale * sum, -8, -16 and -128 times the sum, -32
// times the sum of either half, zero.
__m256 Sums(__m256i q, float scale) {
  __m256i half = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
  half = _mm256_add_epi32(half, _mm256_shuffle_epi32(half, 0x4e));
  half = _mm256_add_epi32(half, _mm256_shuffle_epi32(half, 0xb1));  // of the lane, in each item
  const __m256i sum = _mm256_add_epi32(half, _mm256_permute2x128_si256(half, half, 1));
  const __m256i halves =
      _mm256_permutevar8x32_epi32(half, _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 4, 4));
  const __m256i ints = _mm256_mullo_epi32(_mm256_blend_epi32(sum, halves, 0x60),
                                          _mm256_setr_epi32(0, 0, -8, -16, -128, -32, -32, 0));
  const __m256 factors = _mm256_blend_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(1.0F), 1);
  const __m256 floats = _mm256_mul_ps(_mm256_set1_ps(scale), factors);
  return _mm256_blend_ps(_mm256_castsi256_ps(ints), floats, 3);
}

// Quantises 32 elements; leaves in them what rounding left. Returns the largest magnitude.
float QuantizeBlock(__m512* low, __m512* high, ActBlock* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  // Magnitudes compare like their bits, NaN above all.
  const uint32_t top = _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(*low), magnitude),
                       _mm512_and_si512(_mm512_castps_si512(*high), magnitude)));
  float max;
  __builtin_memcpy(&max, &top, 4);
  __m512i q_low = _mm512_setzero_si512(), q_high = q_low;
  float scale = 0.0F;
  if (top >= 0x7f800000U) {
    scale = __builtin_nanf("");
  } else if (max >= kActSmallest) {
    scale = max / 127.0F;
    const __m512 inverse = _mm512_set1_ps(127.0F / max);
    q_low = _mm512_cvtps_epi32(_mm512_mul_ps(*low, inverse));
    q_high = _mm512_cvtps_epi32(_mm512_mul_ps(*high, inverse));
  }
  const __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(q_low)),
                                            _mm512_cvtepi32_epi8(q_high), 1);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->q), q);
  _mm256_store_ps(&out->scale, Sums(q, scale));
  *low = _mm512_fnmadd_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(q_low), *low);
  *high = _mm512_fnmadd_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(q_high), *high);
  return max;
}

}  // namespace

void QuantizeAvx512(const float* x, int64_t cols, ActBlock* out, ActBlock* rest) {
  for (int64_t k = 0; k < cols; k += kBlock, ++out, ++rest) {
    __m512 low = _mm512_maskz_loadu_ps(Lanes(cols - k), x + k);
    __m512 high = _mm512_maskz_loadu_ps(Lanes(cols - k - 16), x + k + 16);
    const float energy = _mm512_reduce_add_ps(_mm512_fmadd_ps(high, high, _mm512_mul_ps(low, low)));
    const float max = QuantizeBlock(&low, &high, out);
    if (max * max > kRefineShare * energy && out->scale != 0.0F) {
      QuantizeBlock(&low, &high, rest);
      out->refined = 1;
    }
  }
}

void ToBf16Avx512(const float* x, int64_t cols, uint16_t* out) {
  const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
  for (int64_t k = 0; k < cols; k += kBlock) {
    for (int h = 0; h < kBlock; h += 16) {
      const __m512 v = _mm512_maskz_loadu_ps(Lanes(cols - k - h), x + k + h);
      const __m512i bits = _mm512_castps_si512(v);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
      __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, half)), 16);
      const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
      rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + k + h), _mm512_cvtepi32_epi16(rounded));
    }
  }
}

const KernelTable kAvx512Kernels = {
    {ProductF32Avx512, ProductF16Avx512, ProductBF16Avx512, ProductQ8_0Avx512, ProductQ4_0Avx512,
     ProductQ4_1Avx512, ProductQ5_0Avx512, ProductQ5_1Avx512, ProductQ4KAvx512, ProductQ5KAvx512,
     ProductQ6KAvx512, ProductMXFP4Avx512, ProductF8Avx512},
    {QuantizeAvx512, ToBf16Avx512},
};

}  // namespace deepinfer::cpu
