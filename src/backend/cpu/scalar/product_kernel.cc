// Plain loops over packed panels: the reference for every other ISA, and the path of processors
// without one. Integers are exact and products of a block are folded in the same order.
#include <cmath>
#include <cstring>

#include "backend/cpu/pack_panel.h"
#include "backend/cpu/packed_layout.h"
#include "tensor/block_formats.h"

namespace deepinfer::cpu {
namespace {

int64_t InputRow(const ProductArgs& args, int64_t i) {
  return args.input_rows == nullptr ? i : args.input_rows[i];
}

void ClearOutput(const ProductArgs& args) {
  for (int64_t i = 0; i < args.m; ++i) {
    for (int64_t n = args.n_begin; n < args.n_end; ++n) args.y[i * args.y_stride + n] = 0.0F;
  }
}

float AddBlock(const DecodedBlock& w, const ActBlock& x, float y) {
  int32_t dot[2] = {0, 0};
  for (int i = 0; i < kBlock; ++i) {
    dot[i / 16] += (int32_t{w.q[i]} - w.offset) * int32_t{x.q[i]};
  }
  if (w.offset == 32) {  // one scale per 16 elements
    y = fmaf(static_cast<float>(dot[0]), w.scale[0] * x.scale, y);
    return fmaf(static_cast<float>(dot[1]), w.scale[1] * x.scale, y);
  }
  y = fmaf(static_cast<float>(dot[0] + dot[1]), w.scale[0] * x.scale, y);
  return w.offset == 0 ? fmaf(w.min, x.scaled_sum, y) : y;
}

template <PackKind kKind>
void QuantProduct(const ProductArgs& args) {
  ClearOutput(args);
  for (int64_t n = args.n_begin; n < args.n_end; ++n) {
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    for (int64_t b = 0; b < args.steps; ++b) {
      DecodedBlock w;
      ReadBlock(kKind, panel, b, static_cast<int>(n % kQuantPanel), &w);
      for (int64_t i = 0; i < args.m; ++i) {
        const uint8_t* row = args.act + InputRow(args, i) * args.act_stride;
        float* y = args.y + i * args.y_stride + n;
        const auto* x = reinterpret_cast<const ActBlock*>(row) + b;
        *y = AddBlock(w, *x, *y);
        if (x->refined != 0) *y = AddBlock(w, x[args.steps], *y);
      }
    }
  }
}

struct StepF32 {
  static constexpr PackKind kKind = kPackF32;
  static float Add(const uint8_t* w, const uint8_t* x, float y) {
    float a, b;
    memcpy(&a, w, 4);
    memcpy(&b, x, 4);
    return y + a * b;
  }
};

struct StepF16 {
  static constexpr PackKind kKind = kPackF16;
  static float Add(const uint8_t* w, const uint8_t* x, float y) {
    uint16_t a;
    float b;
    memcpy(&a, w, 2);
    memcpy(&b, x, 4);
    return y + HalfToFloat(a) * b;
  }
};

struct StepBF16 {
  static constexpr PackKind kKind = kPackBF16;
  static float Add(const uint8_t* w, const uint8_t* x, float y) {
    uint16_t a[2], b[2];
    memcpy(a, w, 4);
    memcpy(b, x, 4);
    y += Bf16ToFloat(a[0]) * Bf16ToFloat(b[0]);
    return y + Bf16ToFloat(a[1]) * Bf16ToFloat(b[1]);
  }
};

template <typename Step>
void FloatProduct(const ProductArgs& args) {
  constexpr int kBytes = kStepBytes[Step::kKind];
  ClearOutput(args);
  for (int64_t begin = args.n_begin; begin < args.n_end; begin += kFloatPanel) {
    const int64_t left = args.n_end - begin;
    const int64_t count = left < kFloatPanel ? left : kFloatPanel;
    const uint8_t* panel = args.weights + begin / kFloatPanel * args.panel_bytes;
    for (int64_t i = 0; i < args.m; ++i) {
      const uint8_t* x = args.act + InputRow(args, i) * args.act_stride;
      float* y = args.y + i * args.y_stride + begin;
      for (int64_t k = 0; k < args.steps; ++k) {
        const uint8_t* w = panel + k * kBytes;
        for (int64_t c = 0; c < count; ++c)
          y[c] = Step::Add(w + c * (kBytes / kFloatPanel), x + 4 * k, y[c]);
      }
    }
  }
}

// Two sums a block, of even and of odd pairs, as the vector code has them.
void F8Product(const ProductArgs& args) {
  constexpr GroupShape kShape = kGroupShapes[kPackF8];
  constexpr int64_t kGroupBytes =
      kShape.header_bytes + int64_t{kShape.group_blocks} * kShape.block_bytes;
  ClearOutput(args);
  for (int64_t n = args.n_begin; n < args.n_end; ++n) {
    const uint8_t* panel = args.weights + n / kQuantPanel * args.panel_bytes;
    const int64_t c = n % kQuantPanel;
    for (int64_t b = 0; b < args.steps; ++b) {
      const uint8_t* header = panel + b / kShape.group_blocks * kGroupBytes;
      const int64_t j = b % kShape.group_blocks;
      const uint8_t* block = header + kShape.header_bytes + j * kShape.block_bytes + 4 * c;
      float w[kBlock];
      for (int i = 0; i < kBlock; i += 4) {
        const uint8_t* codes = block + 16 * i;
        w[i] = E4M3ToFloat(codes[0]);
        w[i + 1] = E4M3ToFloat(codes[2]);
        w[i + 2] = E4M3ToFloat(codes[1]);
        w[i + 3] = E4M3ToFloat(codes[3]);
      }
      const float scale = E8M0ToFloat(header[kQuantPanel * j + c]);
      for (int64_t i = 0; i < args.m; ++i) {
        const auto* x =
            reinterpret_cast<const uint16_t*>(args.act + InputRow(args, i) * args.act_stride) +
            kBlock * b;
        float sum[2] = {0.0F, 0.0F};
        for (int k = 0; k < kBlock; ++k) {
          sum[k / 2 % 2] = fmaf(w[k], Bf16ToFloat(x[k]), sum[k / 2 % 2]);
        }
        float* y = args.y + i * args.y_stride + n;
        *y = fmaf(sum[0] + sum[1], scale, *y);
      }
    }
  }
}

// Returns the largest magnitude.
float QuantizeBlock(const float* x, int64_t n, ActBlock* out) {
  uint32_t top = 0;  // of the magnitudes' bits: ordered like floats, NaN above all
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffU;
    if (bits > top) top = bits;
  }
  ActBlock block = {};
  float max;
  memcpy(&max, &top, 4);
  int32_t half[2] = {0, 0};
  if (top >= 0x7f800000U) {
    block.scale = NAN;
  } else if (max >= kActSmallest) {
    block.scale = max / 127.0F;
    const float inverse = 127.0F / max;
    for (int64_t i = 0; i < n; ++i) {
      const auto q = static_cast<int32_t>(lrintf(x[i] * inverse));
      block.q[i] = static_cast<int8_t>(q);
      half[i / 16] += q;
    }
  }
  const int32_t sum = half[0] + half[1];
  block.scaled_sum = block.scale * static_cast<float>(sum);
  block.minus8 = -8 * sum;
  block.minus16 = -16 * sum;
  block.minus128 = -128 * sum;
  block.minus32[0] = -32 * half[0];
  block.minus32[1] = -32 * half[1];
  *out = block;
  return max;
}

void Quantize(const float* x, int64_t cols, ActBlock* out, ActBlock* rest) {
  for (int64_t k = 0; k < cols; k += kBlock, ++out, ++rest) {
    const int64_t n = cols - k < kBlock ? cols - k : kBlock;
    const float max = QuantizeBlock(x + k, n, out);
    float energy = 0.0F;
    for (int64_t i = 0; i < n; ++i) energy += x[k + i] * x[k + i];
    if (!(max * max > kRefineShare * energy) || out->scale == 0.0F) continue;
    float left[kBlock];
    for (int64_t i = 0; i < n; ++i) left[i] = fmaf(-out->scale, out->q[i], x[k + i]);
    QuantizeBlock(left, n, rest);
    out->refined = 1;
  }
}

void ToBf16(const float* x, int64_t cols, uint16_t* out) {
  const int64_t padded = (cols + kBlock - 1) / kBlock * kBlock;
  for (int64_t i = 0; i < padded; ++i) out[i] = i < cols ? FloatToBf16(x[i]) : uint16_t{0};
}

}  // namespace

const KernelTable kScalarKernels = {
    {FloatProduct<StepF32>, FloatProduct<StepF16>, FloatProduct<StepBF16>, QuantProduct<kPackQ8_0>,
     QuantProduct<kPackQ4_0>, QuantProduct<kPackQ4_1>, QuantProduct<kPackQ5_0>,
     QuantProduct<kPackQ5_1>, QuantProduct<kPackQ4K>, QuantProduct<kPackQ5K>,
     QuantProduct<kPackQ6K>, QuantProduct<kPackMXFP4>, F8Product},
    {Quantize, ToBf16},
};

}  // namespace deepinfer::cpu
