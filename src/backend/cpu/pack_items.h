// Small tools of the files that fill panels. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "backend/cpu/pack_panel.h"
#include "backend/cpu/packed_layout.h"

namespace deepinfer::cpu {

inline uint16_t Load16(const void* p) {
  uint16_t v;
  memcpy(&v, p, sizeof(v));
  return v;
}
inline uint32_t Load32(const void* p) {
  uint32_t v;
  memcpy(&v, p, sizeof(v));
  return v;
}
inline uint64_t Load64(const void* p) {
  uint64_t v;
  memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store16(void* p, uint16_t v) { memcpy(p, &v, sizeof(v)); }
inline void Store32(void* p, uint32_t v) { memcpy(p, &v, sizeof(v)); }

// Stores a 4 x 4 transpose of 32-bit items: out + i * stride holds item i of the four inputs.
inline void Transpose4(const void* const in[4], uint8_t* out, int64_t stride) {
#if defined(__SSE2__)
  const auto load = [&](int i) { return _mm_loadu_si128(static_cast<const __m128i*>(in[i])); };
  const auto store = [&](int i, __m128i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * stride), v);
  };
  const __m128i a = _mm_unpacklo_epi32(load(0), load(1)), b = _mm_unpacklo_epi32(load(2), load(3));
  const __m128i c = _mm_unpackhi_epi32(load(0), load(1)), d = _mm_unpackhi_epi32(load(2), load(3));
  store(0, _mm_unpacklo_epi64(a, b));
  store(1, _mm_unpackhi_epi64(a, b));
  store(2, _mm_unpacklo_epi64(c, d));
  store(3, _mm_unpackhi_epi64(c, d));
#else
  for (int i = 0; i < 4; ++i) {
    for (int c = 0; c < 4; ++c) {
      Store32(out + i * stride + 4 * c, Load32(static_cast<const uint8_t*>(in[c]) + 4 * i));
    }
  }
#endif
}

struct Place {
  uint8_t* header;
  uint8_t* block;
  int index;  // of the block in its group
};

inline Place BlockPlace(const GroupShape& shape, uint8_t* panel, int64_t block) {
  const int64_t group_bytes = shape.header_bytes + int64_t{shape.group_blocks} * shape.block_bytes;
  uint8_t* header = panel + block / shape.group_blocks * group_bytes;
  const auto index = static_cast<int>(block % shape.group_blocks);
  return {header, header + shape.header_bytes + int64_t{index} * shape.block_bytes, index};
}

// Panels of types with scale tensors, and one row of an F8 panel as floats: pack_scaled.cc.
bool PackScaled(const PanelSource& source, int count, int64_t cols, uint8_t* panel);
void DecodeF8Row(const uint8_t* panel, int row, int64_t cols, float* out);

}  // namespace deepinfer::cpu
