// Kernels of the AVX-512 files, for the table of their ISA and for the AMX one.
#pragma once

#include "backend/cpu/packed_layout.h"

namespace deepinfer::cpu {

void ProductQ8_0Avx512(const ProductArgs& args);
void ProductQ4_0Avx512(const ProductArgs& args);
void ProductQ4_1Avx512(const ProductArgs& args);
void ProductQ5_0Avx512(const ProductArgs& args);
void ProductQ5_1Avx512(const ProductArgs& args);
void ProductQ4KAvx512(const ProductArgs& args);
void ProductQ5KAvx512(const ProductArgs& args);
void ProductQ6KAvx512(const ProductArgs& args);
void ProductMXFP4Avx512(const ProductArgs& args);
void ProductF32Avx512(const ProductArgs& args);
void ProductF16Avx512(const ProductArgs& args);
void ProductBF16Avx512(const ProductArgs& args);
void ProductF8Avx512(const ProductArgs& args);
void QuantizeAvx512(const float* x, int64_t cols, ActBlock* out, ActBlock* rest);
void ToBf16Avx512(const float* x, int64_t cols, uint16_t* out);

}  // namespace deepinfer::cpu
