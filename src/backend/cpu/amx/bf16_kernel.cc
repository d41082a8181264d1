// Products of BF16 panels on AMX tiles: 32 input rows times 32 weight rows in four accumulators.
// Every row count runs on tiles (rows of a tile do not touch each other), so a row's result does
// not depend on its company.
#include "backend/cpu/amx/kernels_amx.h"
#include "backend/cpu/amx/tiles.h"

namespace deepinfer::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileSteps = 16;  // bf16 pairs of K in one tile
constexpr int64_t kPanelStride = kStepBytes[kPackBF16];
constexpr int64_t kAhead = 4096;  // bytes of weights prefetched ahead

// Tiles 0 1 (rows 0..15) and 2 3 (rows 16..31): sums; 4 5: input; 6 7: weights.
void Configure(int low_rows, int high_rows) {
  TileConfig config;
  const int rows[8] = {low_rows, low_rows,  high_rows,  high_rows,
                       low_rows, high_rows, kTileSteps, kTileSteps};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<uint8_t>(rows[t]);
    config.row_bytes[t] = 64;
  }
  ConfigureTiles(config);
}

// Input rows as tiles, one after the other: the low and the high tile of each 32 columns.
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kStageBytes = 512 << 10;
constexpr int64_t kStageSteps = kStageBytes / (2 * kTileBytes) * kTileSteps;

// Sums of `steps` of one panel, added to a 32 x 32 buffer. Up to 16 input rows: its first half.
template <bool kHigh, bool kPrefetch>
void PanelTiles(const uint8_t* w, int64_t steps, const uint8_t* stage, bool first, float* sums) {
  constexpr int64_t kStride = kFloatPanel * 4;
  float* const high_sums = sums + kTileRows * kFloatPanel;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kStride);
    _tile_loadd(1, sums + 16, kStride);
    _tile_loadd(2, high_sums, kStride);
    _tile_loadd(3, high_sums + 16, kStride);
  }
  for (int64_t k = 0; k < steps; k += kTileSteps) {
    _tile_loadd(6, w, kPanelStride);
    _tile_loadd(7, w + 64, kPanelStride);
    _tile_loadd(4, stage, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (kHigh) {
      _tile_loadd(5, stage + kTileBytes, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (kPrefetch) {
#pragma GCC unroll 32
      for (int line = 0; line < 2 * kTileSteps; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + 64 * line), _MM_HINT_T0);
      }
    }
    w += kTileSteps * kPanelStride;
    stage += 2 * kTileBytes;
  }
  _tile_stored(0, sums, kStride);
  _tile_stored(1, sums + 16, kStride);
  if (kHigh) {
    _tile_stored(2, high_sums, kStride);
    _tile_stored(3, high_sums + 16, kStride);
  }
}

struct Masks {
  __mmask16 low, high;
};

Masks ColumnMasks(int64_t columns) {
  const uint32_t mask = columns >= 32 ? 0xffffffffU : (1U << columns) - 1U;
  return {static_cast<__mmask16>(mask), static_cast<__mmask16>(mask >> 16)};
}

void CopyOut(const float* sums, int64_t rows, Masks mask, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r, sums += kFloatPanel, y += y_stride) {
    _mm512_mask_storeu_ps(y, mask.low, _mm512_load_ps(sums));
    _mm512_mask_storeu_ps(y + 16, mask.high, _mm512_load_ps(sums + 16));
  }
}

void CopyIn(float* sums, int64_t rows, Masks mask, const float* y, int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r, sums += kFloatPanel, y += y_stride) {
    _mm512_store_ps(sums, _mm512_maskz_loadu_ps(mask.low, y));
    _mm512_store_ps(sums + 16, _mm512_maskz_loadu_ps(mask.high, y + 16));
  }
  MemoryBarrier();
}

// Lines that CopyOut will write: fetched while the tiles work.
void PrefetchOutput(int64_t rows, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_prefetch(y + r * y_stride, 1);
    __builtin_prefetch(y + r * y_stride + 16, 1);
  }
}

// `rows` input rows, steps [k, k + steps), in the order of the tiles.
void Stage(const ProductArgs& args, int64_t i, int64_t rows, int64_t k, int64_t steps,
           uint8_t* stage) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = args.input_rows == nullptr ? i + r : args.input_rows[i + r];
    const uint8_t* from = args.act + row * args.act_stride + 4 * k;
    uint8_t* to = stage + r / kTileRows * kTileBytes + r % kTileRows * 64;
    for (int64_t l = 0; l < steps / kTileSteps; ++l) {
      _mm512_store_si512(to + l * 2 * kTileBytes, _mm512_load_si512(from + 64 * l));
    }
  }
  MemoryBarrier();
}

// Up to 32 input rows times the panels of [n_begin, n_end), steps [k, k + steps). Partial sums pass
// through y, which changes no bit.
void RowTile(const ProductArgs& args, int64_t i, int64_t rows, int64_t k, int64_t steps,
             const uint8_t* stage) {
  alignas(64) float sums[2 * kTileRows * kFloatPanel];
  const bool first = k == 0;
  for (int64_t n = args.n_begin; n < args.n_end; n += kFloatPanel) {
    const uint8_t* w = args.weights + n / kFloatPanel * args.panel_bytes + k * kPanelStride;
    float* y = args.y + i * args.y_stride + n;
    const Masks mask = ColumnMasks(args.n_end - n);
    if (first) {
      PrefetchOutput(rows, y, args.y_stride);
    } else {
      CopyIn(sums, rows, mask, y, args.y_stride);
    }
    if (rows <= kTileRows) {
      PanelTiles<false, true>(w, steps, stage, first, sums);
    } else if (args.m <= 2 * kTileRows) {
      PanelTiles<true, true>(w, steps, stage, first, sums);
    } else {
      PanelTiles<true, false>(w, steps, stage, first, sums);
    }
    CopyOut(sums, rows, mask, y, args.y_stride);
  }
}

}  // namespace

void ProductBF16Amx(const ProductArgs& args) {
  alignas(64) uint8_t stage[kStageBytes];
  int64_t configured = 0;
  for (int64_t i = 0; i < args.m; i += 2 * kTileRows) {
    const int64_t rows = args.m - i < 2 * kTileRows ? args.m - i : 2 * kTileRows;
    if (rows != configured) {
      const int low = static_cast<int>(rows < kTileRows ? rows : kTileRows);
      Configure(low, rows > kTileRows ? static_cast<int>(rows) - kTileRows : low);
      configured = rows;
    }
    for (int64_t k = 0; k < args.steps; k += kStageSteps) {
      const int64_t steps = args.steps - k < kStageSteps ? args.steps - k : kStageSteps;
      Stage(args, i, rows, k, steps, stage);
      RowTile(args, i, rows, k, steps, stage);
    }
  }
  _tile_release();
}

}  // namespace deepinfer::cpu
