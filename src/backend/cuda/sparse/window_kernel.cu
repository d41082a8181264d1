#include "backend/cuda/sparse/device_rows.cuh"
#include "backend/cuda/sparse/window_kernel.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

int RowBytesShared(int dim) { return dim * static_cast<int>(sizeof(float)); }

// Rotates the last 2 * half elements of each of `heads` rows.
__device__ void RotateHeads(const float2* cos_sin, int half, int heads, int dim, float* q) {
  for (int i = static_cast<int>(threadIdx.x); i < heads * half; i += kThreads) {
    float* at = q + int64_t{i / half} * dim + dim - 2 * half + 2 * (i % half);
    Rotate(cos_sin[i % half], at, at + 1);
  }
}

__global__ void EncodeWindowKernel(const __grid_constant__ EncodeWindowAt at) {
  extern __shared__ float row[];
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (at.kind != nullptr && at.kind[t] == kDeadToken) return;
  LoadCosSin(at.rope, at.position[t / at.block] + t % at.block, cos_sin);
  if (at.q != nullptr) {
    RotateHeads(cos_sin, at.rope.half, at.heads, at.dim, at.q + int64_t{t} * at.heads * at.dim);
  }
  NormRow(at.kv + int64_t{t} * at.dim, at.norm, at.dim, at.norm_eps, row);
  RotateTail(cos_sin, at.rope.half, at.dim, row);
  StoreWindowRow(row, at.dim, at.rows + int64_t{t} * (at.dim + at.dim / 32));
}

__global__ void StoreRingKernel(StepAt step, StateAt ring, const uint8_t* rows,
                                const uint8_t* second) {
  const int t = static_cast<int>(blockIdx.x);
  if (!step.Survives(t, ring.positions)) return;
  auto* to = reinterpret_cast<uint8_t*>(ring.At(step.slot[step.token_row[t]], step.position[t]));
  const int64_t part = second != nullptr ? ring.position_bytes / 2 : ring.position_bytes;
  for (int i = 0; i < (second != nullptr ? 2 : 1); ++i, to += part) {
    const uint8_t* from = (i == 0 ? rows : second) + t * part;
    const auto odd = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) |
                      static_cast<uintptr_t>(part)) %
                     16;
    if (odd == 0) {
      for (int64_t b = threadIdx.x; b < part / 16; b += blockDim.x) {
        reinterpret_cast<uint4*>(to)[b] = reinterpret_cast<const uint4*>(from)[b];
      }
    } else {
      for (int64_t b = threadIdx.x; b < part; b += blockDim.x) to[b] = from[b];
    }
  }
}

__global__ void PlainRowsKernel(const __grid_constant__ PlainRowsAt at) {
  extern __shared__ float row[];
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (at.step.Dead(t)) return;
  LoadCosSin(at.rope, at.step.position[t], cos_sin);
  if (blockIdx.y > 0) {  // a head of the query
    float* q = at.q + (int64_t{t} * at.heads + blockIdx.y - 1) * at.dim;
    if (at.norm_q) {
      NormRow(q, nullptr, at.dim, at.norm_eps, row);
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += kThreads) row[i] = q[i];
      __syncthreads();
    }
    RotateTail(cos_sin, at.rope.half, at.dim, row);
    for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += kThreads) q[i] = row[i];
    return;
  }
  float* kv = at.kv + int64_t{t} * at.dim;
  NormRow(kv, at.norm, at.dim, at.norm_eps, row);
  RotateTail(cos_sin, at.rope.half, at.dim, row);
  RoundRow(at.rounding, at.dim, 2 * at.rope.half, row);
  std::byte* out = at.rows + int64_t{t} * at.padded * (at.float32 ? 4 : 2);
  for (int i = static_cast<int>(threadIdx.x); i < at.padded; i += kThreads) {
    const float value = i < at.dim ? row[i] : 0.0F;
    StoreElement(value, i, at.float32, out);
    if (i < at.dim) kv[i] = value;
  }
}

__device__ bool Completes(const StepAt& step, int t, int ratio) {
  return !step.Dead(t) && (step.position[t] + 1) % ratio == 0;
}

__global__ void CompressKernel(CompressAt at) {
  extern __shared__ float row[];
  const int t = static_cast<int>(blockIdx.x);
  float* latent = at.latent + int64_t{t} * at.dim;
  if (!Completes(at.step, t, at.ratio)) {
    for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += kThreads) latent[i] = 0.0F;
    return;
  }
  const float* k1 = at.k + int64_t{t} * at.dim;
  if (at.ratio == 1) {
    NormRow(k1, at.norm, at.dim, at.norm_eps, latent);
    return;
  }
  const float* g1 = at.gate + int64_t{t} * at.dim;
  const int owner = at.step.token_row[t];
  // The first of its step: the other waits in the tail.
  const bool waits = t == at.step.query_start[owner];
  const std::byte* tail =
      waits ? at.tail.At(at.step.slot[owner], at.step.position[t] - 1) : nullptr;
  for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += kThreads) {
    const float k0 = waits ? __uint_as_float(WordAt(tail, i)) : k1[i - at.dim];
    const float g0 = waits ? __uint_as_float(WordAt(tail, at.dim + i)) : g1[i - at.dim];
    const float max = g0 > g1[i] ? g0 : g1[i];
    const float a = expf(g0 - max);
    const float b = expf(g1[i] - max);
    row[i] = a / (a + b) * k0 + b / (a + b) * k1[i];
  }
  __syncthreads();
  NormRow(row, at.norm, at.dim, at.norm_eps, latent);
}

__global__ void StoreTailKernel(CompressAt at) {
  const int t = static_cast<int>(blockIdx.x);
  if (!at.step.Survives(t, at.tail.positions) || Completes(at.step, t, at.ratio)) return;
  std::byte* to = at.tail.At(at.step.slot[at.step.token_row[t]], at.step.position[t]);
  for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += kThreads) {
    StoreWord(__float_as_uint(at.k[int64_t{t} * at.dim + i]), i, to);
    StoreWord(__float_as_uint(at.gate[int64_t{t} * at.dim + i]), at.dim + i, to);
  }
}

__global__ void WriteEntriesKernel(const __grid_constant__ WriteEntriesAt at) {
  extern __shared__ float row[];
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (!Completes(at.step, t, at.ratio)) return;
  const int owner = at.step.token_row[t];
  const int entry = at.step.position[t] / at.ratio;
  // What lies before the floor is in the cache already.
  if (at.write_floor != nullptr && entry < at.write_floor[owner] / at.ratio) return;
  LoadCosSin(at.rope, entry * at.ratio, cos_sin);
  const float* latent = at.latent + int64_t{t} * at.dim;
  for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += kThreads) row[i] = latent[i];
  __syncthreads();
  RotateTail(cos_sin, at.rope.half, at.dim, row);
  StoreMainEntry(row, at.dim, at.entries.Entry(owner, entry));
  __syncthreads();
  float* key = at.key + int64_t{t} * at.key_dim;
  NormRow(key, at.key_norm, at.key_dim, at.norm_eps, row);
  RotateTail(cos_sin, at.rope.half, at.key_dim, row);
  StoreIndexKey(row, at.key_dim, at.keys.Entry(owner, entry));
}

// The channel's values of the token that stands at `position` of the row.
__device__ void SlotOf(const CompressorAt& at, int owner, int start, int first, int position,
                       int channel, float* kv, float* gate) {
  if (position >= first) {
    const int64_t i = int64_t{start + position - first} * at.width + channel;
    *kv = at.kv[i];
    *gate = at.gate[i];
  } else {
    const std::byte* stored = at.ring.At(at.step.slot[owner], position);
    *kv = __uint_as_float(WordAt(stored, channel));
    *gate = __uint_as_float(WordAt(stored, at.width + channel));
  }
}

__global__ void CompressorKernel(const __grid_constant__ CompressorAt at) {
  extern __shared__ float row[];
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (!Completes(at.step, t, at.ratio)) return;
  const int owner = at.step.token_row[t];
  const int start = at.step.query_start[owner];
  const int first = at.step.position[start];
  const int window = at.step.position[t] / at.ratio;
  const int windows = at.window_before && window > 0 ? 2 : 1;
  for (int c = static_cast<int>(threadIdx.x); c < at.dim; c += kThreads) {
    float max = 0.0F, sum = 0.0F, value = 0.0F;
    for (int pass = 0; pass < 2; ++pass) {  // the maximum, then the sums
      for (int w = 0; w < windows; ++w) {
        const bool own = w == windows - 1;
        const int channel = c + (own && at.window_before ? at.dim : 0);
        const int begin = (own ? window : window - 1) * at.ratio;
        for (int i = 0; i < at.ratio; ++i) {
          float kv, gate;
          SlotOf(at, owner, start, first, begin + i, channel, &kv, &gate);
          gate += at.bias[int64_t{i} * at.width + channel];
          if (pass == 0) {
            max = w == 0 && i == 0 ? gate : fmaxf(max, gate);
          } else {
            const float weight = expf(gate - max);
            sum += weight;
            value += weight * kv;
          }
        }
      }
    }
    row[c] = value / sum;
  }
  __syncthreads();
  NormRow(row, at.norm, at.dim, at.norm_eps, row);
  LoadCosSin(at.rope, window * at.ratio, cos_sin);
  RotateTail(cos_sin, at.rope.half, at.dim, row);
  RoundRow(at.rounding, at.dim, 2 * at.rope.half, row);
  const int last = (window + 1) * at.ratio - 1;
  std::byte* out = at.entries.Entry(owner, last / at.entry_ratio);
  for (int i = static_cast<int>(threadIdx.x); i < at.padded; i += kThreads) {
    StoreElement(i < at.dim ? row[i] : 0.0F, i, at.float32, out);
  }
}

__device__ void RotateAny(const float2* cos_sin, int half, bool halves, float* x) {
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kThreads) {
    if (halves) {
      Rotate(cos_sin[i], x + i, x + half + i);
    } else {
      Rotate(cos_sin[i], x + 2 * i, x + 2 * i + 1);
    }
  }
}

__global__ void LatentKernel(const __grid_constant__ LatentRowsAt at) {
  extern __shared__ float row[];
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (at.step.Dead(t)) return;
  const int half = at.rope.half;
  LoadCosSin(at.rope, at.step.position[t], cos_sin);
  const int head_dim = at.nope_dim + 2 * half;
  float* q = at.q + int64_t{t} * at.heads * head_dim + at.nope_dim;
  for (int i = static_cast<int>(threadIdx.x); i < at.heads * half; i += kThreads) {
    float* head = q + int64_t{i / half} * head_dim;
    const int pair = i % half;
    const int a = at.halves ? pair : 2 * pair;
    const int b = at.halves ? half + pair : 2 * pair + 1;
    Rotate(cos_sin[pair], head + a, head + b);
    float* to = at.rotated + (int64_t{t} * at.heads + i / half) * (at.latent + 2 * half);
    to[a] = head[a];
    to[b] = head[b];
  }
  const int count = at.latent + 2 * half;
  float* kv = at.kv + int64_t{t} * count;
  NormRow(kv, at.norm, at.latent, at.norm_eps, row);
  for (int i = at.latent + static_cast<int>(threadIdx.x); i < count; i += kThreads) row[i] = kv[i];
  __syncthreads();
  RotateAny(cos_sin, half, at.halves, row + at.latent);
  __syncthreads();
  std::byte* out = at.rows.Entry(at.step.token_row[t], at.step.position[t]);
  for (int i = static_cast<int>(threadIdx.x); i < at.padded; i += kThreads) {
    const float value = i < count ? row[i] : 0.0F;
    StoreElement(value, i, at.float32, out);
    if (i < count) kv[i] = value;
  }
}

}  // namespace

void EncodeWindow(const EncodeWindowAt& at, cudaStream_t stream) {
  EncodeWindowKernel<<<at.tokens, kThreads, RowBytesShared(at.dim), stream>>>(at);
}

void StoreRing(const StepAt& step, const StateAt& ring, const void* rows, const void* second,
               cudaStream_t stream) {
  StoreRingKernel<<<step.num_tokens, 128, 0, stream>>>(
      step, ring, static_cast<const uint8_t*>(rows), static_cast<const uint8_t*>(second));
}

void PreparePlainRows(const PlainRowsAt& at, cudaStream_t stream) {
  const dim3 grid(at.step.num_tokens, 1 + (at.q != nullptr ? at.heads : 0));
  PlainRowsKernel<<<grid, kThreads, RowBytesShared(at.padded), stream>>>(at);
}

void CompressPairs(const CompressAt& at, cudaStream_t stream) {
  CompressKernel<<<at.step.num_tokens, kThreads, RowBytesShared(at.dim), stream>>>(at);
  if (at.ratio > 1) StoreTailKernel<<<at.step.num_tokens, kThreads, 0, stream>>>(at);
}

void WriteEntries(const WriteEntriesAt& at, cudaStream_t stream) {
  const int widest = at.dim > at.key_dim ? at.dim : at.key_dim;
  WriteEntriesKernel<<<at.step.num_tokens, kThreads, RowBytesShared(widest), stream>>>(at);
}

void WriteCompressed(const CompressorAt& at, cudaStream_t stream) {
  CompressorKernel<<<at.step.num_tokens, kThreads, RowBytesShared(at.padded), stream>>>(at);
}

void WriteLatents(const LatentRowsAt& at, cudaStream_t stream) {
  LatentKernel<<<at.step.num_tokens, kThreads, RowBytesShared(at.padded), stream>>>(at);
}

}  // namespace deepinfer::cuda
