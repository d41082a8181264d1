// Products of float panels on AVX2 by float FMA, 16 of the panel's 32 weight rows at a time. One
// output element is one chain of accumulations ascending in K for every number of rows.
#include "backend/cpu/avx2/products256.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE [[gnu::always_inline]] static inline

constexpr int kRowsMax = 4;       // input rows of one tile
constexpr int kWholeRows = 2;     // up to here a tile spans the whole panel
constexpr int64_t kAhead = 3072;  // bytes of weights prefetched ahead

DI_INLINE __m256i Load256(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

// A step of one input row times 8 weight rows whose bytes start at w.
struct StepF32 {
  static constexpr PackKind kKind = kPackF32;
  DI_INLINE __m256 Add(__m256 sum, const uint8_t* w, __m256i x) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(Load256(w)), _mm256_castsi256_ps(x), sum);
  }
};

struct StepF16 {
  static constexpr PackKind kKind = kPackF16;
  DI_INLINE __m256 Add(__m256 sum, const uint8_t* w, __m256i x) {
    const __m256 v = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(w)));
    return _mm256_fmadd_ps(v, _mm256_castsi256_ps(x), sum);
  }
};

struct StepBF16 {
  static constexpr PackKind kKind = kPackBF16;
  DI_INLINE __m256 Even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  DI_INLINE __m256 Odd(__m256i pairs) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
  }
  DI_INLINE __m256 Add(__m256 sum, const uint8_t* w, __m256i x) {
    const __m256i v = Load256(w);
    sum = _mm256_fmadd_ps(Even(v), Even(x), sum);
    return _mm256_fmadd_ps(Odd(v), Odd(x), sum);
  }
};

// kVectors * 8 weight rows: the whole panel when few input rows leave the registers for it (one
// sequential run of memory), or half of it.
template <typename Step, int kRows, int kVectors>
void Tile(const uint8_t* w, int64_t steps, const uint8_t* const* rows, int64_t columns, float* y,
          int64_t y_stride) {
  constexpr int kBytes = kStepBytes[Step::kKind];
  constexpr int kVector = kBytes / 4;  // bytes of 8 weight rows
  __m256 sum[kRows][kVectors];
  const uint8_t* x[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm256_setzero_ps();
    x[r] = rows[r];
  }
  for (int64_t k = 0; k < steps; ++k, w += kBytes) {
#pragma GCC unroll 2
    for (int line = 0; line < kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i item = _mm256_set1_epi32(reinterpret_cast<const int32_t*>(x[r])[k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Step::Add(sum[r][v], w + kVector * v, item);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; v += 2) {
      StoreColumns256(sum[r][v], sum[r][v + 1], columns - 8 * v, y + r * y_stride + 8 * v);
    }
  }
}

typedef void (*TileFn)(const uint8_t*, int64_t, const uint8_t* const*, int64_t, float*, int64_t);

template <typename Step>
constexpr TileFn kHalfTiles[kRowsMax + 1] = {nullptr, Tile<Step, 1, 2>, Tile<Step, 2, 2>,
                                             Tile<Step, 3, 2>, Tile<Step, 4, 2>};
template <typename Step>
constexpr TileFn kWholeTiles[kWholeRows + 1] = {nullptr, Tile<Step, 1, 4>, Tile<Step, 2, 4>};

template <typename Step>
void Product(const ProductArgs& args) {
  const bool whole = args.m <= kWholeRows;
  const int64_t width = whole ? kFloatPanel : kFloatPanel / 2;
  const int64_t rows_max = whole ? kWholeRows : kRowsMax;
  for (int64_t n = args.n_begin; n < args.n_end; n += width) {
    const uint8_t* panel = args.weights + n / kFloatPanel * args.panel_bytes +
                           n % kFloatPanel / 16 * (kStepBytes[Step::kKind] / 2);
    for (int64_t i = 0; i < args.m; i += rows_max) {
      const int64_t left = args.m - i;
      const int rows = static_cast<int>(left < rows_max ? left : rows_max);
      const uint8_t* x[kRowsMax];
      for (int r = 0; r < rows; ++r) {
        const int64_t row = args.input_rows == nullptr ? i + r : args.input_rows[i + r];
        x[r] = args.act + row * args.act_stride;
      }
      const TileFn tile = whole ? kWholeTiles<Step>[rows] : kHalfTiles<Step>[rows];
      tile(panel, args.steps, x, args.n_end - n, args.y + i * args.y_stride + n, args.y_stride);
    }
  }
}

}  // namespace

void ProductF32Avx2(const ProductArgs& args) { Product<StepF32>(args); }
void ProductF16Avx2(const ProductArgs& args) { Product<StepF16>(args); }
void ProductBF16Avx2(const ProductArgs& args) { Product<StepBF16>(args); }

}  // namespace deepinfer::cpu
