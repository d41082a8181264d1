#include <immintrin.h>

#include "backend/cpu/vector_rows.h"

namespace deepinfer::cpu {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kRows = 6;
  static constexpr int kCols = 2;

  // All bits set in the first `count` lanes.
  static DI_INLINE __m256i Lanes(int count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
  }
  static DI_INLINE F Zero() { return _mm256_setzero_ps(); }
  static DI_INLINE F Set(float x) { return _mm256_set1_ps(x); }
  static DI_INLINE F Load(const float* p) { return _mm256_loadu_ps(p); }
  static DI_INLINE F Load(const CacheHalf* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static DI_INLINE F LoadPart(const float* p, int count) {
    return _mm256_maskload_ps(p, Lanes(count));
  }
  static DI_INLINE void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static DI_INLINE void Store(CacheHalf* p, F x) {
    // The bound comes first: min and max return the second operand when one is NaN.
    x = _mm256_min_ps(_mm256_set1_ps(65504.0F), x);
    x = _mm256_max_ps(_mm256_set1_ps(-65504.0F), x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static DI_INLINE void StorePart(float* p, int count, F x) {
    _mm256_maskstore_ps(p, Lanes(count), x);
  }
  // cos_0 cos_0 cos_1 cos_1 ...
  static DI_INLINE F LoadTwice(const float* p) {
    const __m256 x = _mm256_castps128_ps256(_mm_loadu_ps(p));
    return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  }
  static DI_INLINE F Rotate(F x, F cos, F sin) {
    return _mm256_fmaddsub_ps(x, cos, _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), sin));
  }
  static DI_INLINE F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static DI_INLINE F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static DI_INLINE F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static DI_INLINE F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static DI_INLINE F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static DI_INLINE F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static DI_INLINE F Round(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // p * 2^n, zero where x is below the normal range, at most 2^127 p.
  static DI_INLINE F Scale(F p, F n, F x) {
    const F bounded = _mm256_min_ps(_mm256_max_ps(n, Set(-126.0F)), Set(127.0F));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(bounded), _mm256_set1_epi32(127));
    const F power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    return _mm256_and_ps(_mm256_mul_ps(p, power), _mm256_cmp_ps(x, Set(-126.0F), _CMP_NLT_UQ));
  }
  // a in the first `count` lanes, b in the others.
  static DI_INLINE F Select(F a, F b, int count) {
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(Lanes(count)));
  }
  static DI_INLINE float First(F x) { return _mm256_cvtss_f32(x); }
  static DI_INLINE float Sum(F x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
  static DI_INLINE float LargestOf(F x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
};

}  // namespace

const RowKernels kAvx2Rows = VectorRows<Avx2>::Table();

}  // namespace deepinfer::cpu
