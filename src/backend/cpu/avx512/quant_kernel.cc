// Products of quantised panels on AVX-512 VNNI. One output element, whatever the number of rows:
//   for each block ascending: y = fma(float(start + sum of u8 * s8), w.scale * x.scale, y)
//                             y = fma(w.min, x.scaled_sum, y)
// K is cut into chunks whose partial sums pass through y in memory, which changes no bit.
#include "backend/cpu/avx512/decode512.h"
#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

constexpr int kRowsMax = 12;      // input rows of one register tile
constexpr int kDirectRows = 4;    // up to here rows are read in place, not staged
constexpr int kDecodeRows = 25;   // from here panels are decoded to scratch memory first
constexpr int kChunkBlocks = 32;  // blocks of K of one pass
constexpr int kGroupPanels = 8;   // panels that share one staged input tile
constexpr int kStageStride = kChunkBlocks * 64 + 64;  // bytes; the pad spreads cache sets

DI_INLINE __m512 Broadcast(const float* p) { return _mm512_set1_ps(*p); }
DI_INLINE __m512i BroadcastInt(const void* p) {
  return _mm512_set1_epi32(*static_cast<const int32_t*>(p));
}

// Adds one block of 16 weight rows times one input row.
template <typename Kind>
DI_INLINE __m512 AddBlock(const Block512& w, const ActBlock* x, __m512 y) {
  if constexpr (Kind::kStart == kFromMinus32) {
    __m512i low = BroadcastInt(&x->minus32[0]), high = BroadcastInt(&x->minus32[1]);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      low = _mm512_dpbusd_epi32(low, w.q[v], BroadcastInt(x->q + 4 * v));
      high = _mm512_dpbusd_epi32(high, w.q[v + 4], BroadcastInt(x->q + 16 + 4 * v));
    }
    const __m512 scale = Broadcast(&x->scale);
    y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low), _mm512_mul_ps(w.scale, scale), y);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_mul_ps(w.hi_scale, scale), y);
  } else {
    __m512i sum = _mm512_setzero_si512();
    if (Kind::kStart == kFromMinus8) sum = BroadcastInt(&x->minus8);
    if (Kind::kStart == kFromMinus16) sum = BroadcastInt(&x->minus16);
    if (Kind::kStart == kFromMinus128) sum = BroadcastInt(&x->minus128);
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) sum = _mm512_dpbusd_epi32(sum, w.q[v], BroadcastInt(x->q + 4 * v));
    const __m512 scale = _mm512_mul_ps(w.scale, Broadcast(&x->scale));
    y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, y);
    if (Kind::kMin) y = _mm512_fmadd_ps(w.min, Broadcast(&x->scaled_sum), y);
    return y;
  }
}

// What a tile works on: `blocks` blocks of a panel times up to kRowsMax input rows.
struct TileArgs {
  const uint8_t* w;  // panel or scratch at the first block of the chunk
  int64_t blocks;
  const uint8_t* const* x;  // input rows at the first block; staged: x[0] alone
  float* y;
  int64_t y_stride;
  __mmask16 mask;  // weight rows that exist
  bool first;      // first chunk: y starts at zero
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
void PackedTile(const TileArgs& args) {
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
      for (int line = 0; line < kShape.block_bytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(w + 3072 + line), _MM_HINT_T0);
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        sum[r] = AddBlock<Kind>(block, InputBlock<kStaged>(args.x, r, b), sum[r]);
      }
      w += kShape.block_bytes;
    }
  }
  StoreSums<kRows>(args, sum);
}

template <typename Kind, int kRows>
void ScratchTile(const TileArgs& args) {
  __m512 sum[kRows];
  LoadSums<kRows>(args, sum);
  const uint8_t* w = args.w;
  for (int64_t b = 0; b < args.blocks; ++b, w += kScratchBlock) {
    Block512 block;
    Scratch512<Kind>::Load(w, &block);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sum[r] = AddBlock<Kind>(block, InputBlock<true>(args.x, r, b), sum[r]);
    }
  }
  StoreSums<kRows>(args, sum);
}

typedef void (*TileFn)(const TileArgs&);

template <typename Kind>
constexpr TileFn kDirectTiles[kDirectRows + 1] = {
    nullptr, PackedTile<Kind, 1, false>, PackedTile<Kind, 2, false>, PackedTile<Kind, 3, false>,
    PackedTile<Kind, 4, false>};

// By rows, for tiles of staged input; sizes in between are cut in two.
template <typename Kind>
constexpr TileFn kPackedTiles[kRowsMax + 1] = {nullptr,
                                               PackedTile<Kind, 1, true>,
                                               PackedTile<Kind, 2, true>,
                                               PackedTile<Kind, 3, true>,
                                               PackedTile<Kind, 4, true>,
                                               nullptr,
                                               PackedTile<Kind, 6, true>,
                                               nullptr,
                                               PackedTile<Kind, 8, true>,
                                               nullptr,
                                               nullptr,
                                               nullptr,
                                               PackedTile<Kind, 12, true>};

template <typename Kind>
constexpr TileFn kScratchTiles[kRowsMax + 1] = {nullptr,
                                                ScratchTile<Kind, 1>,
                                                ScratchTile<Kind, 2>,
                                                ScratchTile<Kind, 3>,
                                                ScratchTile<Kind, 4>,
                                                nullptr,
                                                ScratchTile<Kind, 6>,
                                                nullptr,
                                                ScratchTile<Kind, 8>,
                                                nullptr,
                                                nullptr,
                                                nullptr,
                                                ScratchTile<Kind, 12>};

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
        {panel, args.steps, x, args.y + n, args.y_stride, RowMask(args, n), true});
  }
}

template <typename Kind>
void DecodePanel(const uint8_t* w, int64_t blocks, uint8_t* scratch) {
  constexpr GroupShape kShape = kGroupShapes[Kind::kKind];
  for (int64_t b = 0; b < blocks;) {
    const uint8_t* header = w;
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < blocks; ++j, ++b) {
      Block512 block;
      Kind::Load(header, w, j, &block);
      Scratch512<Kind>::Store(block, scratch);
      w += kShape.block_bytes;
      scratch += kScratchBlock;
    }
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

// One chunk of K for a group of panels and every input row.
template <typename Kind>
void GroupChunk(const ProductArgs& args, int64_t n_begin, int64_t n_end, int64_t b,
                int64_t blocks) {
  alignas(64) uint8_t stage[kRowsMax * kStageStride];
  alignas(64) uint8_t scratch[kGroupPanels][kChunkBlocks * kScratchBlock];
  const bool decode = args.m >= kDecodeRows;
  if (decode) {
    for (int64_t n = n_begin, p = 0; n < n_end; n += kQuantPanel, ++p) {
      const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
      DecodePanel<Kind>(panel + BlockOffset<Kind>(b), blocks, scratch[p]);
    }
  }
  const uint8_t* x[1] = {stage};
  for (int64_t i = 0; i < args.m;) {
    const int rows = TileRows(args.m - i);
    Stage(args, i, rows, b, blocks, stage);
    const TileFn tile = decode ? kScratchTiles<Kind>[rows] : kPackedTiles<Kind>[rows];
    for (int64_t n = n_begin, p = 0; n < n_end; n += kQuantPanel, ++p) {
      const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
      tile({decode ? scratch[p] : panel + BlockOffset<Kind>(b), blocks, x,
            args.y + i * args.y_stride + n, args.y_stride, RowMask(args, n), b == 0});
    }
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
