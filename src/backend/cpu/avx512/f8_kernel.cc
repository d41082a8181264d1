// Products of FP8 panels on AVX-512 BF16: e4m3 codes become bf16 (exactly) by table, vdpbf16ps sums
// a block of 32 in two chains, the block's scale multiplies the sum. One output element, whatever
// the number of rows, for each block ascending:
//   a = pairs 0 2 .. 14, b = pairs 1 3 .. 15 (each from zero, ascending);  y = fma(a + b, scale, y)
// More rows than kDirectRows read panels decoded into the first-level cache; partial sums pass
// through y in memory. Neither changes a bit.
#include <immintrin.h>

#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE [[gnu::always_inline]] static inline

constexpr int kDirectRows = 8;
constexpr int kRowsMax = 8;
constexpr int kChunkBlocks = 16;      // blocks of K that are decoded at once
constexpr int64_t kAheadNear = 4096;  // bytes of weights prefetched ahead
constexpr GroupShape kShape = kGroupShapes[kPackF8];
constexpr int64_t kGroupBytes =
    kShape.header_bytes + int64_t{kShape.group_blocks} * kShape.block_bytes;

// The two bytes of the bf16 of a code without its sign.
struct alignas(64) TableBytes {
  uint8_t high[128], low[128];
};

constexpr TableBytes MakeTables() {
  TableBytes t = {};
  for (uint32_t code = 0; code < 128; ++code) {
    uint32_t bits = 0;
    if (code >= 8) {
      bits = (code << 4) + (120U << 7);
    } else if (code > 0) {  // m * 2^-9: the leading bit of m becomes the exponent
      const uint32_t top = code >= 4 ? 2 : (code >= 2 ? 1 : 0);
      bits = ((118U + top) << 7) | ((code << (7 - top)) & 0x7fU);
    }
    t.high[code] = static_cast<uint8_t>(bits >> 8);
    t.low[code] = static_cast<uint8_t>(bits & 0xffU);
  }
  return t;
}
constexpr TableBytes kTables = MakeTables();

struct Tables {
  __m512i high[2], low[2];
};

DI_INLINE Tables LoadTables() {
  Tables t;
  for (int i = 0; i < 2; ++i) {
    t.high[i] = _mm512_load_si512(kTables.high + 64 * i);
    t.low[i] = _mm512_load_si512(kTables.low + 64 * i);
  }
  return t;
}

// One vector of codes as bf16: pairs of elements 0 1 and of elements 2 3 of the 16 weight rows.
DI_INLINE void Decode(const Tables& t, __m512i codes, __m512i* first, __m512i* second) {
  __m512i high = _mm512_permutex2var_epi8(t.high[0], codes, t.high[1]);
  const __m512i low = _mm512_permutex2var_epi8(t.low[0], codes, t.low[1]);
  high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xf8);  // a | (b & c)
  *first =
      _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 8), low, _mm512_set1_epi16(0x00ff), 0xf8);
  // (a & c) | b
  *second = _mm512_ternarylogic_epi32(high, _mm512_srli_epi16(low, 8),
                                      _mm512_set1_epi16(static_cast<int16_t>(0xff00)), 0xec);
}

// 2^(e - 127) by its bits; the smallest is subnormal.
DI_INLINE __m512 Scales(const uint8_t* header, int j) {
  const __m512i e =
      _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(header + 16 * j)));
  const __mmask16 zero = _mm512_testn_epi32_mask(e, e);
  return _mm512_castsi512_ps(
      _mm512_mask_mov_epi32(_mm512_slli_epi32(e, 23), zero, _mm512_set1_epi32(0x00400000)));
}

DI_INLINE __m512 Add(__m512 sum, __m512i w, const uint8_t* x) {
  const __m512i pair = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x));
  return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)pair);
}

struct TileArgs {
  const uint8_t* w;     // panel at the first block of the chunk, or the decoded chunk
  const float* scales;  // of the decoded chunk
  int64_t blocks;
  const uint8_t* const* x;  // rows at the first block
  float* y;
  int64_t y_stride;
  __mmask16 mask;
  bool first;
};

template <int kRows>
DI_INLINE void LoadSums(const TileArgs& args, __m512* y) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    y[r] = args.first ? _mm512_setzero_ps()
                      : _mm512_maskz_loadu_ps(args.mask, args.y + r * args.y_stride);
  }
}

template <int kRows>
DI_INLINE void StoreSums(const TileArgs& args, const __m512* y) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    _mm512_mask_storeu_ps(args.y + r * args.y_stride, args.mask, y[r]);
  }
}

// Straight from the packed panel.
template <int kRows>
void DirectTile(const TileArgs& args) {
  const Tables tables = LoadTables();
  __m512 y[kRows];
  LoadSums<kRows>(args, y);
  const uint8_t* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = args.x[r];
  const uint8_t* w = args.w;
  for (int64_t b = 0; b < args.blocks;) {
    const uint8_t* header = w;
    _mm_prefetch(reinterpret_cast<const char*>(header + kAheadNear), _MM_HINT_T0);
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < args.blocks; ++j, ++b) {
      __m512 even[kRows], odd[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAheadNear + 64 * v), _MM_HINT_T0);
        __m512i first, second;
        Decode(tables, _mm512_load_si512(w + 64 * v), &first, &second);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          even[r] = Add(even[r], first, x[r] + 8 * v);
          odd[r] = Add(odd[r], second, x[r] + 8 * v + 4);
        }
      }
      const __m512 scale = Scales(header, j);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        y[r] = _mm512_fmadd_ps(_mm512_add_ps(even[r], odd[r]), scale, y[r]);
        x[r] += 64;
      }
      w += kShape.block_bytes;
    }
  }
  StoreSums<kRows>(args, y);
}

// From a decoded chunk: 16 vectors of pairs a block.
template <int kRows>
void StagedTile(const TileArgs& args) {
  __m512 y[kRows];
  LoadSums<kRows>(args, y);
  const uint8_t* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = args.x[r];
  const uint8_t* w = args.w;
  int64_t at = 0;
  for (int64_t b = 0; b < args.blocks; ++b, w += 1024, at += 64) {
    __m512 even[kRows], odd[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      const __m512i first = _mm512_load_si512(w + 128 * v);
      const __m512i second = _mm512_load_si512(w + 128 * v + 64);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        even[r] = Add(even[r], first, x[r] + at + 8 * v);
        odd[r] = Add(odd[r], second, x[r] + at + 8 * v + 4);
      }
    }
    const __m512 scale = _mm512_load_ps(args.scales + 16 * b);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      y[r] = _mm512_fmadd_ps(_mm512_add_ps(even[r], odd[r]), scale, y[r]);
    }
  }
  StoreSums<kRows>(args, y);
}

typedef void (*TileFn)(const TileArgs&);
constexpr TileFn kDirect[kDirectRows + 1] = {nullptr,       DirectTile<1>, DirectTile<2>,
                                             DirectTile<3>, DirectTile<4>, DirectTile<5>,
                                             DirectTile<6>, DirectTile<7>, DirectTile<8>};
constexpr TileFn kStaged[kRowsMax + 1] = {nullptr,       StagedTile<1>, StagedTile<2>,
                                          StagedTile<3>, StagedTile<4>, StagedTile<5>,
                                          StagedTile<6>, StagedTile<7>, StagedTile<8>};

struct DecodedChunk {
  alignas(64) uint8_t pairs[kChunkBlocks * 1024];
  alignas(64) float scales[kChunkBlocks * 16];
};

void DecodeChunk(const uint8_t* w, int64_t blocks, DecodedChunk* out) {
  const Tables tables = LoadTables();
  for (int64_t b = 0; b < blocks;) {
    const uint8_t* header = w;
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < blocks; ++j, ++b, w += kShape.block_bytes) {
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(w + 4 * kAheadNear + 64 * v), _MM_HINT_T1);
        __m512i first, second;
        Decode(tables, _mm512_load_si512(w + 64 * v), &first, &second);
        _mm512_store_si512(out->pairs + 1024 * b + 128 * v, first);
        _mm512_store_si512(out->pairs + 1024 * b + 128 * v + 64, second);
      }
      _mm512_store_ps(out->scales + 16 * b, Scales(header, j));
    }
  }
}

DI_INLINE void InputRows(const ProductArgs& args, int64_t i, int rows, int64_t b,
                         const uint8_t** x) {
  for (int r = 0; r < rows; ++r) {
    const int64_t row = args.input_rows == nullptr ? i + r : args.input_rows[i + r];
    x[r] = args.act + row * args.act_stride + 64 * b;
  }
}

}  // namespace

void ProductF8Avx512(const ProductArgs& args) {
  DecodedChunk chunk;
  const uint8_t* x[kRowsMax];
  for (int64_t n = args.n_begin; n < args.n_end; n += kQuantPanel) {
    const int64_t left = args.n_end - n;
    const auto mask = static_cast<__mmask16>(left >= kQuantPanel ? 0xffff : (1U << left) - 1U);
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    if (args.m <= kDirectRows) {
      InputRows(args, 0, static_cast<int>(args.m), 0, x);
      kDirect[args.m]({panel, nullptr, args.steps, x, args.y + n, args.y_stride, mask, true});
      continue;
    }
    for (int64_t b = 0; b < args.steps; b += kChunkBlocks) {
      const int64_t blocks = args.steps - b < kChunkBlocks ? args.steps - b : kChunkBlocks;
      DecodeChunk(panel + b / kShape.group_blocks * kGroupBytes, blocks, &chunk);
      for (int64_t i = 0; i < args.m; i += kRowsMax) {
        const int rows = static_cast<int>(args.m - i < kRowsMax ? args.m - i : kRowsMax);
        InputRows(args, i, rows, b, x);
        kStaged[rows]({chunk.pairs, chunk.scales, blocks, x, args.y + i * args.y_stride + n,
                       args.y_stride, mask, b == 0});
      }
    }
  }
}

}  // namespace deepinfer::cpu
