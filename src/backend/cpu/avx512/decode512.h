// How each quantised kind of packed_layout.h becomes registers on AVX-512: eight vectors of
// unsigned bytes, float scales and mins of 16 weight rows. Everything is internal to the including
// file: nothing here may reach the linker.
#pragma once

#include <immintrin.h>

#include "backend/cpu/packed_layout.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE [[gnu::always_inline]] static inline

// Which field of ActBlock starts the integer sum.
enum Start512 { kFromZero, kFromMinus8, kFromMinus16, kFromMinus128, kFromMinus32 };

// One block in registers. hi_scale and min are only set by the kinds that have them.
struct Block512 {
  __m512i q[8];
  __m512 scale;
  __m512 hi_scale;  // of elements 16..31
  __m512 min;
};

DI_INLINE __m512 Halves512(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
DI_INLINE __m512 Unsigned512(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
DI_INLINE __m512 Signed512(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

DI_INLINE void Nibbles512(const uint8_t* block, __m512i* q) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int u = 0; u < 4; ++u) {
    const __m512i v = _mm512_load_si512(block + 64 * u);
    q[u] = _mm512_and_si512(v, low);
    q[u + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
  }
}

// x | (y & mask)
DI_INLINE __m512i OrMasked512(__m512i x, __m512i y, __m512i mask) {
  return _mm512_ternarylogic_epi32(x, y, mask, 0xf8);
}

DI_INLINE void FifthBits512(const uint8_t* high, __m512i* q) {
  const __m512i h = _mm512_load_si512(high), bit = _mm512_set1_epi8(16);
  q[0] = OrMasked512(q[0], _mm512_slli_epi16(h, 4), bit);
  q[1] = OrMasked512(q[1], _mm512_slli_epi16(h, 3), bit);
  q[2] = OrMasked512(q[2], _mm512_slli_epi16(h, 2), bit);
  q[3] = OrMasked512(q[3], _mm512_slli_epi16(h, 1), bit);
  q[4] = OrMasked512(q[4], h, bit);
  q[5] = OrMasked512(q[5], _mm512_srli_epi16(h, 1), bit);
  q[6] = OrMasked512(q[6], _mm512_srli_epi16(h, 2), bit);
  q[7] = OrMasked512(q[7], _mm512_srli_epi16(h, 3), bit);
}

struct KindQ8_0 {
  static constexpr PackKind kKind = kPackQ8_0;
  static constexpr Start512 kStart = kFromMinus128;
  static constexpr bool kMin = false;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int j, Block512* out) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) out->q[v] = _mm512_load_si512(block + 64 * v);
    out->scale = Halves512(header + 32 * j);
  }
};

struct KindQ4_0 {
  static constexpr PackKind kKind = kPackQ4_0;
  static constexpr Start512 kStart = kFromMinus8;
  static constexpr bool kMin = false;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int j, Block512* out) {
    Nibbles512(block, out->q);
    out->scale = Halves512(header + 32 * j);
  }
};

struct KindQ4_1 {
  static constexpr PackKind kKind = kPackQ4_1;
  static constexpr Start512 kStart = kFromZero;
  static constexpr bool kMin = true;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int, Block512* out) {
    Nibbles512(block, out->q);
    out->scale = Halves512(header);
    out->min = Halves512(header + 32);
  }
};

struct KindQ5_0 {
  static constexpr PackKind kKind = kPackQ5_0;
  static constexpr Start512 kStart = kFromMinus16;
  static constexpr bool kMin = false;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int j, Block512* out) {
    Nibbles512(block, out->q);
    FifthBits512(block + 256, out->q);
    out->scale = Halves512(header + 32 * j);
  }
};

struct KindQ5_1 {
  static constexpr PackKind kKind = kPackQ5_1;
  static constexpr Start512 kStart = kFromZero;
  static constexpr bool kMin = true;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int, Block512* out) {
    Nibbles512(block, out->q);
    FifthBits512(block + 256, out->q);
    out->scale = Halves512(header);
    out->min = Halves512(header + 32);
  }
};

DI_INLINE void ScaleMinK512(const uint8_t* header, int j, Block512* out) {
  out->scale = _mm512_mul_ps(Halves512(header), Unsigned512(header + 64 + 32 * j));
  const __m512 min = _mm512_mul_ps(Halves512(header + 32), Unsigned512(header + 80 + 32 * j));
  out->min = _mm512_xor_ps(min, _mm512_set1_ps(-0.0F));
}

struct KindQ4K {
  static constexpr PackKind kKind = kPackQ4K;
  static constexpr Start512 kStart = kFromZero;
  static constexpr bool kMin = true;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int j, Block512* out) {
    Nibbles512(block, out->q);
    ScaleMinK512(header, j, out);
  }
};

struct KindQ5K {
  static constexpr PackKind kKind = kPackQ5K;
  static constexpr Start512 kStart = kFromZero;
  static constexpr bool kMin = true;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int j, Block512* out) {
    Nibbles512(block, out->q);
    FifthBits512(block + 256, out->q);
    ScaleMinK512(header, j, out);
  }
};

struct KindQ6K {
  static constexpr PackKind kKind = kPackQ6K;
  static constexpr Start512 kStart = kFromMinus32;
  static constexpr bool kMin = false;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int j, Block512* out) {
    Nibbles512(block, out->q);
    const __m512i bits = _mm512_set1_epi8(0x30);
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) {
      const __m512i h = _mm512_load_si512(block + 256 + 64 * w);
      __m512i* q = out->q + 4 * w;
      q[0] = OrMasked512(q[0], _mm512_slli_epi16(h, 4), bits);
      q[1] = OrMasked512(q[1], _mm512_slli_epi16(h, 2), bits);
      q[2] = OrMasked512(q[2], h, bits);
      q[3] = OrMasked512(q[3], _mm512_srli_epi16(h, 2), bits);
    }
    const __m512 d = Halves512(header);
    out->scale = _mm512_mul_ps(d, Signed512(header + 32 + 32 * j));
    out->hi_scale = _mm512_mul_ps(d, Signed512(header + 48 + 32 * j));
  }
};

struct KindMXFP4 {
  static constexpr PackKind kKind = kPackMXFP4;
  static constexpr Start512 kStart = kFromMinus16;
  static constexpr bool kMin = false;
  DI_INLINE void Load(const uint8_t* header, const uint8_t* block, int j, Block512* out) {
    Nibbles512(block, out->q);
    // Twice the value, plus 16.
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4));
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) out->q[v] = _mm512_shuffle_epi8(table, out->q[v]);
    // 2^(e - 128) by its bits; the two smallest are subnormal.
    const __m512i e =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(header + 16 * j)));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    out->scale = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, tiny));
  }
};

}  // namespace
}  // namespace deepinfer::cpu
