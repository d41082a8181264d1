// Products of quantised panels on AVX2: vpmaddubsw sums in 16 bits for as many vectors as cannot
// overflow, then in 32 bits. Integers are exact and the float operations of a block are those of
// every other ISA, in the same order; half a panel (8 weight rows) at a time.
#include <immintrin.h>

#include "backend/cpu/avx2/products256.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE [[gnu::always_inline]] static inline

constexpr int kRowsMax = 4;
constexpr int64_t kAhead = 3072;  // bytes of weights prefetched ahead

enum Start256 { kFromZero, kFromMinus8, kFromMinus16, kFromMinus32 };

DI_INLINE __m256i Load256(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
DI_INLINE __m256 Halves256(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
DI_INLINE __m256 Unsigned256(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
DI_INLINE __m256 Signed256(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// Scales and mins of 8 weight rows; high is of elements 16..31 where halves differ.
struct Scales256 {
  __m256 low, high, min;
};

// Vector v of a half block: 4 consecutive elements of K for 8 weight rows. `block` and `header`
// point at the half's first column.
template <int kVector>
DI_INLINE __m256i Nibbles256(const uint8_t* block) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i v = Load256(block + 64 * (kVector & 3));
  return _mm256_and_si256(kVector < 4 ? v : _mm256_srli_epi16(v, 4), low);
}

template <int kVector>
DI_INLINE __m256i FiveBits256(const uint8_t* block) {
  const __m256i h = Load256(block + 256);
  const __m256i moved = kVector < 4 ? _mm256_slli_epi16(h, 4 - (kVector & 3) * (kVector < 4)) : h;
  const __m256i high = kVector <= 4 ? moved : _mm256_srli_epi16(h, kVector > 4 ? kVector - 4 : 0);
  return _mm256_or_si256(Nibbles256<kVector>(block), _mm256_and_si256(high, _mm256_set1_epi8(16)));
}

template <int kVector>
DI_INLINE __m256i SixBits256(const uint8_t* block) {
  const __m256i h = Load256(block + 256 + 64 * (kVector / 4));
  constexpr int kField = kVector & 3;
  const __m256i high = kField == 0   ? _mm256_slli_epi16(h, 4)
                       : kField == 1 ? _mm256_slli_epi16(h, 2)
                       : kField == 2 ? h
                                     : _mm256_srli_epi16(h, 2);
  return _mm256_or_si256(Nibbles256<kVector>(block),
                         _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
}

DI_INLINE void ScaleMinK256(const uint8_t* header, const uint8_t* codes, Scales256* out) {
  out->low = _mm256_mul_ps(Halves256(header), Unsigned256(codes));
  const __m256 min = _mm256_mul_ps(Halves256(header + 32), Unsigned256(codes + 16));
  out->min = _mm256_xor_ps(min, _mm256_set1_ps(-0.0F));
}

// kSum: how many vectors of products may be added in 16 bits; 1 with kSigned.
struct KindQ8_0 {
  static constexpr PackKind kKind = kPackQ8_0;
  static constexpr Start256 kStart = kFromZero;
  static constexpr bool kMin = false, kSigned = true;
  static constexpr int kSum = 1;
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {  // signed bytes
    return _mm256_xor_si256(Load256(block + 64 * kVector), _mm256_set1_epi8(-128));
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int j, Scales256* out) {
    out->low = Halves256(header + 32 * j + 16 * half);
  }
};

struct KindQ4_0 {
  static constexpr PackKind kKind = kPackQ4_0;
  static constexpr Start256 kStart = kFromMinus8;
  static constexpr bool kMin = false, kSigned = false;
  static constexpr int kSum = 8;  // 8 * 2 * 15 * 127 < 2^15
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    return Nibbles256<kVector>(block);
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int j, Scales256* out) {
    out->low = Halves256(header + 32 * j + 16 * half);
  }
};

struct KindQ4_1 {
  static constexpr PackKind kKind = kPackQ4_1;
  static constexpr Start256 kStart = kFromZero;
  static constexpr bool kMin = true, kSigned = false;
  static constexpr int kSum = 8;
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    return Nibbles256<kVector>(block);
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int, Scales256* out) {
    out->low = Halves256(header + 16 * half);
    out->min = Halves256(header + 32 + 16 * half);
  }
};

struct KindQ5_0 {
  static constexpr PackKind kKind = kPackQ5_0;
  static constexpr Start256 kStart = kFromMinus16;
  static constexpr bool kMin = false, kSigned = false;
  static constexpr int kSum = 4;  // 4 * 2 * 31 * 127 < 2^15
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    return FiveBits256<kVector>(block);
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int j, Scales256* out) {
    out->low = Halves256(header + 32 * j + 16 * half);
  }
};

struct KindQ5_1 {
  static constexpr PackKind kKind = kPackQ5_1;
  static constexpr Start256 kStart = kFromZero;
  static constexpr bool kMin = true, kSigned = false;
  static constexpr int kSum = 4;
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    return FiveBits256<kVector>(block);
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int, Scales256* out) {
    out->low = Halves256(header + 16 * half);
    out->min = Halves256(header + 32 + 16 * half);
  }
};

struct KindQ4K {
  static constexpr PackKind kKind = kPackQ4K;
  static constexpr Start256 kStart = kFromZero;
  static constexpr bool kMin = true, kSigned = false;
  static constexpr int kSum = 8;
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    return Nibbles256<kVector>(block);
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int j, Scales256* out) {
    ScaleMinK256(header + 16 * half, header + 64 + 32 * j + 8 * half, out);
  }
};

struct KindQ5K {
  static constexpr PackKind kKind = kPackQ5K;
  static constexpr Start256 kStart = kFromZero;
  static constexpr bool kMin = true, kSigned = false;
  static constexpr int kSum = 4;
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    return FiveBits256<kVector>(block);
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int j, Scales256* out) {
    ScaleMinK256(header + 16 * half, header + 64 + 32 * j + 8 * half, out);
  }
};

struct KindQ6K {
  static constexpr PackKind kKind = kPackQ6K;
  static constexpr Start256 kStart = kFromMinus32;
  static constexpr bool kMin = false, kSigned = false;
  static constexpr int kSum = 2;  // 2 * 2 * 63 * 127 < 2^15
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    return SixBits256<kVector>(block);
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int j, Scales256* out) {
    const __m256 d = Halves256(header + 16 * half);
    out->low = _mm256_mul_ps(d, Signed256(header + 32 + 32 * j + 8 * half));
    out->high = _mm256_mul_ps(d, Signed256(header + 48 + 32 * j + 8 * half));
  }
};

struct KindMXFP4 {
  static constexpr PackKind kKind = kPackMXFP4;
  static constexpr Start256 kStart = kFromMinus16;
  static constexpr bool kMin = false, kSigned = false;
  static constexpr int kSum = 4;  // 4 * 2 * 28 * 127 < 2^15
  template <int kVector>
  DI_INLINE __m256i Vector(const uint8_t* block) {
    // Twice the value, plus 16.
    const __m256i table =
        _mm256_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4, 16, 17, 18,
                         19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
    return _mm256_shuffle_epi8(table, Nibbles256<kVector>(block));
  }
  DI_INLINE void Scales(const uint8_t* header, int half, int j, Scales256* out) {
    // 2^(e - 128) by its bits; the two smallest are subnormal.
    const __m256i e = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(header + 16 * j + 8 * half)));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    out->low = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, small));
  }
};

DI_INLINE __m256i BroadcastInt(const void* p) {
  return _mm256_set1_epi32(*static_cast<const int32_t*>(p));
}

DI_INLINE const ActBlock* InputBlock(const uint8_t* row, int64_t b) {
  return reinterpret_cast<const ActBlock*>(row) + b;
}

// Keeps the compiler from turning a chain of sums into a tree, which would need a register for
// every product.
DI_INLINE void Pin(__m256i* v) { __asm__ volatile("" : "+x"(*v)); }

// Products of vector kVector with kRows rows, added in 16 bits (signed kinds: in 32).
template <typename Kind, int kVector, int kRows>
DI_INLINE void AddVector(const uint8_t* block, const uint8_t* const* x, int64_t b, __m256i* words,
                         __m256i* sum) {
  const __m256i q = Kind::template Vector<kVector>(block);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m256i xs = BroadcastInt(InputBlock(x[r], b)->q + 4 * kVector);
    if (Kind::kSigned) {
      const __m256i product = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(xs, q));
      sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(product, ones));
      Pin(&sum[r]);
    } else {
      const __m256i product = _mm256_maddubs_epi16(q, xs);
      words[r] = kVector % Kind::kSum == 0 ? product : _mm256_add_epi16(words[r], product);
      Pin(&words[r]);
      if (kVector % Kind::kSum == Kind::kSum - 1) {
        sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(words[r], ones));
      }
    }
  }
  // The next vector loads anew what it needs: kept, it would not fit the registers.
  __asm__ volatile("" ::: "memory");
}

template <typename Kind, int kRows>
DI_INLINE void StartSums(const uint8_t* const* x, int64_t b, int part, __m256i* sum) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const ActBlock* block = InputBlock(x[r], b);
    sum[r] = _mm256_setzero_si256();
    if (Kind::kStart == kFromMinus8) sum[r] = BroadcastInt(&block->minus8);
    if (Kind::kStart == kFromMinus16) sum[r] = BroadcastInt(&block->minus16);
    if (Kind::kStart == kFromMinus32) sum[r] = BroadcastInt(&block->minus32[part]);
  }
}

template <int kRows>
DI_INLINE void Fold(const uint8_t* const* x, int64_t b, __m256 w_scale, const __m256i* sum,
                    __m256* y) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m256 scale = _mm256_mul_ps(w_scale, _mm256_set1_ps(InputBlock(x[r], b)->scale));
    y[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), scale, y[r]);
  }
}

template <typename Kind, int kRows>
DI_INLINE void AddBlock(const uint8_t* block, const Scales256& scales, const uint8_t* const* x,
                        int64_t b, __m256* y) {
  __m256i sum[kRows], words[kRows];
  StartSums<Kind, kRows>(x, b, 0, sum);
  AddVector<Kind, 0, kRows>(block, x, b, words, sum);
  AddVector<Kind, 1, kRows>(block, x, b, words, sum);
  AddVector<Kind, 2, kRows>(block, x, b, words, sum);
  AddVector<Kind, 3, kRows>(block, x, b, words, sum);
  if (Kind::kStart == kFromMinus32) {
    Fold<kRows>(x, b, scales.low, sum, y);
    StartSums<Kind, kRows>(x, b, 1, sum);
  }
  AddVector<Kind, 4, kRows>(block, x, b, words, sum);
  AddVector<Kind, 5, kRows>(block, x, b, words, sum);
  AddVector<Kind, 6, kRows>(block, x, b, words, sum);
  AddVector<Kind, 7, kRows>(block, x, b, words, sum);
  Fold<kRows>(x, b, Kind::kStart == kFromMinus32 ? scales.high : scales.low, sum, y);
  if (Kind::kMin) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      y[r] = _mm256_fmadd_ps(scales.min, _mm256_set1_ps(InputBlock(x[r], b)->scaled_sum), y[r]);
    }
  }
}

// Adds the rests of the rows whose block b is refined; a row has `blocks` blocks.
template <typename Kind, int kRows>
DI_INLINE void AddRests(const uint8_t* block, const Scales256& scales, const uint8_t* const* x,
                        int64_t blocks, int64_t b, __m256* y) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if (InputBlock(x[r], b)->refined == 0) continue;
    const uint8_t* rests[1] = {x[r] + blocks * int64_t{sizeof(ActBlock)}};
    AddBlock<Kind, 1>(block, scales, rests, b, y + r);
  }
}

// Both halves of a panel times kRows input rows.
template <typename Kind, int kRows>
void Tile(const uint8_t* w, int64_t blocks, const uint8_t* const* rows, int64_t columns, float* y,
          int64_t y_stride) {
  constexpr GroupShape kShape = kGroupShapes[Kind::kKind];
  __m256 sum[2][kRows];
  const uint8_t* x[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    sum[0][r] = sum[1][r] = _mm256_setzero_ps();
    x[r] = rows[r];
  }
  for (int64_t b = 0; b < blocks;) {
    const uint8_t* header = w;
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < blocks; ++j, ++b) {
#pragma GCC unroll 8
      for (int line = 0; line < kShape.block_bytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Scales256 scales;
        Kind::Scales(header, half, j, &scales);
        AddBlock<Kind, kRows>(w + 32 * half, scales, x, b, sum[half]);
        AddRests<Kind, kRows>(w + 32 * half, scales, x, blocks, b, sum[half]);
      }
      w += kShape.block_bytes;
    }
  }
  for (int r = 0; r < kRows; ++r) StoreColumns256(sum[0][r], sum[1][r], columns, y + r * y_stride);
}

typedef void (*TileFn)(const uint8_t*, int64_t, const uint8_t* const*, int64_t, float*, int64_t);

template <typename Kind>
constexpr TileFn kTiles[kRowsMax + 1] = {nullptr, Tile<Kind, 1>, Tile<Kind, 2>, Tile<Kind, 3>,
                                         Tile<Kind, 4>};

template <typename Kind>
void Product(const ProductArgs& args) {
  for (int64_t n = args.n_begin; n < args.n_end; n += kQuantPanel) {
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    for (int64_t i = 0; i < args.m; i += kRowsMax) {
      const int64_t left = args.m - i;
      const int rows = static_cast<int>(left < kRowsMax ? left : kRowsMax);
      const uint8_t* x[kRowsMax];
      for (int r = 0; r < rows; ++r) {
        const int64_t row = args.input_rows == nullptr ? i + r : args.input_rows[i + r];
        x[r] = args.act + row * args.act_stride;
      }
      kTiles<Kind>[rows](panel, args.steps, x, args.n_end - n, args.y + i * args.y_stride + n,
                         args.y_stride);
    }
  }
}

}  // namespace

void ProductQ8_0Avx2(const ProductArgs& args) { Product<KindQ8_0>(args); }
void ProductQ4_0Avx2(const ProductArgs& args) { Product<KindQ4_0>(args); }
void ProductQ4_1Avx2(const ProductArgs& args) { Product<KindQ4_1>(args); }
void ProductQ5_0Avx2(const ProductArgs& args) { Product<KindQ5_0>(args); }
void ProductQ5_1Avx2(const ProductArgs& args) { Product<KindQ5_1>(args); }
void ProductQ4KAvx2(const ProductArgs& args) { Product<KindQ4K>(args); }
void ProductQ5KAvx2(const ProductArgs& args) { Product<KindQ5K>(args); }
void ProductQ6KAvx2(const ProductArgs& args) { Product<KindQ6K>(args); }
void ProductMXFP4Avx2(const ProductArgs& args) { Product<KindMXFP4>(args); }

}  // namespace deepinfer::cpu
