// The byte layout of packed matrices and activation rows, and the seam between the dispatcher and
// the kernels of each ISA. Plain data and C types alone: the ISA files must not instantiate
// library code that the linker could choose for an older processor.
#pragma once

#include <stdint.h>

namespace deepinfer::cpu {

// Quantised kinds: a panel holds 16 weight rows. A panel is a run of groups of `group_blocks`
// blocks of 32 elements, ascending in K; a group is a header (scales) and then its blocks. A block
// is vectors of 64 bytes: 4 consecutive elements of K for each of the 16 rows.
//   bytes    8 vectors of one byte an element, vector v holds elements 4v .. 4v+3
//   nibbles  4 vectors; vector u holds vector u (low nibbles) and vector u+4 (high nibbles)
//   5th bit  1 vector; bit v of a byte belongs to vector v
//   2 bits   2 vectors; bits 2f, 2f+1 of a byte of vector w belong to vector 4w+f
// Float kinds: a panel holds 32 weight rows; a step is one element of K (F32, F16) or two (BF16)
// of each of the 32 rows.
enum PackKind : int {
  kPackF32,
  kPackF16,
  kPackBF16,
  kPackQ8_0,
  kPackQ4_0,
  kPackQ4_1,
  kPackQ5_0,
  kPackQ5_1,
  kPackQ4K,
  kPackQ5K,
  kPackQ6K,
  kPackMXFP4,
  kPackF8,
  kPackKinds,
};

constexpr int kQuantPanel = 16;
constexpr int kFloatPanel = 32;
constexpr int kBlock = 32;

struct GroupShape {
  int group_blocks;
  int header_bytes;
  int block_bytes;
};

// Headers: f16 scales of 2 blocks (Q8_0 Q4_0 Q5_0); f16 scales, f16 mins (Q4_1 Q5_1); f16 scales,
// f16 min scales, then per block 16 u8 scales and 16 u8 mins (Q4_K Q5_K); f16 scales, then per
// block 16 s8 scales of the lower and 16 of the upper half, padded (Q6_K); u8 exponents of 4
// blocks (MXFP4, F8).
// F8 reads bf16 input: a block is 8 vectors of e4m3 codes, the four of a row in the order 0 2 1 3,
// so that even and odd bytes are pairs of neighbours.
constexpr GroupShape kGroupShapes[kPackKinds] = {
    {1, 0, 0},    {1, 0, 0},    {1, 0, 0},     {2, 64, 512},  {2, 64, 256},  {1, 64, 256},
    {2, 64, 320}, {1, 64, 320}, {8, 320, 256}, {8, 320, 320}, {8, 320, 384}, {4, 64, 256},
    {4, 64, 512},
};
// Float kinds: elements of K and bytes of one step of a panel.
constexpr int kStepElements[3] = {1, 1, 2};
constexpr int kStepBytes[3] = {128, 64, 128};

// One block of 32 quantised activations and what kernels need of it beside the bytes. A row is its
// `steps` blocks and behind them as many rests: what rounding left of block b, valid where b is
// `refined`. A product adds block b and then its rest. Refined are blocks in which one element
// holds most of the energy: its scale leaves the others few bits, and such outliers make nearly all
// of the rounding noise of a model.
struct ActBlock {
  int8_t q[kBlock];
  float scale;
  float scaled_sum;    // scale * sum(q)
  int32_t minus8;      // -8 * sum(q): undoes the offset of Q4_0
  int32_t minus16;     // Q5_0, MXFP4
  int32_t minus128;    // Q8_0
  int32_t minus32[2];  // Q6_K, of the lower and upper 16 elements
  int32_t refined;     // 0 or 1
};
static_assert(sizeof(ActBlock) == 64);
// A block whose largest magnitude is below this is taken as zero: its inverse would overflow.
constexpr float kActSmallest = 1e-30F;
// A block is refined when its largest element squared exceeds this share of the sum of squares.
constexpr float kRefineShare = 0.5F;

struct ProductArgs {
  const uint8_t* weights;  // panels of one expert
  int64_t panel_bytes;
  int64_t steps;              // blocks (quantised) or steps (float) of K
  int64_t rows;               // weight rows
  const uint8_t* act;         // rows of ActBlock (and rests), of bf16 pairs or of floats
  int64_t act_stride;         // bytes
  const int32_t* input_rows;  // [m] or nullptr
  int64_t m;
  int64_t n_begin, n_end;
  float* y;
  int64_t y_stride;
};

typedef void (*ProductFn)(const ProductArgs& args);

struct ActFns {
  // Pads with zeros to blocks; rest[b] is written where out[b] is refined.
  void (*quantize)(const float* x, int64_t cols, ActBlock* out, ActBlock* rest);
  void (*to_bf16)(const float* x, int64_t cols, uint16_t* out);  // pads with zeros to 32
};

struct KernelTable {
  ProductFn product[kPackKinds];
  ActFns act;
};

extern const KernelTable kScalarKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAmxKernels;
#endif

}  // namespace deepinfer::cpu
