// Products and conversions of the AVX2 files, for the table of their ISA.
#pragma once

#include <immintrin.h>

#include "backend/cpu/packed_layout.h"

namespace deepinfer::cpu {

void ProductQ8_0Avx2(const ProductArgs& args);
void ProductQ4_0Avx2(const ProductArgs& args);
void ProductQ4_1Avx2(const ProductArgs& args);
void ProductQ5_0Avx2(const ProductArgs& args);
void ProductQ5_1Avx2(const ProductArgs& args);
void ProductQ4KAvx2(const ProductArgs& args);
void ProductQ5KAvx2(const ProductArgs& args);
void ProductQ6KAvx2(const ProductArgs& args);
void ProductMXFP4Avx2(const ProductArgs& args);
void ProductF8Avx2(const ProductArgs& args);
void ProductF32Avx2(const ProductArgs& args);
void ProductF16Avx2(const ProductArgs& args);
void ProductBF16Avx2(const ProductArgs& args);

namespace {

// The first `columns` (none below 1) of 16 results to y.
[[gnu::always_inline]] inline void StoreColumns256(__m256 low, __m256 high, int64_t columns,
                                                   float* y) {
  if (columns >= 16) {
    _mm256_storeu_ps(y, low);
    _mm256_storeu_ps(y + 8, high);
    return;
  }
  alignas(32) float all[16];
  _mm256_store_ps(all, low);
  _mm256_store_ps(all + 8, high);
  for (int64_t c = 0; c < columns; ++c) y[c] = all[c];
}

}  // namespace
}  // namespace deepinfer::cpu
