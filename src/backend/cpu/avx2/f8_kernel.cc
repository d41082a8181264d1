// Products of FP8 panels on AVX2: e4m3 codes become half floats (2^8 smaller, exactly) by shifts,
// then float32; the block's scale, 2^8 larger, multiplies the sum of a block. One output element,
// whatever the number of rows, for each block ascending:
//   a = even elements, b = odd elements (each from zero, ascending);  y = fma(a + b, scale, y)
// More rows than one read blocks decoded to float32; that changes no bit.
#include "backend/cpu/avx2/products256.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE [[gnu::always_inline]] static inline

constexpr int kRowsMax = 3;          // input rows of a tile: twelve sums
constexpr int kChunkBlocks = 8;      // blocks of K that are decoded at once
constexpr int64_t kAhead = 3072;     // bytes of weights prefetched ahead
constexpr int kDecodedFloats = 512;  // of a block: element after element, 16 weight rows each
constexpr GroupShape kShape = kGroupShapes[kPackF8];
constexpr int64_t kGroupBytes =
    kShape.header_bytes + int64_t{kShape.group_blocks} * kShape.block_bytes;

// Sixteen codes, one in each 16-bit item, as two vectors of float32.
DI_INLINE void Floats(__m256i codes, __m256* low, __m256* high) {
  const __m256i moved = _mm256_slli_epi16(codes, 7);
  // The sign is one bit too low: adding it to itself carries it up.
  const __m256i sign = _mm256_and_si256(moved, _mm256_set1_epi16(0x4000));
  const __m256i half = _mm256_add_epi16(moved, sign);
  *low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
  *high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}

// One vector of a half panel (8 weight rows): w[e] are the 8 values of element e, times 2^-8.
DI_INLINE void Decode(const uint8_t* codes, __m256* w) {
  // Bytes of a row are elements 0 2 1 3: gather each element of the four rows of a lane.
  const __m256i gather = _mm256_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15, 0,
                                          4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
  const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i by_element = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(v, gather),
                                                         _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  Floats(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(by_element)), &w[0], &w[1]);
  Floats(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(by_element, 1)), &w[2], &w[3]);
}

// 2^(e - 119) by its bits: the smallest sum of bits is a normal number, the largest an infinity.
DI_INLINE __m256 Scales(const uint8_t* header, int j, int half) {
  const __m256i e = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(header + 16 * j + 8 * half)));
  const __m256i sum =
      _mm256_min_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(8)), _mm256_set1_epi32(255));
  return _mm256_castsi256_ps(_mm256_slli_epi32(sum, 23));
}

// Two neighbours of an input row in every lane.
DI_INLINE void Pair(const uint8_t* x, __m256* even, __m256* odd) {
  const __m256i pair = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(x));
  *even = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  *odd =
      _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
}

DI_INLINE void Fold(__m256 even, __m256 odd, __m256 scale, __m256* y) {
  *y = _mm256_fmadd_ps(_mm256_add_ps(even, odd), scale, *y);
}

// 32 elements of an input row as float32.
DI_INLINE void FloatRow(const uint8_t* x, float* out) {
  for (int i = 0; i < kBlock; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 2 * i));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
    _mm256_store_ps(out + i, _mm256_castsi256_ps(wide));
  }
}

// Products of pairs of neighbours of four weight rows each: lanes are even and odd elements in
// turn.
DI_INLINE void AddPairs(__m256i half, __m256 x, __m256* low, __m256* high) {
  *low = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), x, *low);
  *high = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), x, *high);
}

DI_INLINE __m256 BroadcastPair(const float* x) {
  return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
}

// One input row straight from the panel. Shifting a code down from the top of 16 bits brings its
// sign along; no byte changes its place, for even and odd sums lie side by side.
void DirectRow(const uint8_t* w, int64_t blocks, const uint8_t* x, int64_t columns, float* out) {
  const __m256i half_bits = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
  alignas(32) float xs[kBlock];
  __m256 y[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t b = 0; b < blocks;) {
    const uint8_t* header = w;
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < blocks; ++j, ++b, w += kShape.block_bytes) {
      FloatRow(x, xs);
      x += 2 * kBlock;
      __m256 sums[4];
      sums[0] = sums[1] = sums[2] = sums[3] = _mm256_setzero_ps();
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + 64 * v), _MM_HINT_T0);
        const __m256 first = BroadcastPair(xs + 4 * v), second = BroadcastPair(xs + 4 * v + 2);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const __m256i codes =
              _mm256_load_si256(reinterpret_cast<const __m256i*>(w + 64 * v + 32 * h));
          const __m256i low = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 1);
          const __m256i high = _mm256_srai_epi16(codes, 1);
          AddPairs(_mm256_and_si256(low, half_bits), first, &sums[2 * h], &sums[2 * h + 1]);
          AddPairs(_mm256_and_si256(high, half_bits), second, &sums[2 * h], &sums[2 * h + 1]);
        }
      }
      for (int h = 0; h < 2; ++h) {
        // Even and odd sums of rows 0 1 4 5 | 2 3 6 7.
        const __m256d both = _mm256_castps_pd(_mm256_hadd_ps(sums[2 * h], sums[2 * h + 1]));
        const __m256 sum = _mm256_castpd_ps(_mm256_permute4x64_pd(both, 0xd8));
        y[h] = _mm256_fmadd_ps(sum, Scales(header, j, h), y[h]);
      }
    }
  }
  StoreColumns256(y[0], y[1], columns, out);
}

struct DecodedChunk {
  alignas(32) float w[kChunkBlocks * kDecodedFloats];
  alignas(32) float scales[kChunkBlocks * 16];
};

void DecodeChunk(const uint8_t* w, int64_t blocks, DecodedChunk* out) {
  for (int64_t b = 0; b < blocks;) {
    const uint8_t* header = w;
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < blocks; ++j, ++b, w += kShape.block_bytes) {
      for (int v = 0; v < 8; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + 64 * v), _MM_HINT_T0);
        for (int h = 0; h < 2; ++h) {
          __m256 e[4];
          Decode(w + 64 * v + 32 * h, e);
          float* to = out->w + kDecodedFloats * b + 64 * v + 8 * h;
          for (int i = 0; i < 4; ++i) _mm256_store_ps(to + 16 * i, e[i]);
        }
      }
      for (int h = 0; h < 2; ++h) {
        _mm256_store_ps(out->scales + 16 * b + 8 * h, Scales(header, j, h));
      }
    }
  }
}

template <int kRows>
void StagedTile(const DecodedChunk& chunk, int64_t blocks, const uint8_t* const* rows, bool first,
                int64_t columns, float* out, int64_t stride) {
  alignas(32) float sums[16];
  __m256 y[kRows][2];
  const uint8_t* x[kRows];
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
    x[r] = rows[r];
    y[r][0] = y[r][1] = _mm256_setzero_ps();
    if (first) continue;
    for (int64_t c = 0; c < 16; ++c) sums[c] = c < columns ? out[r * stride + c] : 0.0F;
    y[r][0] = _mm256_load_ps(sums);
    y[r][1] = _mm256_load_ps(sums + 8);
  }
  const float* w = chunk.w;
  for (int64_t b = 0; b < blocks; ++b) {
    __m256 even[kRows][2], odd[kRows][2];
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = _mm256_setzero_ps();
    }
    for (int64_t p = 0; p < 16; ++p, w += 32) {
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) {
        __m256 x_even, x_odd;
        Pair(x[r] + 64 * b + 4 * p, &x_even, &x_odd);
        even[r][0] = _mm256_fmadd_ps(_mm256_load_ps(w), x_even, even[r][0]);
        even[r][1] = _mm256_fmadd_ps(_mm256_load_ps(w + 8), x_even, even[r][1]);
        odd[r][0] = _mm256_fmadd_ps(_mm256_load_ps(w + 16), x_odd, odd[r][0]);
        odd[r][1] = _mm256_fmadd_ps(_mm256_load_ps(w + 24), x_odd, odd[r][1]);
      }
    }
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      for (int h = 0; h < 2; ++h) {
        Fold(even[r][h], odd[r][h], _mm256_load_ps(chunk.scales + 16 * b + 8 * h), &y[r][h]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) StoreColumns256(y[r][0], y[r][1], columns, out + r * stride);
}

typedef void (*TileFn)(const DecodedChunk&, int64_t, const uint8_t* const*, bool, int64_t, float*,
                       int64_t);
constexpr TileFn kTiles[kRowsMax + 1] = {nullptr, StagedTile<1>, StagedTile<2>, StagedTile<3>};

DI_INLINE const uint8_t* InputRow(const ProductArgs& args, int64_t i) {
  const int64_t row = args.input_rows == nullptr ? i : args.input_rows[i];
  return args.act + row * args.act_stride;
}

}  // namespace

void ProductF8Avx2(const ProductArgs& args) {
  DecodedChunk chunk;
  for (int64_t n = args.n_begin; n < args.n_end; n += kQuantPanel) {
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    const int64_t columns = args.n_end - n;
    if (args.m == 1) {
      DirectRow(panel, args.steps, InputRow(args, 0), columns, args.y + n);
      continue;
    }
    for (int64_t b = 0; b < args.steps; b += kChunkBlocks) {
      const int64_t blocks = args.steps - b < kChunkBlocks ? args.steps - b : kChunkBlocks;
      DecodeChunk(panel + b / kShape.group_blocks * kGroupBytes, blocks, &chunk);
      for (int64_t i = 0; i < args.m; i += kRowsMax) {
        const int rows = static_cast<int>(args.m - i < kRowsMax ? args.m - i : kRowsMax);
        const uint8_t* x[kRowsMax];
        for (int r = 0; r < rows; ++r) x[r] = InputRow(args, i + r) + 64 * b;
        kTiles[rows](chunk, blocks, x, b == 0, columns, args.y + i * args.y_stride + n,
                     args.y_stride);
      }
    }
  }
}

}  // namespace deepinfer::cpu
