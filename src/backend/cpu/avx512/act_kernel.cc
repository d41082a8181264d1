// Activation rows to blocks of int8 and to bf16 on AVX-512.
#include <immintrin.h>

#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

__mmask16 Lanes(int64_t left) {
  if (left >= 16) return 0xffff;
  return static_cast<__mmask16>(left <= 0 ? 0 : (1U << left) - 1U);
}

}  // namespace

void QuantizeAvx512(const float* x, int64_t cols, ActBlock* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t k = 0; k < cols; k += kBlock, ++out) {
    const __m512 low = _mm512_maskz_loadu_ps(Lanes(cols - k), x + k);
    const __m512 high = _mm512_maskz_loadu_ps(Lanes(cols - k - 16), x + k + 16);
    // Magnitudes compare like their bits, NaN above all.
    const uint32_t top = _mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
    float max;
    __builtin_memcpy(&max, &top, 4);
    __m512i q_low = _mm512_setzero_si512(), q_high = q_low;
    float scale = 0.0F;
    if (top >= 0x7f800000U) {
      scale = __builtin_nanf("");
    } else if (max >= kActSmallest) {
      scale = max / 127.0F;
      const __m512 inverse = _mm512_set1_ps(127.0F / max);
      q_low = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
      q_high = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
    }
    _mm_store_si128(reinterpret_cast<__m128i*>(out->q), _mm512_cvtepi32_epi8(q_low));
    _mm_store_si128(reinterpret_cast<__m128i*>(out->q + 16), _mm512_cvtepi32_epi8(q_high));
    const int32_t sum_low = _mm512_reduce_add_epi32(q_low);
    const int32_t sum_high = _mm512_reduce_add_epi32(q_high);
    const int32_t sum = sum_low + sum_high;
    out->scale = scale;
    out->scaled_sum = scale * static_cast<float>(sum);
    out->minus8 = -8 * sum;
    out->minus16 = -16 * sum;
    out->minus128 = -128 * sum;
    out->minus32[0] = -32 * sum_low;
    out->minus32[1] = -32 * sum_high;
    out->unused = 0;
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
     ProductQ6KAvx512, ProductMXFP4Avx512},
    {QuantizeAvx512, ToBf16Avx512},
};

}  // namespace deepinfer::cpu
