#include <immintrin.h>

#include "backend/cpu/vector_rows.h"

namespace deepinfer::cpu {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kRows = 6;
  static constexpr int kCols = 4;

  static DI_INLINE __mmask16 Lanes(int count) {
    return count >= kWidth ? 0xffff : (count <= 0 ? 0 : static_cast<__mmask16>((1U << count) - 1));
  }
  static DI_INLINE F Zero() { return _mm512_setzero_ps(); }
  static DI_INLINE F Set(float x) { return _mm512_set1_ps(x); }
  static DI_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
  static DI_INLINE F Load(const CacheHalf* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static DI_INLINE F LoadPart(const float* p, int count) {
    return _mm512_maskz_loadu_ps(Lanes(count), p);
  }
  static DI_INLINE void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static DI_INLINE void Store(CacheHalf* p, F x) {
    // The bound comes first: min and max return the second operand when one is NaN.
    x = _mm512_min_ps(_mm512_set1_ps(65504.0F), x);
    x = _mm512_max_ps(_mm512_set1_ps(-65504.0F), x);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static DI_INLINE void StorePart(float* p, int count, F x) {
    _mm512_mask_storeu_ps(p, Lanes(count), x);
  }
  // cos_0 cos_0 cos_1 cos_1 ...
  static DI_INLINE F LoadTwice(const float* p) {
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
  static DI_INLINE F Rotate(F x, F cos, F sin) {
    return _mm512_fmaddsub_ps(x, cos, _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), sin));
  }
  static DI_INLINE F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static DI_INLINE F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static DI_INLINE F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static DI_INLINE F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static DI_INLINE F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static DI_INLINE F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static DI_INLINE F Round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // p * 2^n, zero where x is below the normal range.
  static DI_INLINE F Scale(F p, F n, F x) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, Set(-126.0F), _CMP_NLT_UQ), p, n);
  }
  // a in the first `count` lanes, b in the others.
  static DI_INLINE F Select(F a, F b, int count) { return _mm512_mask_mov_ps(b, Lanes(count), a); }
  static DI_INLINE float First(F x) { return _mm512_cvtss_f32(x); }
  static DI_INLINE float Sum(F x) { return _mm512_reduce_add_ps(x); }
  static DI_INLINE float LargestOf(F x) { return _mm512_reduce_max_ps(x); }
};

}  // namespace

const RowKernels kAvx512Rows = VectorRows<Avx512>::Table();

}  // namespace deepinfer::cpu
