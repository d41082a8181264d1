// Products of float panels on AVX-512: F32 and F16 by float FMA, BF16 by vdpbf16ps. One output
// element is one chain of accumulations ascending in K for every number of rows; chunks of K pass
// their sums through y in memory, which changes no bit.
#include <immintrin.h>

#include "backend/cpu/avx512/kernels512.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE [[gnu::always_inline]] static inline

constexpr int kRowsMax = 12;
constexpr int kFewRows = 4;       // up to here one pass over the weights takes all of K
constexpr int kChunkSteps = 512;  // steps of K of one pass
constexpr int kGroupPanels = 4;   // panels that one tile of input rows meets in a row
constexpr int kStageStride = kChunkSteps * 4 + 64;

// Bytes ahead that a pass for few rows prefetches into the second-level cache, as measured: the
// first-level one has too few requests under way at a time, and further ahead the processor's own
// prefetch comes first.
template <int kRows>
constexpr int64_t kAheadNear = kRows == 1 ? 2048 : 1024;

// Two vectors of 16 weight rows for one step; x holds the step of one input row in each lane.
struct StepF32 {
  static constexpr int kBytes = 128;
  typedef __m512 Vector;
  DI_INLINE void Load(const uint8_t* w, Vector* v) {
    v[0] = _mm512_load_ps(w);
    v[1] = _mm512_load_ps(w + 64);
  }
  DI_INLINE __m512 Add(__m512 sum, Vector w, __m512i x) {
    return _mm512_fmadd_ps(w, _mm512_castsi512_ps(x), sum);
  }
};

struct StepF16 {
  static constexpr int kBytes = 64;
  typedef __m512 Vector;
  DI_INLINE void Load(const uint8_t* w, Vector* v) {
    v[0] = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(w)));
    v[1] = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(w + 32)));
  }
  DI_INLINE __m512 Add(__m512 sum, Vector w, __m512i x) {
    return _mm512_fmadd_ps(w, _mm512_castsi512_ps(x), sum);
  }
};

struct StepBF16 {
  static constexpr int kBytes = 128;
  typedef __m512i Vector;
  DI_INLINE void Load(const uint8_t* w, Vector* v) {
    v[0] = _mm512_load_si512(w);
    v[1] = _mm512_load_si512(w + 64);
  }
  DI_INLINE __m512 Add(__m512 sum, Vector w, __m512i x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
  }
};

struct TileArgs {
  const uint8_t* w;
  int64_t steps;
  const uint8_t* x;  // input rows at the first step, `x_stride` bytes apart
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  __mmask16 mask[2];
  bool first;
  int64_t ahead;  // every step prefetches `ahead_lines` lines from here
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
    for (int i = 0; i < (kRows + 2) / 3; ++i) third[i] += 4;
  }
  [[gnu::always_inline]] __m512i Row(int r) const {
    return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(third[r / 3] + r % 3 * stride));
  }
};

template <typename Step, int kRows>
void Tile(const TileArgs& args) {
  __m512 sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const float* y = args.y + r * args.y_stride + 16 * h;
      sum[r][h] = args.first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(args.mask[h], y);
    }
  }
  Input<kRows> input;
  Input<kRows>::Start(args, &input);
  const uint8_t* w = args.w;
  for (int64_t k = 0; k < args.steps; ++k, w += Step::kBytes) {
    typename Step::Vector v[2];
    Step::Load(w, v);
    if (kRows <= kFewRows) {
#pragma GCC unroll 2
      for (int line = 0; line < Step::kBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAheadNear<kRows> + line), _MM_HINT_T1);
      }
    } else {
      for (int line = 0; line < args.ahead_lines; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(w + args.ahead + 64 * line), _MM_HINT_T1);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = input.Row(r);
      sum[r][0] = Step::Add(sum[r][0], v[0], x);
      sum[r][1] = Step::Add(sum[r][1], v[1], x);
    }
    input.Next();
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    float* y = args.y + r * args.y_stride;
    _mm512_mask_storeu_ps(y, args.mask[0], sum[r][0]);
    _mm512_mask_storeu_ps(y + 16, args.mask[1], sum[r][1]);
  }
}

typedef void (*TileFn)(const TileArgs&);

// By rows; sizes in between are cut in two.
template <typename Step>
constexpr TileFn kTiles[kRowsMax + 1] = {nullptr,       Tile<Step, 1>, Tile<Step, 2>, Tile<Step, 3>,
                                         Tile<Step, 4>, nullptr,       Tile<Step, 6>, nullptr,
                                         Tile<Step, 8>, nullptr,       nullptr,       nullptr,
                                         Tile<Step, 12>};

DI_INLINE int TileRows(int64_t left) {
  if (left >= 12) return 12;
  if (left >= 8) return 8;
  if (left >= 6) return 6;
  return left > 4 ? 4 : static_cast<int>(left);
}

DI_INLINE int64_t InputRow(const ProductArgs& args, int64_t i) {
  return args.input_rows == nullptr ? i : args.input_rows[i];
}

DI_INLINE __mmask16 LaneMask(int64_t left) {
  if (left >= 16) return 0xffff;
  return static_cast<__mmask16>(left <= 0 ? 0 : (1U << left) - 1U);
}

DI_INLINE void SetMasks(const ProductArgs& args, int64_t n, TileArgs* tile) {
  tile->mask[0] = LaneMask(args.n_end - n);
  tile->mask[1] = LaneMask(args.n_end - n - 16);
}

// Whether `rows` input rows follow each other in memory.
DI_INLINE bool InOrder(const ProductArgs& args, int64_t i, int64_t rows) {
  if (args.input_rows == nullptr) return true;
  for (int64_t r = 1; r < rows; ++r) {
    if (args.input_rows[i + r] != args.input_rows[i] + r) return false;
  }
  return true;
}

// Up to kFewRows input rows: one pass over the weights, all of K at once, where the rows lie evenly
// spaced.
template <typename Step>
bool FewRows(const ProductArgs& args) {
  if (args.m > kFewRows || (args.m > 2 && !InOrder(args, 0, args.m))) return false;
  const int64_t first = InputRow(args, 0);
  const int64_t stride = (args.m > 1 ? InputRow(args, 1) - first : 0) * args.act_stride;
  for (int64_t n = args.n_begin; n < args.n_end; n += kFloatPanel) {
    TileArgs tile = {args.weights + n / kFloatPanel * args.panel_bytes,
                     args.steps,
                     args.act + first * args.act_stride,
                     stride,
                     args.y + n,
                     args.y_stride,
                     {0, 0},
                     true,
                     0,
                     0};
    SetMasks(args, n, &tile);
    kTiles<Step>[args.m](tile);
  }
  return true;
}

// `rows` input rows, steps [k, k + steps), side by side in `stage`.
DI_INLINE void Gather(const ProductArgs& args, int64_t i, int rows, int64_t k, int64_t steps,
                      uint8_t* stage) {
  const int64_t lines = (steps * 4 + 63) / 64;  // rows are padded to whole lines
  for (int r = 0; r < rows; ++r) {
    const uint8_t* from = args.act + InputRow(args, i + r) * args.act_stride + k * 4;
    uint8_t* to = stage + r * kStageStride;
    for (int64_t l = 0; l < lines; ++l) {
      _mm512_store_si512(to + 64 * l, _mm512_load_si512(from + 64 * l));
    }
  }
}

// One chunk of K for a group of panels and every input row. Meanwhile the next group of panels is
// fetched into the second-level cache, spread evenly over the passes.
template <typename Step>
void GroupChunk(const ProductArgs& args, int64_t n_begin, int64_t n_end, int64_t k, int64_t steps) {
  constexpr int kLines = Step::kBytes / 64;
  alignas(64) uint8_t stage[kRowsMax * kStageStride];
  const int pass_lines = args.m <= kRowsMax ? kLines : 1;
  int line = 0;
  for (int64_t i = 0; i < args.m;) {
    const int rows = TileRows(args.m - i);
    const uint8_t* x = args.act + InputRow(args, i) * args.act_stride + k * 4;
    int64_t x_stride = args.act_stride;
    if (!InOrder(args, i, rows)) {
      Gather(args, i, rows, k, steps, stage);
      x = stage;
      x_stride = kStageStride;
    }
    const int ahead_lines = line < kLines ? pass_lines : 0;
    for (int64_t n = n_begin; n < n_end; n += kFloatPanel) {
      TileArgs tile = {args.weights + n / kFloatPanel * args.panel_bytes + k * Step::kBytes,
                       steps,
                       x,
                       x_stride,
                       args.y + i * args.y_stride + n,
                       args.y_stride,
                       {0, 0},
                       k == 0,
                       kGroupPanels * args.panel_bytes + 64 * line,
                       ahead_lines};
      SetMasks(args, n, &tile);
      kTiles<Step>[rows](tile);
    }
    line += ahead_lines;
    i += rows;
  }
}

template <typename Step>
void Product(const ProductArgs& args) {
  if (FewRows<Step>(args)) return;
  for (int64_t n = args.n_begin; n < args.n_end; n += kGroupPanels * kFloatPanel) {
    const int64_t end = n + kGroupPanels * kFloatPanel;
    const int64_t n_end = end < args.n_end ? end : args.n_end;
    for (int64_t k = 0; k < args.steps; k += kChunkSteps) {
      const int64_t left = args.steps - k;
      GroupChunk<Step>(args, n, n_end, k, left < kChunkSteps ? left : kChunkSteps);
    }
  }
}

}  // namespace

void ProductF32Avx512(const ProductArgs& args) { Product<StepF32>(args); }
void ProductF16Avx512(const ProductArgs& args) { Product<StepF16>(args); }
void ProductBF16Avx512(const ProductArgs& args) { Product<StepBF16>(args); }

}  // namespace deepinfer::cpu
