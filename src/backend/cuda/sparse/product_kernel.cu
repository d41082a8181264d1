// A warp owns sixteen rows of the matrix (and of its pair) over all columns. Lane (g, t) = (lane /
// 4, lane % 4) loads neighbouring columns of rows g and g + 8, decodes them and feeds them to
// m16n8k16 products; its inputs are the same columns of row g of eight. Which column meets which
// slot of the product is free as long as both sides agree.
#include <cuda_bf16.h>

#include <algorithm>

#include "backend/cuda/sparse/device_rows.cuh"
#include "backend/cuda/sparse/product_kernel.h"

namespace deepinfer::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTileRows = 16;

// Chunks of a row that are loaded before they are needed: two where the registers are not missed by
// other warps, as measured on an H200.
DI_HOST_DEVICE constexpr int AheadOf(StoredType type, int matrices, int tiles) {
  return type == kStoredF8 && matrices == 1 && tiles == 1 ? 2 : 1;
}

__device__ uint32_t Times(uint32_t pair, uint32_t factor) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factor));
  return out;
}

// 2^exponent in both halves; exponent within -126 to 127, else the nearest of them.
__device__ uint32_t PowerPair(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(min(max(exponent, -126), 127) + 127) << 7;
  return bits | bits << 16;
}

// What codes must be multiplied with, as two powers: the first undoes the shifted exponent of the
// bits, and takes as much of the scale as it can.
struct Factors {
  uint32_t first;
  uint32_t second;
  bool one;  // the second is 1
};
__device__ Factors FactorsOf(int shifted, uint32_t scale_code) {
  const int exponent = shifted + static_cast<int>(scale_code) - 127;
  const int first = min(exponent, 127);
  return {PowerPair(first), PowerPair(exponent - first), exponent <= 127};
}
__device__ uint32_t Scaled(uint32_t bits, const Factors& factors) {
  const uint32_t once = Times(bits, factors.first);
  return factors.one ? once : Times(once, factors.second);
}

// Columns that a lane holds of one row of a chunk, 16 bytes.
template <StoredType kType>
struct Chunk;

template <>
struct Chunk<kStoredBf16> {
  static constexpr int kColumns = 8;
  static __device__ void Decode(const uint4& raw, const Factors&, uint32_t* out) {
    out[0] = raw.x, out[1] = raw.y, out[2] = raw.z, out[3] = raw.w;
  }
  static constexpr int kShifted = 0;
};

template <>
struct Chunk<kStoredF8> {
  static constexpr int kColumns = 16;
  static constexpr int kShifted = 120;  // bias 127 of bf16 less 7
  static __device__ void Decode(const uint4& raw, const Factors& factors, uint32_t* out) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // two codes to the upper bytes of the halves
        const uint32_t v = __byte_perm(words[w], 0U, i == 0 ? 0x1404U : 0x3424U);
        out[2 * w + i] = Scaled((v & 0x80008000U) | (v >> 4 & 0x07f007f0U), factors);
      }
    }
  }
};

template <>
struct Chunk<kStoredF4> {
  static constexpr int kColumns = 32;
  static constexpr int kShifted = 126;
  static __device__ void Decode(const uint4& raw, const Factors& factors, uint32_t* out) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t v = words[w] >> (4 * i);
        out[4 * w + i] = Scaled((v << 6 & 0x01c001c0U) | (v << 12 & 0x80008000U), factors);
      }
    }
  }
};

__device__ void Multiply(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sum)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A lane's two rows of one matrix.
template <StoredType kType>
struct Rows {
  using At = Chunk<kType>;
  const uint4* codes[2];
  const uint8_t* scales[2];
  int block_cols;
  int column;  // the lane's first within a chunk

  __device__ Rows(const StoredMatrix& matrix, int64_t expert_bytes, int padded, int expert,
                  int tile, int lane) {
    const int row = tile * kTileRows + lane / 4;
    column = lane % 4 * At::kColumns;
    block_cols = matrix.block_cols;
    const std::byte* base = matrix.codes + expert * expert_bytes;
    const int64_t row_bytes = int64_t{padded} / At::kColumns * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      codes[i] = reinterpret_cast<const uint4*>(base + (row + 8 * i) * row_bytes + lane % 4 * 16);
      // Rows beyond the last are zeros; any scale will do.
      const int scale_row =
          matrix.scale_rows > 0 ? min((row + 8 * i) / matrix.block_rows, matrix.scale_rows - 1) : 0;
      scales[i] =
          matrix.scales + (int64_t{expert} * matrix.scale_rows + scale_row) * matrix.scale_cols;
    }
  }
  __device__ uint4 Load(int i, int chunk) const { return __ldg(codes[i] + chunk * 4); }
  __device__ Factors ScaleOf(int i, int chunk, int scale_cols) const {
    if (kType == kStoredBf16) return {};
    const int block = (chunk * 4 * At::kColumns + column) / block_cols;
    return FactorsOf(At::kShifted, __ldg(scales[i] + min(block, scale_cols - 1)));
  }
};

__device__ float Silu(float x) { return x / (1.0F + expf(-x)); }

__device__ void Store(const ProductAt& at, int entry, int row, float y, float up) {
  const int of_group = at.rows / at.groups;
  const int64_t to = at.begin != nullptr ? entry : entry % of_group * at.groups + entry / of_group;
  float* out = at.out + to * at.out_stride + row;
  if (at.bias != nullptr) y += at.bias[row];
  if (at.epilogue == kProductStore) {
    *out = y;
  } else if (at.epilogue == kProductAdd) {
    *out += y;
  } else {
    if (at.pair_bias != nullptr) up += at.pair_bias[row];
    if (at.gate_limit > 0.0F) {  // a NaN stays one
      const float limit = at.gate_limit;
      y = y > limit ? limit : y;
      up = up > limit ? limit : (up < -limit ? -limit : up);
    }
    *out = Silu(y) * up;
  }
}

// A chunk of the matrices' rows by the same columns of the inputs, `count` of which are real.
template <StoredType kType, int kMatrices, int kTiles>
__device__ void MultiplyChunk(const uint32_t (&a)[kMatrices][2][Chunk<kType>::kColumns / 2],
                              const uint4* const (&input)[kTiles], int chunk, int count,
                              float (&sum)[kMatrices][kTiles][4]) {
  constexpr int kPairs = Chunk<kType>::kColumns / 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (8 * n >= count) break;
#pragma unroll
    for (int p = 0; p < kPairs; p += 4) {  // 16 bytes of input, two steps of 16 columns
      const uint4 b = __ldg(input[n] + chunk * (Chunk<kType>::kColumns / 2) + p / 4);
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const uint32_t low[4] = {a[m][0][p], a[m][1][p], a[m][0][p + 1], a[m][1][p + 1]};
        Multiply(low, b.x, b.y, sum[m][n]);
        const uint32_t high[4] = {a[m][0][p + 2], a[m][1][p + 2], a[m][0][p + 3], a[m][1][p + 3]};
        Multiply(high, b.z, b.w, sum[m][n]);
      }
    }
  }
}

template <StoredType kType, int kMatrices, int kTiles>  // of eight inputs
__global__ void __launch_bounds__(kThreads) ProductKernel(const __grid_constant__ ProductAt at) {
  using At = Chunk<kType>;
  constexpr int kAhead = AheadOf(kType, kMatrices, kTiles);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int expert = static_cast<int>(blockIdx.y);
  if (tile * kTileRows >= at.matrix.rows) return;
  const int begin = at.begin != nullptr ? at.begin[expert] : at.rows / at.groups * expert;
  const int end = at.begin != nullptr ? at.begin[expert + 1] : begin + at.rows / at.groups;
  const int padded = Padded(at.matrix.cols, kPaddedColumns);
  const int chunks = padded / (4 * At::kColumns);
  for (int first = begin + static_cast<int>(blockIdx.z) * 8 * kTiles; first < end;
       first += static_cast<int>(gridDim.z) * 8 * kTiles) {
    const Rows<kType> rows(at.matrix, at.matrix.expert_bytes(), padded, expert, tile, lane);
    const Rows<kType> pair(kMatrices == 2 ? at.pair : at.matrix, at.matrix.expert_bytes(), padded,
                           expert, tile, lane);
    const uint4* input[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int entry = min(first + 8 * n + lane / 4, end - 1);
      const int64_t row = at.input_row != nullptr ? at.input_row[entry] : entry;
      input[n] = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(at.input) +
                                                row * padded + lane % 4 * At::kColumns);
    }
    float sum[kMatrices][kTiles][4] = {};
    uint4 ahead[kAhead][kMatrices][2];
#pragma unroll
    for (int c = 0; c < kAhead; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (c >= chunks) break;
        ahead[c][0][i] = rows.Load(i, c);
        if (kMatrices == 2) ahead[c][kMatrices - 1][i] = pair.Load(i, c);
      }
    }
    for (int base = 0; base < chunks; base += kAhead) {
#pragma unroll
      for (int c = 0; c < kAhead; ++c) {
        const int chunk = base + c;
        if (chunk >= chunks) break;
        uint32_t a[kMatrices][2][At::kColumns / 2];
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          const Rows<kType>& own = m == 0 ? rows : pair;
          const StoredMatrix& matrix = m == 0 ? at.matrix : at.pair;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint4 raw = ahead[c][m][i];
            if (chunk + kAhead < chunks) ahead[c][m][i] = own.Load(i, chunk + kAhead);
            At::Decode(raw, own.ScaleOf(i, chunk, matrix.scale_cols), a[m][i]);
          }
        }
        MultiplyChunk<kType, kMatrices, kTiles>(a, input, chunk, end - first, sum);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int entry = first + 8 * n + lane % 4 * 2 + i % 2;
        const int row = tile * kTileRows + lane / 4 + i / 2 * 8;
        if (entry >= end || row >= at.matrix.rows) continue;
        Store(at, entry, row, sum[0][n][i], sum[kMatrices - 1][n][i]);
      }
    }
  }
}

// float32: a warp takes a row of the matrix and eight inputs at a time.
constexpr int kExactInputs = 8;

__device__ void ExactSums(const ProductAt& at, const StoredMatrix& matrix, int expert, int row,
                          const int (&entry)[kExactInputs], float (&sum)[kExactInputs]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int padded = Padded(matrix.cols, kPaddedColumns);
  const float* weight = reinterpret_cast<const float*>(matrix.codes) +
                        (int64_t{expert} * Padded(matrix.rows, kPaddedRows) + row) * padded;
  const float* input[kExactInputs];
#pragma unroll
  for (int n = 0; n < kExactInputs; ++n) {
    const int64_t from = at.input_row != nullptr ? at.input_row[entry[n]] : entry[n];
    input[n] = static_cast<const float*>(at.input) + from * padded;
    sum[n] = 0.0F;
  }
  for (int c = lane; c < padded; c += 32) {
    const float w = weight[c];
#pragma unroll
    for (int n = 0; n < kExactInputs; ++n) sum[n] = fmaf(w, input[n][c], sum[n]);
  }
#pragma unroll
  for (int n = 0; n < kExactInputs; ++n) {
    for (int step = 16; step > 0; step /= 2) {
      sum[n] += __shfl_xor_sync(0xffffffffU, sum[n], step);
    }
  }
}

__global__ void __launch_bounds__(kThreads) ExactKernel(const __grid_constant__ ProductAt at) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int expert = static_cast<int>(blockIdx.y);
  if (row >= at.matrix.rows) return;
  const int begin = at.begin != nullptr ? at.begin[expert] : at.rows / at.groups * expert;
  const int end = at.begin != nullptr ? at.begin[expert + 1] : begin + at.rows / at.groups;
  for (int first = begin + static_cast<int>(blockIdx.z) * kExactInputs; first < end;
       first += static_cast<int>(gridDim.z) * kExactInputs) {
    int entry[kExactInputs];
    for (int n = 0; n < kExactInputs; ++n) entry[n] = min(first + n, end - 1);
    float y[kExactInputs], up[kExactInputs] = {};
    ExactSums(at, at.matrix, expert, row, entry, y);
    if (at.epilogue == kProductSiluMul) ExactSums(at, at.pair, expert, row, entry, up);
#pragma unroll
    for (int n = 0; n < kExactInputs; ++n) {
      if (static_cast<int>(threadIdx.x) % 32 == n && first + n < end) {
        Store(at, first + n, row, y[n], up[n]);
      }
    }
  }
}

constexpr int kInputThreads = 256;

__global__ void __launch_bounds__(kInputThreads) InputKernel(InputRowsAt at) {
  __shared__ float of_warp[kInputThreads / 32];
  const int64_t row = blockIdx.x;
  const int padded = Padded(at.cols, kPaddedColumns);
  const int of_group = at.rows / at.groups;
  const int64_t own = row % of_group * at.groups + row / of_group;
  const float* from = at.x + (at.index != nullptr ? at.index[own] : own) * at.stride;
  float scale = 1.0F;
  if (at.norm != nullptr) {
    float sum = 0.0F;
    for (int c = static_cast<int>(threadIdx.x); c < at.cols; c += kInputThreads) {
      sum += from[c] * from[c];
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0F;
    for (int w = 0; w < kInputThreads / 32; ++w) sum += of_warp[w];
    scale = 1.0F / sqrtf(sum / static_cast<float>(at.cols) + at.norm_eps);
  }
  for (int c = static_cast<int>(threadIdx.x); c < padded; c += kInputThreads) {
    float value = c < at.cols ? from[c] : 0.0F;
    if (at.norm != nullptr && c < at.cols) value = value * scale * at.norm[c];
    if (at.float32 != nullptr) at.float32[row * padded + c] = value;
    if (at.bf16 != nullptr) {
      static_cast<__nv_bfloat16*>(at.bf16)[row * padded + c] = __float2bfloat16_rn(value);
    }
  }
}

__device__ uint32_t NibbleAt(const std::byte* codes, int64_t element) {
  const auto byte = static_cast<uint32_t>(*reinterpret_cast<const uint8_t*>(codes + element / 2));
  return byte >> (element % 2 * 4) & 15U;
}

__global__ void PackKernel(StoredType type, const std::byte* codes, int rows, int cols,
                           std::byte* out) {
  const int row = static_cast<int>(blockIdx.x);
  const int padded = Padded(cols, kPaddedColumns);
  const int step = static_cast<int>(blockDim.x);
  if (type == kStoredF4) {
    auto* words = reinterpret_cast<uint32_t*>(out) + int64_t{row} * padded / 8;
    for (int w = static_cast<int>(threadIdx.x); w < padded / 8; w += step) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        const int c = 8 * w + i;
        if (row >= rows || c >= cols) continue;
        word |= NibbleAt(codes + int64_t{row} * ((cols + 1) / 2), c) << (4 * PackedNibble(i));
      }
      words[w] = word;
    }
    return;
  }
  const int size = type == kStoredF32 ? 4 : type == kStoredBf16 ? 2 : 1;
  const auto* from = reinterpret_cast<const uint8_t*>(codes) + int64_t{row} * cols * size;
  auto* to = reinterpret_cast<uint8_t*>(out) + int64_t{row} * padded * size;
  for (int b = static_cast<int>(threadIdx.x); b < padded * size; b += step) {
    to[b] = row < rows && b < cols * size ? from[b] : uint8_t{0};
  }
}

__device__ float ElementOf(const StoredMatrix& matrix, int64_t row, int c) {
  const int64_t at = row * Padded(matrix.cols, kPaddedColumns) + c;
  if (matrix.type == kStoredF32) return reinterpret_cast<const float*>(matrix.codes)[at];
  if (matrix.type == kStoredBf16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(matrix.codes)[at]);
  }
  const uint32_t code =
      matrix.scales[row / matrix.block_rows * matrix.scale_cols + c / matrix.block_cols];
  const float scale = E8M0Value(code);
  if (matrix.type == kStoredF8) return E4M3Value(ByteAt(matrix.codes + at)) * scale;
  const uint32_t word = reinterpret_cast<const uint32_t*>(matrix.codes)[at / 8];
  return E2M1Value(word >> (4 * PackedNibble(c % 8))) * scale;
}

__global__ void EmbedKernel(StoredMatrix matrix, const int32_t* token, float* out) {
  const int64_t t = blockIdx.x;
  const int32_t row = token[t];
  for (int c = static_cast<int>(threadIdx.x); c < matrix.cols; c += static_cast<int>(blockDim.x)) {
    out[t * matrix.cols + c] =
        row < 0 || row >= matrix.rows ? __uint_as_float(0x7fc00000U) : ElementOf(matrix, row, c);
  }
}

template <StoredType kType, int kMatrices, int kTiles>
void Launch(const ProductAt& at, cudaStream_t stream) {
  const int tiles = Padded(at.matrix.rows, kTileRows) / kTileRows;
  // Groups of experts are mostly small; the rest of a large one is left to the loop.
  const int most = at.begin != nullptr ? at.rows : at.rows / at.groups;
  const int spans = (most + 8 * kTiles - 1) / (8 * kTiles);
  const int depth = std::min(spans, at.begin != nullptr ? 4 : 1024);
  ProductKernel<kType, kMatrices, kTiles>
      <<<dim3((tiles + kWarps - 1) / kWarps, at.groups, depth), kThreads, 0, stream>>>(at);
}

template <StoredType kType, int kMatrices>
void LaunchFor(const ProductAt& at, cudaStream_t stream) {
  // Rows of a group, were they spread evenly: the width changes no result.
  const int even = (at.rows + at.groups - 1) / at.groups;
  const int rows = at.begin == nullptr ? even : 2 * even;
  if (rows <= 8) return Launch<kType, kMatrices, 1>(at, stream);
  if constexpr (kType == kStoredF4) {
    if (rows <= 16) return Launch<kType, kMatrices, 2>(at, stream);
  }
  Launch<kType, kMatrices, 4>(at, stream);
}

template <StoredType kType>
void LaunchType(const ProductAt& at, cudaStream_t stream) {
  if (at.epilogue == kProductSiluMul) return LaunchFor<kType, 2>(at, stream);
  LaunchFor<kType, 1>(at, stream);
}

}  // namespace

void RunProduct(const ProductAt& at, cudaStream_t stream) {
  if (at.rows == 0) return;
  if (at.matrix.type == kStoredBf16) return LaunchType<kStoredBf16>(at, stream);
  if (at.matrix.type == kStoredF8) return LaunchType<kStoredF8>(at, stream);
  if (at.matrix.type == kStoredF4) return LaunchType<kStoredF4>(at, stream);
  const int most = at.begin != nullptr ? at.rows : at.rows / at.groups;
  const int spans = (most + kExactInputs - 1) / kExactInputs;
  const dim3 grid((at.matrix.rows + kWarps - 1) / kWarps, at.groups,
                  std::min(spans, at.begin != nullptr ? 4 : 1024));
  ExactKernel<<<grid, kThreads, 0, stream>>>(at);
}

void PrepareInput(const InputRowsAt& at, cudaStream_t stream) {
  if (at.rows > 0) InputKernel<<<at.rows, kInputThreads, 0, stream>>>(at);
}

void EmbedRows(const StoredMatrix& matrix, const int32_t* token, int tokens, float* out,
               cudaStream_t stream) {
  if (tokens > 0) EmbedKernel<<<tokens, 256, 0, stream>>>(matrix, token, out);
}

void PackCodes(StoredType type, const std::byte* codes, int rows, int cols, std::byte* out,
               cudaStream_t stream) {
  PackKernel<<<Padded(rows, kPaddedRows), 128, 0, stream>>>(type, codes, rows, cols, out);
}

}  // namespace deepinfer::cuda
