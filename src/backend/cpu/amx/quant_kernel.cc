// Products of quantised panels on AMX tiles: one tile instruction sums a block of 32 for 16 input
// rows times 16 weight rows. The sums are exact integers and the float operations that follow are
// those of the AVX-512 kernel in the same order, so both give the same bits: rows that fill no
// tile run there, and so does Q6_K, whose two scales a block would need twice the tiles.
#include "backend/cpu/amx/kernels_amx.h"
#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/avx512/add_block512.h"
#include "backend/cpu/avx512/decode512.h"
#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr int kChunkBlocks = 32;                      // blocks of K of one pass
constexpr int kGroupPanels = 8;                       // panels that share one staged input tile
constexpr int kStageStride = kChunkBlocks * 64 + 64;  // bytes; the pad spreads cache sets

// Tiles 0 1: sums; 2 3: 16 input rows of one block; 4 5: weights.
void Configure() {
  TileConfig config;
  for (int t = 0; t < 2; ++t) {
    config.rows[t] = config.rows[t + 2] = kTileRows;
    config.rows[t + 4] = kBlock / 4;
    config.row_bytes[t] = config.row_bytes[t + 4] = 64;
    config.row_bytes[t + 2] = kBlock;
  }
  ConfigureTiles(config);
}

// Bytes of a panel's chunk as the tile unit reads them, and scales as floats.
struct DecodedChunk {
  alignas(64) uint8_t q[kChunkBlocks][512];
  alignas(64) float scale[kChunkBlocks][16];
  alignas(64) float min[kChunkBlocks][16];
};

template <typename Kind>
void Decode(const uint8_t* w, int64_t blocks, DecodedChunk* out) {
  constexpr GroupShape kShape = kGroupShapes[Kind::kKind];
  for (int64_t b = 0; b < blocks;) {
    const uint8_t* header = w;
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < blocks; ++j, ++b) {
      Block512 block;
      Kind::Load(header, w, j, &block);
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) _mm512_store_si512(out->q[b] + 64 * v, block.q[v]);
      _mm512_store_ps(out->scale[b], block.scale);
      if (Kind::kMin) _mm512_store_ps(out->min[b], block.min);
      w += kShape.block_bytes;
    }
  }
  MemoryBarrier();
}

// y += float(start + sum) * (w.scale * x.scale), then the min: for 16 rows of one block.
template <typename Kind>
DI_INLINE void Fold(const int32_t* sums, const ActBlock* x, __m512 w_scale, __m512 w_min,
                    __m512* y) {
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const auto* block =
        reinterpret_cast<const ActBlock*>(reinterpret_cast<const uint8_t*>(x) + r * kStageStride);
    __m512i sum = _mm512_load_si512(sums + 16 * r);
    if (Kind::kStart == kFromMinus8) sum = _mm512_add_epi32(sum, BroadcastInt(&block->minus8));
    if (Kind::kStart == kFromMinus16) sum = _mm512_add_epi32(sum, BroadcastInt(&block->minus16));
    if (Kind::kStart == kFromMinus128) {
      sum = _mm512_add_epi32(sum, BroadcastInt(&block->minus128));
    }
    const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(block->scale));
    y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, y[r]);
    if (Kind::kMin) y[r] = _mm512_fmadd_ps(w_min, _mm512_set1_ps(block->scaled_sum), y[r]);
  }
}

// The sums of block b. Tiles and buffers take turns, so that summing one block and folding the one
// before overlap.
struct Sums {
  alignas(64) int32_t of[2][kTileRows * 16];
};

DI_INLINE void SumBlock(const DecodedChunk& w, const uint8_t* stage, int64_t b, Sums* sums) {
  if ((b & 1) == 0) {
    _tile_zero(0);
    _tile_loadd(2, stage + 64 * b, kStageStride);
    _tile_loadd(4, w.q[b], 64);
    _tile_dpbsud(0, 2, 4);
    _tile_stored(0, sums->of[0], 64);
  } else {
    _tile_zero(1);
    _tile_loadd(3, stage + 64 * b, kStageStride);
    _tile_loadd(5, w.q[b], 64);
    _tile_dpbsud(1, 3, 5);
    _tile_stored(1, sums->of[1], 64);
  }
}

// 16 input rows of one chunk of K, side by side, and where their rests are.
struct StagedRows {
  alignas(64) uint8_t bytes[kTileRows * kStageStride];
  const uint8_t* rests[kTileRows];  // of the first block
  uint16_t refined[kChunkBlocks];   // by block, bit r: row r is refined
};

// Adds the rests of block b of the refined rows.
template <typename Kind>
DI_INLINE void AddStagedRests(const DecodedChunk& w, const StagedRows& x, int64_t b, __m512* y) {
  Block512 block;
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) block.q[v] = _mm512_load_si512(w.q[b] + 64 * v);
  block.scale = _mm512_load_ps(w.scale[b]);
  if (Kind::kMin) block.min = _mm512_load_ps(w.min[b]);
  const auto rest = [&](int r) { return reinterpret_cast<const ActBlock*>(x.rests[r]) + b; };
  AddRests<Kind, kTileRows>(block, x.refined[b], rest, y);
}

// One chunk of K of one panel times 16 staged rows.
template <typename Kind>
void Tile(const DecodedChunk& w, int64_t blocks, const StagedRows& rows, float* out, int64_t stride,
          __mmask16 mask, bool first) {
  const uint8_t* stage = rows.bytes;
  Sums sums;
  __m512 y[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    y[r] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out + r * stride);
  }
  SumBlock(w, stage, 0, &sums);
  for (int64_t b = 0; b < blocks; ++b) {
    if (b + 1 < blocks) SumBlock(w, stage, b + 1, &sums);
    const auto* x = reinterpret_cast<const ActBlock*>(stage) + b;
    const __m512 min = Kind::kMin ? _mm512_load_ps(w.min[b]) : _mm512_setzero_ps();
    Fold<Kind>(sums.of[b & 1], x, _mm512_load_ps(w.scale[b]), min, y);
    if (rows.refined[b] != 0) AddStagedRests<Kind>(w, rows, b, y);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) _mm512_mask_storeu_ps(out + r * stride, mask, y[r]);
}

DI_INLINE int64_t InputRow(const ProductArgs& args, int64_t i) {
  return args.input_rows == nullptr ? i : args.input_rows[i];
}

// Input rows i .. i + 15, blocks [b, b + blocks).
DI_INLINE void Stage(const ProductArgs& args, int64_t i, int64_t b, int64_t blocks,
                     StagedRows* out) {
  for (int64_t k = 0; k < blocks; ++k) out->refined[k] = 0;
  for (int r = 0; r < kTileRows; ++r) {
    const uint8_t* from = args.act + InputRow(args, i + r) * args.act_stride + b * 64;
    uint8_t* to = out->bytes + r * kStageStride;
    out->rests[r] = from + args.steps * static_cast<int64_t>(sizeof(ActBlock));
    for (int64_t k = 0; k < blocks; ++k) {
      _mm512_store_si512(to + 64 * k, _mm512_load_si512(from + 64 * k));
      const int refined = reinterpret_cast<const ActBlock*>(from)[k].refined;
      out->refined[k] = static_cast<uint16_t>(out->refined[k] | refined << r);
    }
  }
  MemoryBarrier();
}

template <typename Kind>
DI_INLINE int64_t BlockOffset(int64_t b) {  // b at a group boundary
  constexpr GroupShape kShape = kGroupShapes[Kind::kKind];
  return b / kShape.group_blocks *
         (kShape.header_bytes + int64_t{kShape.group_blocks} * kShape.block_bytes);
}

// One chunk of K for a group of panels and every input row, a multiple of 16.
template <typename Kind>
void GroupChunk(const ProductArgs& args, int64_t n_begin, int64_t n_end, int64_t b,
                int64_t blocks) {
  StagedRows stage;
  DecodedChunk decoded[kGroupPanels];
  for (int64_t n = n_begin, p = 0; n < n_end; n += kQuantPanel, ++p) {
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    Decode<Kind>(panel + BlockOffset<Kind>(b), blocks, &decoded[p]);
  }
  for (int64_t i = 0; i < args.m; i += kTileRows) {
    Stage(args, i, b, blocks, &stage);
    for (int64_t n = n_begin, p = 0; n < n_end; n += kQuantPanel, ++p) {
      const int64_t left = args.n_end - n;
      const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1U << left) - 1U);
      Tile<Kind>(decoded[p], blocks, stage, args.y + i * args.y_stride + n, args.y_stride, mask,
                 b == 0);
    }
  }
}

template <typename Kind>
void Product(ProductArgs args, ProductFn rest) {
  const int64_t tiled = args.m / kTileRows * kTileRows, left = args.m - tiled;
  if (tiled > 0) {
    args.m = tiled;
    Configure();
    constexpr int64_t kGroup = kGroupPanels * kQuantPanel;
    for (int64_t n = args.n_begin; n < args.n_end; n += kGroup) {
      const int64_t n_end = n + kGroup < args.n_end ? n + kGroup : args.n_end;
      for (int64_t b = 0; b < args.steps; b += kChunkBlocks) {
        const int64_t blocks = args.steps - b;
        GroupChunk<Kind>(args, n, n_end, b, blocks < kChunkBlocks ? blocks : kChunkBlocks);
      }
    }
    _tile_release();
  }
  if (left == 0) return;
  args.m = left;
  args.y += tiled * args.y_stride;
  if (args.input_rows != nullptr) {
    args.input_rows += tiled;
  } else {
    args.act += tiled * args.act_stride;
  }
  rest(args);
}

}  // namespace

void ProductQ8_0Amx(const ProductArgs& args) { Product<KindQ8_0>(args, ProductQ8_0Avx512); }
void ProductQ4_0Amx(const ProductArgs& args) { Product<KindQ4_0>(args, ProductQ4_0Avx512); }
void ProductQ4_1Amx(const ProductArgs& args) { Product<KindQ4_1>(args, ProductQ4_1Avx512); }
void ProductQ5_0Amx(const ProductArgs& args) { Product<KindQ5_0>(args, ProductQ5_0Avx512); }
void ProductQ5_1Amx(const ProductArgs& args) { Product<KindQ5_1>(args, ProductQ5_1Avx512); }
void ProductQ4KAmx(const ProductArgs& args) { Product<KindQ4K>(args, ProductQ4KAvx512); }
void ProductQ5KAmx(const ProductArgs& args) { Product<KindQ5K>(args, ProductQ5KAvx512); }
void ProductMXFP4Amx(const ProductArgs& args) { Product<KindMXFP4>(args, ProductMXFP4Avx512); }

const KernelTable kAmxKernels = {
    {ProductF32Avx512, ProductF16Avx512, ProductBF16Amx, ProductQ8_0Amx, ProductQ4_0Amx,
     ProductQ4_1Amx, ProductQ5_0Amx, ProductQ5_1Amx, ProductQ4KAmx, ProductQ5KAmx, ProductQ6KAvx512,
     ProductMXFP4Amx, ProductF8Avx512},
    {QuantizeAvx512, ToBf16Avx512},
};

}  // namespace deepinfer::cpu
