// Products of quantised panels on AVX-512 VNNI. One output element, whatever the number of rows:
//   for each block ascending: y = fma(float(start + sum of u8 * s8), w.scale * x.scale, y)
//                             y = fma(w.min, x.scaled_sum, y)
// K is cut into chunks whose partial sums pass through y in memory, which changes no bit.
#include "backend/cpu/avx512/add_block512.h"
#include "backend/cpu/avx512/decode512.h"
#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

constexpr int kRowsMax = 12;      // input rows of one register tile
constexpr int kFewRows = 2;       // up to here one pass over the weights takes all of K
constexpr int kChunkBlocks = 32;  // blocks of K of one pass of kRowsMax rows; fewer rows: more
constexpr int kGroupPanels = 8;   // panels that one tile of input rows meets in a row
constexpr int kStageBytes = kRowsMax * (kChunkBlocks + 1) * 64;

// Bytes ahead that a pass over the weights prefetches into the first-level cache, as measured. Few
// rows leave little to compute: the wider a block, the better the processor's own prefetch, which
// explicit requests disturb. None for one or two rows of Q8_0.
template <typename Kind, int kRows>
constexpr int64_t AheadNear() {
  if (Kind::kKind == kPackQ8_0 && kRows <= 2) return 0;
  return kGroupShapes[Kind::kKind].block_bytes >= 320 && kRows <= 4 ? 3072 : 6144;
}

template <typename Kind, int kRows, int kBytes>
DI_INLINE void PrefetchLines(const uint8_t* w) {
  constexpr int64_t kAhead = AheadNear<Kind, kRows>();
#pragma GCC unroll 8
  for (int line = 0; line < (kAhead > 0 ? kBytes : 0); line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
  }
}

// What a tile works on: `blocks` blocks of a panel times up to kRowsMax input rows.
struct TileArgs {
  const uint8_t* w;  // panel at the first block of the chunk
  int64_t blocks;
  const uint8_t* x;  // input rows at the first block, `x_stride` bytes apart
  int64_t x_stride;
  int64_t rests;            // bytes from a block to its rest
  const uint16_t* refined;  // by block, bit r: row r is refined; nullptr: not gathered
  float* y;
  int64_t y_stride;
  __mmask16 mask;  // weight rows that exist
  bool first;      // first chunk: y starts at zero
  int64_t ahead;   // every block prefetches `ahead_lines` lines from here
  int ahead_lines;
};

// Pointers to every third input row: with a stride that gives twelve rows one addressing mode each.
template <int kRows>
struct Input {
  const uint8_t* third[(kRows + 2) / 3];
  int64_t stride;
  DI_INLINE void Start(const TileArgs& args, Input* out) {
    out->stride = args.x_stride;
#pragma GCC unroll 4
    for (int i = 0; i < (kRows + 2) / 3; ++i) out->third[i] = args.x + 3 * i * args.x_stride;
  }
  [[gnu::always_inline]] void Next() {
#pragma GCC unroll 4
    for (int i = 0; i < (kRows + 2) / 3; ++i) third[i] += sizeof(ActBlock);
  }
  [[gnu::always_inline]] const ActBlock* Row(int r) const {
    return reinterpret_cast<const ActBlock*>(third[r / 3] + r % 3 * stride);
  }
};

template <int kRows>
DI_INLINE uint32_t Refined(const Input<kRows>& x) {
  uint32_t refined = 0;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) refined |= static_cast<uint32_t>(x.Row(r)->refined) << r;
  return refined;
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
template <typename Kind, int kRows>
void Tile(const TileArgs& args) {
  constexpr GroupShape kShape = kGroupShapes[Kind::kKind];
  Input<kRows> x;
  Input<kRows>::Start(args, &x);
  __m512 sum[kRows];
  LoadSums<kRows>(args, sum);
  const uint8_t* w = args.w;
  for (int64_t b = 0; b < args.blocks;) {
    const uint8_t* header = w;
    PrefetchLines<Kind, kRows, kShape.header_bytes>(header);
    w += kShape.header_bytes;
    for (int j = 0; j < kShape.group_blocks && b < args.blocks; ++j, ++b) {
      Block512 block;
      Kind::Load(header, w, j, &block);
      PrefetchLines<Kind, kRows, kShape.block_bytes>(w);
      for (int line = 0; line < args.ahead_lines; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(w + args.ahead + 64 * line), _MM_HINT_T1);
      }
      constexpr int kStep = kRows % 4 == 0 ? 4 : (kRows % 3 == 0 ? 3 : kRows);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r += kStep) {
        AddBlock<Kind, kStep>(
            block, [&](int i) { return x.Row(r + i); }, sum + r);
      }
      const uint32_t refined = args.refined != nullptr ? args.refined[b] : Refined<kRows>(x);
      if (refined != 0) {
        const auto rest = [&](int r) {
          return reinterpret_cast<const ActBlock*>(reinterpret_cast<const uint8_t*>(x.Row(r)) +
                                                   args.rests);
        };
        AddRests<Kind, kRows>(block, refined, rest, sum);
      }
      x.Next();
      w += kShape.block_bytes;
    }
  }
  StoreSums<kRows>(args, sum);
}

typedef void (*TileFn)(const TileArgs&);

// By rows; sizes in between are cut in two.
template <typename Kind>
constexpr TileFn kTiles[kRowsMax + 1] = {nullptr,       Tile<Kind, 1>, Tile<Kind, 2>, Tile<Kind, 3>,
                                         Tile<Kind, 4>, nullptr,       Tile<Kind, 6>, nullptr,
                                         Tile<Kind, 8>, nullptr,       nullptr,       nullptr,
                                         Tile<Kind, 12>};

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

DI_INLINE int64_t RestOffset(const ProductArgs& args) {
  return args.steps * static_cast<int64_t>(sizeof(ActBlock));
}

// One or two input rows: one pass over the weights, all of K at once.
template <typename Kind>
void FewRows(const ProductArgs& args) {
  const uint8_t* x = args.act + InputRow(args, 0) * args.act_stride;
  const int64_t last = InputRow(args, args.m - 1) * args.act_stride;
  const int64_t stride = args.act + last - x;
  for (int64_t n = args.n_begin; n < args.n_end; n += kQuantPanel) {
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    kTiles<Kind>[args.m]({panel, args.steps, x, stride, RestOffset(args), nullptr, args.y + n,
                          args.y_stride, RowMask(args, n), true, 0, 0});
  }
}

// Whether `rows` input rows follow each other in memory.
DI_INLINE bool InOrder(const ProductArgs& args, int64_t i, int rows) {
  if (args.input_rows == nullptr) return true;
  for (int r = 1; r < rows; ++r) {
    if (args.input_rows[i + r] != args.input_rows[i] + r) return false;
  }
  return true;
}

// `rows` input rows, blocks [b, b + blocks), side by side in `stage`, their rests behind them.
DI_INLINE void Gather(const ProductArgs& args, int64_t i, int rows, int64_t b, int64_t blocks,
                      uint8_t* stage, int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    const uint8_t* from = args.act + InputRow(args, i + r) * args.act_stride + b * 64;
    uint8_t* to = stage + r * stride;
    for (int64_t k = 0; k < blocks; ++k, from += 64, to += 64) {
      _mm512_store_si512(to, _mm512_load_si512(from));
      if (reinterpret_cast<const ActBlock*>(from)->refined == 0) continue;
      _mm512_store_si512(to + kStageBytes, _mm512_load_si512(from + RestOffset(args)));
    }
  }
}

// By block, bit r: row r is refined.
DI_INLINE void CollectRefined(const uint8_t* x, int64_t x_stride, int rows, int64_t blocks,
                              uint16_t* refined) {
  for (int64_t b = 0; b < blocks; ++b) {
    uint32_t bits = 0;
    for (int r = 0; r < rows; ++r) {
      const auto* block = reinterpret_cast<const ActBlock*>(x + r * x_stride) + b;
      bits |= static_cast<uint32_t>(block->refined) << r;
    }
    refined[b] = static_cast<uint16_t>(bits);
  }
}

// One chunk of K for a group of panels and every input row. Meanwhile the next group of panels is
// fetched into the second-level cache, spread evenly over the passes, so that reading memory and
// computing overlap.
template <typename Kind>
void GroupChunk(const ProductArgs& args, int64_t n_begin, int64_t n_end, int64_t b,
                int64_t blocks) {
  constexpr int kLines = kGroupShapes[Kind::kKind].block_bytes / 64;
  alignas(64) uint8_t stage[2 * kStageBytes];
  uint16_t refined[kRowsMax * kChunkBlocks];
  const int64_t offset = BlockOffset<Kind>(b);
  const int64_t passes = (args.m + kRowsMax - 1) / kRowsMax;
  const int pass_lines = static_cast<int>((kLines + passes - 1) / passes);
  int line = 0;
  for (int64_t i = 0; i < args.m;) {
    const int rows = TileRows(args.m - i);
    const uint8_t* x = args.act + InputRow(args, i) * args.act_stride + b * 64;
    int64_t x_stride = args.act_stride, rests = RestOffset(args);
    if (!InOrder(args, i, rows)) {
      x = stage;
      x_stride = (blocks + 1) * 64;  // the pad spreads cache sets
      rests = kStageBytes;
      Gather(args, i, rows, b, blocks, stage, x_stride);
    }
    CollectRefined(x, x_stride, rows, blocks, refined);
    const int ahead_lines = kLines - line < pass_lines ? kLines - line : pass_lines;
    for (int64_t n = n_begin; n < n_end; n += kQuantPanel) {
      const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
      kTiles<Kind>[rows]({panel + offset, blocks, x, x_stride, rests, refined,
                          args.y + i * args.y_stride + n, args.y_stride, RowMask(args, n), b == 0,
                          kGroupPanels * args.panel_bytes + 64 * line, ahead_lines});
    }
    line += ahead_lines;
    i += rows;
  }
}

template <typename Kind>
void Product(const ProductArgs& args) {
  if (args.m <= kFewRows) {
    FewRows<Kind>(args);
    return;
  }
  // The input of a tile stays in the first-level cache. Whole groups of blocks: a multiple of 8.
  const int64_t rows = args.m < kRowsMax ? args.m : kRowsMax;
  const int64_t chunk = kRowsMax * kChunkBlocks / rows / 8 * 8;
  for (int64_t n = args.n_begin; n < args.n_end; n += kGroupPanels * kQuantPanel) {
    const int64_t end = n + kGroupPanels * kQuantPanel;
    const int64_t n_end = end < args.n_end ? end : args.n_end;
    for (int64_t b = 0; b < args.steps; b += chunk) {
      const int64_t left = args.steps - b;
      GroupChunk<Kind>(args, n, n_end, b, left < chunk ? left : chunk);
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
