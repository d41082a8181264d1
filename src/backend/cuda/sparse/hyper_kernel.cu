#include "backend/cuda/sparse/device_rows.cuh"
#include "backend/cuda/sparse/hyper_kernel.h"

namespace deepinfer::cuda {
namespace {

constexpr int kStreamsMost = 8;
constexpr int kRowThreads = 1024;
constexpr int kColumnThreads = 256;

dim3 ColumnGrid(const StreamsAt& shape) {
  return dim3(shape.rows, (shape.hidden + kColumnThreads - 1) / kColumnThreads);
}
__device__ int Column() { return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); }

// 1 / rms of `width` elements.
__device__ float InverseRms(const float* x, int64_t width, float eps) {
  float sum = 0.0F;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) sum += x[i] * x[i];
  return 1.0F / sqrtf(BlockSum(sum) / static_cast<float>(width) + eps);
}

__global__ void StartKernel(StreamsAt shape, const float* embedded, float* x, float* pre) {
  const int64_t row = blockIdx.x;
  const int d = Column();
  if (d >= shape.hidden) return;
  const float value = embedded[row * shape.hidden + d];
  for (int i = 0; i < shape.streams; ++i) {
    x[(row * shape.streams + i) * shape.hidden + d] = value;
    if (d == 0) pre[row * shape.streams + i] = i == 0 ? 1.0F : 0.0F;
  }
}

__device__ float EightLanesSum(float x) {
  for (int step = 4; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  return x;
}

// Lane j < 8 of the warp holds row j, zeros beyond n. Softmax of the rows, then columns and rows
// divided by their sums in turn, columns last.
__device__ void Balance(int n, int iterations, float eps, bool own, float* row) {
  float max = row[0];
  for (int k = 1; k < kStreamsMost; ++k) {
    if (k < n) max = fmaxf(max, row[k]);
  }
  float sum = 0.0F;
  for (int k = 0; k < kStreamsMost; ++k) {
    row[k] = k < n ? expf(row[k] - max) : 0.0F;
    sum += row[k];
  }
  for (int k = 0; k < kStreamsMost; ++k) row[k] = k < n && own ? row[k] / sum + eps : 0.0F;
  for (int round = 0; round < iterations; ++round) {
    if (round > 0) {
      sum = eps;
      for (int k = 0; k < kStreamsMost; ++k) sum += row[k];
      for (int k = 0; k < kStreamsMost; ++k) row[k] = own && k < n ? row[k] / sum : 0.0F;
    }
    for (int k = 0; k < kStreamsMost; ++k) {
      const float column = EightLanesSum(row[k]) + eps;
      row[k] = own && k < n ? row[k] / column : 0.0F;
    }
  }
}

__global__ void MixKernel(StreamMixAt at) {
  const int64_t row = blockIdx.x;
  const int n = at.shape.streams;
  const int64_t width = int64_t{n} * at.shape.hidden;
  const float norm = InverseRms(at.x + row * width, width, at.norm_eps);
  if (threadIdx.x >= 32) return;
  const float* raw = at.raw + row * n * (n + 2);
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < n) {
    at.pre[row * n + lane] = SigmoidOf(raw[lane] * norm * at.scale[0] + at.base[lane]) + at.hc_eps;
    at.post[row * n + lane] =
        2.0F * SigmoidOf(raw[n + lane] * norm * at.scale[1] + at.base[n + lane]);
  }
  const int j = lane % kStreamsMost;
  float comb[kStreamsMost];
  for (int k = 0; k < kStreamsMost; ++k) {
    const int i = 2 * n + j * n + k;
    comb[k] = j < n && k < n ? raw[i] * norm * at.scale[2] + at.base[i] : 0.0F;
  }
  Balance(n, at.sinkhorn_iters, at.hc_eps, j < n, comb);
  for (int k = 0; k < kStreamsMost; ++k) {
    if (lane < n && k < n) at.comb[(row * n + lane) * n + k] = comb[k];
  }
}

__global__ void CollapseKernel(StreamsAt shape, const float* x, const float* pre, float* out) {
  const int64_t row = blockIdx.x;
  const int d = Column();
  if (d >= shape.hidden) return;
  const float* at = x + row * shape.streams * shape.hidden + d;
  float sum = pre[row * shape.streams] * at[0];
  for (int i = 1; i < shape.streams; ++i) {
    sum += pre[row * shape.streams + i] * at[int64_t{i} * shape.hidden];
  }
  out[row * shape.hidden + d] = sum;
}

__global__ void ExpandKernel(StreamsAt shape, const float* y, const float* post, const float* comb,
                             float* x) {
  const int64_t row = blockIdx.x;
  const int d = Column();
  if (d >= shape.hidden) return;
  const int n = shape.streams;
  float* at = x + row * n * shape.hidden + d;
  float old[kStreamsMost];
#pragma unroll
  for (int j = 0; j < kStreamsMost; ++j) old[j] = j < n ? at[int64_t{j} * shape.hidden] : 0.0F;
  const float added = y[row * shape.hidden + d];
  for (int k = 0; k < n; ++k) {
    float sum = post[row * n + k] * added;
#pragma unroll
    for (int j = 0; j < kStreamsMost; ++j) {
      if (j < n) sum += comb[(row * n + j) * n + k] * old[j];
    }
    at[int64_t{k} * shape.hidden] = sum;
  }
}

__global__ void MeanKernel(StreamsAt shape, const float* x, float* out, int64_t stride) {
  const int64_t row = blockIdx.x;
  const int d = Column();
  if (d >= shape.hidden) return;
  float sum = 0.0F;
  for (int i = 0; i < shape.streams; ++i) {
    sum += x[(row * shape.streams + i) * shape.hidden + d];
  }
  out[row * stride + d] = sum * (1.0F / static_cast<float>(shape.streams));
}

__global__ void CollapseHeadKernel(HeadCollapseAt at) {
  const int64_t row = blockIdx.x;
  const int n = at.shape.streams;
  const int64_t width = int64_t{n} * at.shape.hidden;
  const float* x = at.x + row * width;
  const float norm = InverseRms(x, width, at.norm_eps);
  float pre[kStreamsMost];
#pragma unroll
  for (int i = 0; i < kStreamsMost; ++i) {
    pre[i] =
        i < n ? SigmoidOf(at.raw[row * n + i] * norm * at.scale[0] + at.base[i]) + at.hc_eps : 0.0F;
  }
  for (int64_t d = threadIdx.x; d < at.shape.hidden; d += blockDim.x) {
    float sum = pre[0] * x[d];
#pragma unroll
    for (int i = 1; i < kStreamsMost; ++i) {
      if (i < n) sum += pre[i] * x[int64_t{i} * at.shape.hidden + d];
    }
    at.out[row * at.shape.hidden + d] = sum;
  }
}

__global__ void AddKernel(StreamsAt shape, const float* added, float* x) {
  const int64_t row = blockIdx.x;
  const int d = Column();
  if (d >= shape.hidden) return;
  for (int i = 0; i < shape.streams; ++i) {
    x[(row * shape.streams + i) * shape.hidden + d] += added[row * shape.hidden + d];
  }
}

__global__ void NgramGateKernel(NgramGateAt at) {
  const int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y);
  if (at.kind[row] != kTextToken) return;
  const int n = at.shape.streams;
  const int64_t hidden = at.shape.hidden;
  float* x = at.x + (row * n + i) * hidden;
  const float* keys = at.kv + row * (n + 1) * hidden;
  const float* key = keys + i * hidden;
  const float* q = at.q_weight + i * hidden;
  const float* k = at.k_weight + i * hidden;
  float xx = 0.0F, kk = 0.0F, xk = 0.0F;
  for (int64_t d = threadIdx.x; d < hidden; d += blockDim.x) {
    xx += x[d] * x[d];
    kk += key[d] * key[d];
    xk += x[d] * (q[d] * k[d]) * key[d];
  }
  xx = BlockSum(xx);
  kk = BlockSum(kk);
  xk = BlockSum(xk);
  const float count = static_cast<float>(hidden);
  const float rx = 1.0F / sqrtf(xx / count + at.norm_eps);
  const float rk = 1.0F / sqrtf(kk / count + at.norm_eps);
  const float dot = xk * (rx * rk) * (1.0F / sqrtf(count));
  // fmaxf would lose a NaN, which shows the sequence to be lost.
  const float size = fabsf(dot) < 1e-6F ? 1e-6F : fabsf(dot);
  const float gate = SigmoidOf(copysignf(sqrtf(size), dot));
  for (int64_t d = threadIdx.x; d < hidden; d += blockDim.x) x[d] += gate * keys[n * hidden + d];
}

}  // namespace

void StartStreams(const StreamsAt& shape, const float* embedded, float* x, float* pre,
                  cudaStream_t stream) {
  StartKernel<<<ColumnGrid(shape), kColumnThreads, 0, stream>>>(shape, embedded, x, pre);
}

void MixStreams(const StreamMixAt& at, cudaStream_t stream) {
  MixKernel<<<at.shape.rows, kRowThreads, 0, stream>>>(at);
}

void CollapseStreams(const StreamsAt& shape, const float* x, const float* pre, float* out,
                     cudaStream_t stream) {
  CollapseKernel<<<ColumnGrid(shape), kColumnThreads, 0, stream>>>(shape, x, pre, out);
}

void ExpandStreams(const StreamsAt& shape, const float* y, const float* post, const float* comb,
                   float* x, cudaStream_t stream) {
  ExpandKernel<<<ColumnGrid(shape), kColumnThreads, 0, stream>>>(shape, y, post, comb, x);
}

void MeanStreams(const StreamsAt& shape, const float* x, float* out, int64_t stride,
                 cudaStream_t stream) {
  MeanKernel<<<ColumnGrid(shape), kColumnThreads, 0, stream>>>(shape, x, out, stride);
}

void CollapseHead(const HeadCollapseAt& at, cudaStream_t stream) {
  CollapseHeadKernel<<<at.shape.rows, kRowThreads, 0, stream>>>(at);
}

void AddToStreams(const StreamsAt& shape, const float* row, float* x, cudaStream_t stream) {
  AddKernel<<<ColumnGrid(shape), kColumnThreads, 0, stream>>>(shape, row, x);
}

void NgramGate(const NgramGateAt& at, cudaStream_t stream) {
  NgramGateKernel<<<dim3(at.shape.rows, at.shape.streams), kRowThreads, 0, stream>>>(at);
}

}  // namespace deepinfer::cuda
