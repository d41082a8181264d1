// The inner step of quantised products on AVX-512, for the kernels of their files and of AMX.
#pragma once

#include "backend/cpu/avx512/decode512.h"

namespace deepinfer::cpu {
namespace {

DI_INLINE __m512 Broadcast(const float* p) { return _mm512_set1_ps(*p); }
DI_INLINE __m512i BroadcastInt(const void* p) {
  return _mm512_set1_epi32(*static_cast<const int32_t*>(p));
}

// Adds one block of 16 weight rows times kRows input rows. Rows are interleaved: each sum is a
// chain of eight dependent instructions, and the processor does not look far enough ahead.
template <typename Kind, int kRows, typename Input>
DI_INLINE void AddBlock(const Block512& w, const Input& x, __m512* y) {
  __m512i sum[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const ActBlock* block = x(r);
    sum[r] = _mm512_setzero_si512();
    if (Kind::kStart == kFromMinus8) sum[r] = BroadcastInt(&block->minus8);
    if (Kind::kStart == kFromMinus16) sum[r] = BroadcastInt(&block->minus16);
    if (Kind::kStart == kFromMinus128) sum[r] = BroadcastInt(&block->minus128);
    if (Kind::kStart == kFromMinus32) sum[r] = BroadcastInt(&block->minus32[0]);
  }
  constexpr int kVectors = Kind::kStart == kFromMinus32 ? 4 : 8;  // that share a scale
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      sum[r] = _mm512_dpbusd_epi32(sum[r], w.q[v], BroadcastInt(x(r)->q + 4 * v));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_mul_ps(w.scale, Broadcast(&x(r)->scale));
    y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), scale, y[r]);
    if (Kind::kMin) y[r] = _mm512_fmadd_ps(w.min, Broadcast(&x(r)->scaled_sum), y[r]);
  }
  if constexpr (Kind::kStart == kFromMinus32) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = BroadcastInt(&x(r)->minus32[1]);
#pragma GCC unroll 4
    for (int v = 4; v < 8; ++v) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sum[r] = _mm512_dpbusd_epi32(sum[r], w.q[v], BroadcastInt(x(r)->q + 4 * v));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_mul_ps(w.hi_scale, Broadcast(&x(r)->scale));
      y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), scale, y[r]);
    }
  }
}

// Adds the rests of one block for the rows in `refined`; x(r) is row r's rest.
template <typename Kind, int kRows, typename Input>
DI_INLINE void AddRests(const Block512& w, uint32_t refined, const Input& x, __m512* y) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if ((refined >> r & 1U) != 0)
      AddBlock<Kind, 1>(
          w, [&](int) { return x(r); }, y + r);
  }
}

}  // namespace
}  // namespace deepinfer::cpu
