// Products of quantised panels on AVX-512 VNNI. One output element, whatever the number of rows:
//   for each block ascending: y = fma(float(start + sum of u8 * s8), w.scale * x.scale, y)
//                             y = fma(w.min, x.scaled_sum, y)
// K is cut into chunks whose partial sums pass through y in memory, which changes no bit.
#include "backend/cpu/avx512/decode512.h"
#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

constexpr int kRowsMax = 12;      // input rows of one register tile
constexpr int kDirectRows = 2;    // up to here rows are read in place, not staged
constexpr int kChunkBlocks = 32;  // blocks of K of one pass
constexpr int kGroupPanels = 8;   // panels that share one staged input tile
constexpr int kStageStride = kChunkBlocks * 64 + 64;  // bytes; the pad spreads cache sets

DI_INLINE __m512 Broadcast(const float* p) { return _mm512_set1_ps(*p); }
DI_INLINE __m512i BroadcastInt(const void* p) {
  return _mm512_set1_epi32(*static_cast<const int32_t*>(p));
}

// Bytes ahead that every pass prefetches into the first-level cache.
constexpr int64_t kAheadNear = 3072;

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

// What a tile works on: `blocks` blocks of a panel times up to kRowsMax input rows.
struct TileArgs {
  const uint8_t* w;  // panel at the first block of the chunk
  int64_t blocks;
  const uint8_t* const* x;  // input rows at the first block; staged: x[0] alone
  float* y;
  int64_t y_stride;
  __mmask16 mask;  // weight rows that exist
  bool first;      // first chunk: y starts at zero
  int64_t ahead;   // staged: every block prefetches `ahead_lines` lines from here
  int ahead_lines;
};

template <bool kStaged>
DI_INLINE const ActBlock* InputBlock(const uint8_t* const* x, int r, int64_t b) {
  const uint8_t* row = kStaged ? x[0] + r * kStageStride : x[r];
  return reinterpret_cast<const ActBlock*>(row) + b;
}

template <int kRows>
DI_INLINE void LoadSums(const TileArgs& args, __m512* sum) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    sum[r] = args.first ? _mm512_setzero_ps()
                        : _mm512_maskz_loadu_ps(args.mask, args.y + r * args.y_stride);
  }
}

template <int kRows>
DI_INLINE void StoreSums(const TileArgs& args, const __m512* sum) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_mask_storeu_ps(args.y + r * args.y_stride, args.mask, sum[r]);
  }
}

// Straight from the packed panel.
template <typename Kind, int kRows, bool kStaged>
void Tile(const TileArgs& args) {
  constexpr GroupShape kShape = kGroupShapes[Kind::kKind];
  __m512 sum[kRows];
  LoadSums<kRows>(args, sum);
  const uint8_t* w = args.w;
  for (int64_t b = 0; b < args.blocks;) {
    const uint8_t* header = w;
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < args.blocks; ++j, ++b) {
      Block512 block;
      Kind::Load(header, w, j, &block);
#pragma GCC unroll 8
      for (int line = 0; line < kShape.block_bytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAheadNear + line), _MM_HINT_T0);
      }
      for (int line = 0; line < (kStaged ? args.ahead_lines : 0); ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(w + args.ahead + 64 * line), _MM_HINT_T1);
      }
      constexpr int kStep = kRows % 4 == 0 ? 4 : (kRows % 3 == 0 ? 3 : kRows);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r += kStep) {
        AddBlock<Kind, kStep>(
            block, [&](int i) { return InputBlock<kStaged>(args.x, r + i, b); }, sum + r);
      }
      w += kShape.block_bytes;
    }
  }
  StoreSums<kRows>(args, sum);
}

typedef void (*TileFn)(const TileArgs&);

template <typename Kind>
constexpr TileFn kDirectTiles[kDirectRows + 1] = {nullptr, Tile<Kind, 1, false>,
                                                  Tile<Kind, 2, false>};

// By rows, for tiles of staged input; sizes in between are cut in two.
template <typename Kind>
constexpr TileFn kStagedTiles[kRowsMax + 1] = {nullptr,
                                               Tile<Kind, 1, true>,
                                               Tile<Kind, 2, true>,
                                               Tile<Kind, 3, true>,
                                               Tile<Kind, 4, true>,
                                               nullptr,
                                               Tile<Kind, 6, true>,
                                               nullptr,
                                               Tile<Kind, 8, true>,
                                               nullptr,
                                               nullptr,
                                               nullptr,
                                               Tile<Kind, 12, true>};

DI_INLINE int TileRows(int64_t left) {
  if (left >= 12) return 12;
  if (left >= 8) return 8;
  if (left >= 6) return 6;
  return left > 4 ? 4 : static_cast<int>(left);
}

DI_INLINE int64_t InputRow(const ProductArgs& args, int64_t i) {
  return args.input_rows == nullptr ? i : args.input_rows[i];
}

DI_INLINE __mmask16 RowMask(const ProductArgs& args, int64_t n) {
  const int64_t left = args.n_end - n;
  return static_cast<__mmask16>(left >= kQuantPanel ? 0xffff : (1U << left) - 1U);
}

template <typename Kind>
DI_INLINE int64_t BlockOffset(int64_t b) {  // b at a group boundary
  constexpr GroupShape kShape = kGroupShapes[Kind::kKind];
  return b / kShape.group_blocks *
         (kShape.header_bytes + int64_t{kShape.group_blocks} * kShape.block_bytes);
}

template <typename Kind>
void FewRows(const ProductArgs& args) {
  const uint8_t* x[kDirectRows];
  for (int64_t i = 0; i < args.m; ++i) x[i] = args.act + InputRow(args, i) * args.act_stride;
  for (int64_t n = args.n_begin; n < args.n_end; n += kQuantPanel) {
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    kDirectTiles<Kind>[args.m](
        {panel, args.steps, x, args.y + n, args.y_stride, RowMask(args, n), true, 0, 0});
  }
}

// `rows` input rows, blocks [b, b + blocks), side by side in `stage`.
DI_INLINE void Stage(const ProductArgs& args, int64_t i, int rows, int64_t b, int64_t blocks,
                     uint8_t* stage) {
  for (int r = 0; r < rows; ++r) {
    const uint8_t* from = args.act + InputRow(args, i + r) * args.act_stride + b * 64;
    uint8_t* to = stage + r * kStageStride;
    for (int64_t k = 0; k < blocks; ++k) {
      _mm512_store_si512(to + 64 * k, _mm512_load_si512(from + 64 * k));
    }
  }
}

// One chunk of K for a group of panels and every input row. Meanwhile the next group of panels is
// fetched into the second-level cache, spread evenly over the passes, so that reading memory and
// computing overlap.
template <typename Kind>
void GroupChunk(const ProductArgs& args, int64_t n_begin, int64_t n_end, int64_t b,
                int64_t blocks) {
  constexpr int kLines = kGroupShapes[Kind::kKind].block_bytes / 64;
  alignas(64) uint8_t stage[kRowsMax * kStageStride];
  const uint8_t* x[1] = {stage};
  const int64_t offset = BlockOffset<Kind>(b);
  const int64_t passes = (args.m + kRowsMax - 1) / kRowsMax;
  const int pass_lines = static_cast<int>((kLines + passes - 1) / passes);
  int line = 0;
  for (int64_t i = 0; i < args.m;) {
    const int rows = TileRows(args.m - i);
    Stage(args, i, rows, b, blocks, stage);
    const int ahead_lines = kLines - line < pass_lines ? kLines - line : pass_lines;
    for (int64_t n = n_begin; n < n_end; n += kQuantPanel) {
      const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
      kStagedTiles<Kind>[rows]({panel + offset, blocks, x, args.y + i * args.y_stride + n,
                                args.y_stride, RowMask(args, n), b == 0,
                                kGroupPanels * args.panel_bytes + 64 * line, ahead_lines});
    }
    line += ahead_lines;
    i += rows;
  }
}

template <typename Kind>
void Product(const ProductArgs& args) {
  if (args.m <= kDirectRows) {
    FewRows<Kind>(args);
    return;
  }
  for (int64_t n = args.n_begin; n < args.n_end; n += kGroupPanels * kQuantPanel) {
    const int64_t end = n + kGroupPanels * kQuantPanel;
    const int64_t n_end = end < args.n_end ? end : args.n_end;
    for (int64_t b = 0; b < args.steps; b += kChunkBlocks) {
      const int64_t left = args.steps - b;
      GroupChunk<Kind>(args, n, n_end, b, left < kChunkBlocks ? left : kChunkBlocks);
    }
  }
}

}  // namespace

void ProductQ8_0Avx512(const ProductArgs& args) { Product<KindQ8_0>(args); }
void ProductQ4_0Avx512(const ProductArgs& args) { Product<KindQ4_0>(args); }
void ProductQ4_1Avx512(const ProductArgs& args) { Product<KindQ4_1>(args); }
void ProductQ5_0Avx512(const ProductArgs& args) { Product<KindQ5_0>(args); }
void ProductQ5_1Avx512(const ProductArgs& args) { Product<KindQ5_1>(args); }
void ProductQ4KAvx512(const ProductArgs& args) { Product<KindQ4K>(args); }
void ProductQ5KAvx512(const ProductArgs& args) { Product<KindQ5K>(args); }
void ProductQ6KAvx512(const ProductArgs& args) { Product<KindQ6K>(args); }
void ProductMXFP4Avx512(const ProductArgs& args) { Product<KindMXFP4>(args); }

}  // namespace deepinfer::cpu
