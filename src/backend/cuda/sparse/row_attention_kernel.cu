// Attention over shared rows in float32 arithmetic: a block takes sixteen heads of a token and one
// split of its list; rows pass through shared memory in tiles.
#include "backend/cuda/sparse/row_list.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeads = 16;
constexpr int kTile = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kLog2E = 1.44269504088896341F;
constexpr float kNoMax = -1e30F;  // finite: no difference of two is NaN

// Rows that stand next to each other start 16 banks apart.
__host__ __device__ constexpr int StrideOf(int dim) { return (dim + 31) / 32 * 32 + 16; }

struct Tile {
  float* rows;    // [32, stride]
  float* q;       // [16, stride]
  float* weight;  // [32, 16]
  float* keep;    // [16]
  float* max;
  float* sum;
};

__device__ void LoadQueries(const RowAttentionAt& at, int t, int head, int stride, float* q) {
  const float scale = at.scale * kLog2E;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * stride; i += kThreads) {
    const int h = head + i / stride;
    const int d = i % stride;
    const bool real = h < at.heads && d < at.q_dim;
    q[i] = real ? at.q[(int64_t{t} * at.heads + h) * at.q_dim + d] * scale : 0.0F;
  }
}

// Rows [first, first + count) of the list, and zeros for the rest of the tile.
__device__ void LoadTile(const RowAttentionAt& at, const RowList& list, int first, int count,
                         int stride, float* rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < kTile; r += kWarps) {
    float* to = rows + r * stride;
    if (r >= count) {
      for (int d = lane; d < stride; d += 32) to[d] = 0.0F;
      continue;
    }
    bool fp4;
    const std::byte* from = RowOf(at, list, first + r, &fp4);
    const bool plain = at.kind == kListPlain || at.kind == kListHistory;
    for (int d = lane; d < at.row_dim; d += 32) {
      to[d] = plain ? LoadElement(from, d, at.float32)
              : fp4 ? MainElement(from, at.row_dim, d)
                    : WindowElement(from, at.row_dim, d);
    }
    for (int d = at.row_dim + lane; d < stride; d += 32) to[d] = 0.0F;
  }
}

__device__ float Dot4(float4 a, float4 b, float sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}

// weight[r, h] = q_h . row_r: four lanes share four heads and two rows.
__device__ void Score(const Tile& tile, int dim, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int part = lane % 4;
  const int head = warp % 4 * 4;
  const int row = warp / 4 * 16 + lane / 4;
  float sum[4][2] = {};
  for (int d = part * 4; d < dim; d += 16) {
    const float4 a = *reinterpret_cast<const float4*>(tile.rows + row * stride + d);
    const float4 b = *reinterpret_cast<const float4*>(tile.rows + (row + 8) * stride + d);
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const float4 q = *reinterpret_cast<const float4*>(tile.q + (head + h) * stride + d);
      sum[h][0] = Dot4(q, a, sum[h][0]);
      sum[h][1] = Dot4(q, b, sum[h][1]);
    }
  }
#pragma unroll
  for (int h = 0; h < 4; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x = sum[h][r];
      x += __shfl_xor_sync(kWholeWarp, x, 1);
      x += __shfl_xor_sync(kWholeWarp, x, 2);
      if (part == h) tile.weight[(row + 8 * r) * kHeads + head + h] = x;
    }
  }
}

// Scores of `count` rows to weights; the running maximum and sum of every head.
__device__ void Soften(const Tile& tile, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int h = static_cast<int>(threadIdx.x) / 32; h < kHeads; h += kWarps) {
    const float score = lane < count ? tile.weight[lane * kHeads + h] : kNoMax;
    const float before = tile.max[h];
    const float max = fmaxf(before, WarpMax(score));
    const float weight = lane < count ? exp2f(score - max) : 0.0F;
    const float sum = WarpSum(weight);
    tile.weight[lane * kHeads + h] = weight;
    __syncwarp();
    if (lane != 0) continue;
    const float keep = exp2f(before - max);
    tile.keep[h] = keep;
    tile.max[h] = max;
    tile.sum[h] = tile.sum[h] * keep + sum;
  }
}

template <int kParts>  // of 256 elements of a value
__device__ void Accumulate(const Tile& tile, int stride, float (&acc)[kParts][kHeads]) {
  const int d = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float keep = tile.keep[h];
#pragma unroll
    for (int i = 0; i < kParts; ++i) acc[i][h] *= keep;
  }
  for (int r = 0; r < kTile; ++r) {
    float weight[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; h += 4) {
      *reinterpret_cast<float4*>(weight + h) =
          *reinterpret_cast<const float4*>(tile.weight + r * kHeads + h);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float value = d + i * kThreads < stride ? tile.rows[r * stride + d + i * kThreads] : 0;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) acc[i][h] = fmaf(weight[h], value, acc[i][h]);
    }
  }
}

// Partial results of a token (in this launch), split and head: sum and maximum, then the values.
__device__ float* PartialOf(const RowAttentionAt& at, int token, int split, int head) {
  const int64_t splits = (at.rows_max + kRowSplit - 1) / kRowSplit;
  return at.partial + ((token * splits + split) * at.heads + head) * (at.value_dim + 2);
}

template <int kParts>
__global__ void __launch_bounds__(kThreads)
    AttendKernel(const __grid_constant__ RowAttentionAt at, int first_token) {
  extern __shared__ float4 memory[];
  const int token = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kHeads;
  const int split = static_cast<int>(blockIdx.z);
  const RowList list = ListOf(at, first_token + token);
  const int begin = split * kRowSplit;
  if (begin >= list.count) return;
  const int end = min(list.count, begin + kRowSplit);
  const int stride = StrideOf(at.row_dim);
  Tile tile;
  tile.rows = reinterpret_cast<float*>(memory);
  tile.q = tile.rows + kTile * stride;
  tile.weight = tile.q + kHeads * stride;
  tile.keep = tile.weight + kTile * kHeads;
  tile.max = tile.keep + kHeads;
  tile.sum = tile.max + kHeads;
  LoadQueries(at, first_token + token, head, stride, tile.q);
  if (threadIdx.x < kHeads) {
    tile.max[threadIdx.x] = kNoMax;
    tile.sum[threadIdx.x] = 0.0F;
  }
  float acc[kParts][kHeads] = {};
  const int dim = (at.row_dim + 15) / 16 * 16;
  for (int first = begin; first < end; first += kTile) {
    const int count = min(kTile, end - first);
    __syncthreads();
    LoadTile(at, list, first, count, stride, tile.rows);
    __syncthreads();
    Score(tile, dim, stride);
    __syncthreads();
    Soften(tile, count);
    __syncthreads();
    Accumulate<kParts>(tile, stride, acc);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (head + h >= at.heads) break;
    float* to = PartialOf(at, token, split, head + h);
    if (threadIdx.x == 0) {
      to[0] = tile.sum[h];
      to[1] = tile.max[h];
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int d = static_cast<int>(threadIdx.x) + i * kThreads;
      if (d < at.value_dim) to[2 + d] = acc[i][h];
    }
  }
}

// Merges the splits of a token's head, ascending; then the sink, which adds no value.
__global__ void MergeKernel(const __grid_constant__ RowAttentionAt at, int first_token) {
  extern __shared__ float out[];
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int token = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const RowList list = ListOf(at, first_token + token);
  float* to = at.out + (int64_t{first_token + token} * at.heads + head) * at.value_dim;
  if (list.count == 0 && at.kind != kListDraft && at.step.Dead(first_token + token)) {
    for (int d = static_cast<int>(threadIdx.x); d < at.value_dim; d += kThreads) to[d] = 0.0F;
    return;
  }
  const int splits = (list.count + kRowSplit - 1) / kRowSplit;
  float max = at.sink != nullptr ? at.sink[head] * kLog2E : kNoMax;
  for (int s = 0; s < splits; ++s) max = fmaxf(max, PartialOf(at, token, s, head)[1]);
  float sum = at.sink != nullptr ? exp2f(at.sink[head] * kLog2E - max) : 0.0F;
  for (int s = 0; s < splits; ++s) {
    const float* part = PartialOf(at, token, s, head);
    sum += part[0] * exp2f(part[1] - max);
  }
  const float scale = 1.0F / sum;
  for (int d = static_cast<int>(threadIdx.x); d < at.value_dim; d += kThreads) {
    float value = 0.0F;
    for (int s = 0; s < splits; ++s) {
      const float* part = PartialOf(at, token, s, head);
      value += part[2 + d] * exp2f(part[1] - max);
    }
    out[d] = value * scale;
  }
  __syncthreads();
  if (at.unrotate.half > 0) {
    LoadCosSin(at.unrotate, list.position, cos_sin);
    for (int i = static_cast<int>(threadIdx.x); i < at.unrotate.half; i += kThreads) {
      cos_sin[i].y = -cos_sin[i].y;
    }
    __syncthreads();
    RotateTail(cos_sin, at.unrotate.half, at.value_dim, out);
  }
  for (int d = static_cast<int>(threadIdx.x); d < at.value_dim; d += kThreads) to[d] = out[d];
}

template <int kParts>
void Launch(const RowAttentionAt& at, int first, int tokens, cudaStream_t stream) {
  const int stride = StrideOf(at.row_dim);
  const int bytes =
      ((kTile + kHeads) * stride + kTile * kHeads + 3 * kHeads) * static_cast<int>(sizeof(float));
  cudaFuncSetAttribute(AttendKernel<kParts>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(tokens, (at.heads + kHeads - 1) / kHeads, RowSplits(at.rows_max));
  AttendKernel<kParts><<<grid, kThreads, bytes, stream>>>(at, first);
}

}  // namespace

void AttendRows(const RowAttentionAt& at, int first, int tokens, cudaStream_t stream) {
  if (at.value_dim <= kThreads) {
    Launch<1>(at, first, tokens, stream);
  } else if (at.value_dim <= 2 * kThreads) {
    Launch<2>(at, first, tokens, stream);
  } else {
    Launch<4>(at, first, tokens, stream);
  }
  const int bytes = at.value_dim * static_cast<int>(sizeof(float));
  MergeKernel<<<dim3(tokens, at.heads), kThreads, bytes, stream>>>(at, first);
}

}  // namespace deepinfer::cuda
