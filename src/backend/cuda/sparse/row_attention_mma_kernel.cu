// Attention over shared rows on the tensor cores: a block takes a token and sixteen or sixty-four
// of its heads, decodes each row once into shared memory and uses it as key and as value. Sums of a
// head run over its whole list in order, in the same steps however many heads the block has.
#include <cuda_bf16.h>

#include "backend/cuda/sparse/row_list.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64;          // rows of a step
constexpr int kValues = 64;        // elements of a value that a warp owns
constexpr int kWeightStride = 72;  // 16 bytes off a multiple of 128
constexpr float kLog2E = 1.44269504088896341F;
constexpr float kNoMax = -1e30F;

struct Layout {  // of shared memory, in bytes
  int stride;    // elements of a row
  int raw_stride;
  int tile, raw, weight, floats, total;
};
__host__ __device__ Layout LayoutOf(const RowAttentionAt& at, int heads) {
  Layout l;
  l.stride = at.row_dim + 8;
  const bool plain = at.kind == kListPlain || at.kind == kListHistory;
  l.raw_stride = plain ? 0 : (at.row_dim + at.row_dim / 32 + 15) / 16 * 16;
  l.tile = heads * l.stride * 2;
  l.raw = l.tile + kTile * l.stride * 2;
  l.weight = l.raw + kTile * l.raw_stride;
  l.floats = l.weight + heads * kWeightStride * 2;
  // Two maxima, sum and factor of each head, then maxima and sums of its eight groups of rows.
  l.total = l.floats + heads * (4 + 2 * kWarps) * 4;
  return l;
}

__device__ uint32_t SharedAt(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void LoadMatrices(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAt(at)));
}
__device__ void LoadTurned(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAt(at)));
}
__device__ void CopyLater(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAt(to)), "l"(from));
}
__device__ void CommitCopies() { asm volatile("cp.async.commit_group;"); }
__device__ void AwaitCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <bool kHalf>
__device__ void Multiply(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  if constexpr (kHalf) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
template <bool kHalf>
__device__ uint32_t PackPair(float low, float high) {
  uint32_t out;
  if constexpr (kHalf) {
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
}
__device__ uint32_t Times(uint32_t pair, uint32_t factor) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factor));
  return out;
}
__device__ uint32_t Both(float x) {
  const uint32_t bits = __float_as_uint(x) >> 16;
  return bits | bits << 16;
}

// Sixteen codes of a window row; values times a power of two are bf16 numbers.
__device__ void DecodeFp8(const std::byte* codes, uint32_t scale_code, uint32_t (&out)[8]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(codes);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  // The bits of a code as those of a bf16 number are 2^120 too small.
  const uint32_t rebias = Both(0x1p120F);
  const uint32_t scale = Both(E8M0Value(scale_code));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t v = __byte_perm(words[i / 2], 0U, i % 2 == 0 ? 0x1404U : 0x3424U);
    out[i] = Times(Times((v & 0x80008000U) | (v >> 4 & 0x07f007f0U), rebias), scale);
  }
}

// Sixteen codes of an entry: bf16 numbers by their high and low bytes.
__device__ void DecodeFp4(const std::byte* codes, uint32_t scale_code, uint32_t (&out)[8]) {
  const uint2 raw = *reinterpret_cast<const uint2*>(codes);
  const uint32_t scale = Both(E4M3Value(scale_code));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t four = (i < 2 ? raw.x : raw.y) >> (i % 2 * 16) & 0xffffU;
    const uint32_t which = four & 0x7777U;
    const uint32_t sign = __byte_perm(0x00008000U, 0U, four >> 3 & 0x1111U);
    const uint32_t high = __byte_perm(0x3f3f3f00U, 0x40404040U, which) | sign;
    const uint32_t low = __byte_perm(0xc0800000U, 0xc0804000U, which);
    out[2 * i] = Times(__byte_perm(low, high, 0x5140U), scale);
    out[2 * i + 1] = Times(__byte_perm(low, high, 0x7362U), scale);
  }
}

// Where this lane's row of a tile is: lane i holds that of row i * 8 + warp. Found well before the
// rows are fetched, since tables and selections must be read for it.
__device__ const std::byte* FindRow(const RowAttentionAt& at, const RowList& list, int first,
                                    int count) {
  const int r = static_cast<int>(threadIdx.x) % 32 * kWarps + static_cast<int>(threadIdx.x) / 32;
  bool fp4;
  return r < count ? RowOf(at, list, first + r, &fp4) : nullptr;
}

// A warp to a row: its bytes on their way to shared memory.
__device__ void FetchRows(const RowAttentionAt& at, const RowList& list, const std::byte* found,
                          int first, int count, std::byte* to, int stride_bytes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool plain = at.kind == kListPlain || at.kind == kListHistory;
#pragma unroll
  for (int i = 0; i < kTile / kWarps; ++i) {
    const int r = i * kWarps + warp;
    const auto address = __shfl_sync(kWholeWarp, reinterpret_cast<uintptr_t>(found), i);
    if (r >= count) continue;
    const auto* from = reinterpret_cast<const std::byte*>(address);
    const int bytes = plain ? at.row_dim * 2
                            : (first + r >= list.first_part ? at.row_dim / 2 + at.row_dim / 16
                                                            : at.row_dim + at.row_dim / 32);
    for (int b = lane * 16; b < bytes; b += 32 * 16) CopyLater(to + r * stride_bytes + b, from + b);
  }
  CommitCopies();
}

// Raw rows to bf16 in the tile.
__device__ void DecodeRows(const RowAttentionAt& at, const RowList& list, int first, int count,
                           const std::byte* raw, const Layout& l, __nv_bfloat16* tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dim = at.row_dim;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < count; r += kWarps) {
    const std::byte* row = raw + r * l.raw_stride;
    for (int d = lane * 16; d < dim; d += 32 * 16) {
      uint32_t out[8];
      if (first + r < list.first_part) {
        DecodeFp8(row + d, ByteAt(row + dim + d / 32), out);
      } else {
        DecodeFp4(row + d / 2, ByteAt(row + dim / 2 + d / 16), out);
      }
      auto* to = reinterpret_cast<uint4*>(tile + r * l.stride + d);
      to[0] = make_uint4(out[0], out[1], out[2], out[3]);
      to[1] = make_uint4(out[4], out[5], out[6], out[7]);
    }
  }
}

template <bool kHalf, int kHeads>
__device__ void LoadQueries(const RowAttentionAt& at, int t, int head, int stride, uint32_t* q) {
  const float scale = at.scale * kLog2E;
  const int pairs = at.row_dim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * pairs; i += kThreads) {
    const int h = i / pairs;
    const int d = i % pairs * 2;
    float2 x = {0.0F, 0.0F};
    if (head + h < at.heads && d < at.q_dim) {
      x = *reinterpret_cast<const float2*>(at.q + (int64_t{t} * at.heads + head + h) * at.q_dim +
                                           d);
    }
    q[(h * stride + d) / 2] = PackPair<kHalf>(x.x * scale, x.y * scale);
  }
}

struct Sums {  // of heads in shared memory
  float* max[2];
  float* sum;
  float* keep;
  float* group_max;  // [8, heads]
  float* group_sum;
};

// Scores of the tile to weights, by warps of sixteen heads and 8 * kM rows each.
template <bool kHalf, int kM>
__device__ void Score(const uint16_t* q, const uint16_t* tile, const RowAttentionAt& at, int stride,
                      int count, int turn, uint16_t* weight, const Sums& sums) {
  constexpr int kHeads = 16 * kM;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int m = warp % kM;
  const int group = warp / kM;
  float s[kM][4] = {};
  for (int k = 0; k < at.row_dim; k += 32) {
    uint32_t a[2][4];
    const uint16_t* from = q + (m * 16 + lane % 16) * stride + k + lane / 16 * 8;
    LoadMatrices(a[0], from);
    LoadMatrices(a[1], from + 16);
#pragma unroll
    for (int j = 0; j < kM; ++j) {
      uint32_t b[4];
      LoadMatrices(b, tile + ((group * kM + j) * 8 + lane % 8) * stride + k + lane / 8 * 8);
      Multiply<kHalf>(a[0], b[0], b[1], s[j]);
      Multiply<kHalf>(a[1], b[2], b[3], s[j]);
    }
  }
  const int own = m * 16 + lane / 4;  // and own + 8
  float max[2] = {kNoMax, kNoMax};
#pragma unroll
  for (int j = 0; j < kM; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = (group * kM + j) * 8 + lane % 4 * 2 + i % 2;
      if (row < count) max[i / 2] = fmaxf(max[i / 2], s[j][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    max[i] = fmaxf(max[i], __shfl_xor_sync(kWholeWarp, max[i], 1));
    max[i] = fmaxf(max[i], __shfl_xor_sync(kWholeWarp, max[i], 2));
    if (lane % 4 == 0) sums.group_max[group * kHeads + own + 8 * i] = max[i];
  }
  __syncthreads();
  float sum[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float before = sums.max[turn][own + 8 * i];
    max[i] = before;
    for (int g = 0; g < kWarps / kM; ++g) {
      max[i] = fmaxf(max[i], sums.group_max[g * kHeads + own + 8 * i]);
    }
    if (group == 0 && lane % 4 == 0) {
      sums.max[turn ^ 1][own + 8 * i] = max[i];
      sums.keep[own + 8 * i] = exp2f(before - max[i]);
    }
  }
#pragma unroll
  for (int j = 0; j < kM; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = (group * kM + j) * 8 + lane % 4 * 2;
      const float low = row < count ? exp2f(s[j][2 * i] - max[i]) : 0.0F;
      const float high = row + 1 < count ? exp2f(s[j][2 * i + 1] - max[i]) : 0.0F;
      sum[i] += low + high;
      *reinterpret_cast<uint32_t*>(weight + (own + 8 * i) * kWeightStride + row) =
          PackPair<kHalf>(low, high);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], 1);
    sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], 2);
    if (lane % 4 == 0) sums.group_sum[group * kHeads + own + 8 * i] = sum[i];
  }
}

// Values of the tile by their weights: every head, the warp's 64 elements.
template <bool kHalf, int kM>
__device__ void Accumulate(const uint16_t* tile, const uint16_t* weight, int stride,
                           const Sums& sums, float (&acc)[kM][kValues / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * kValues;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const float low = sums.keep[m * 16 + lane / 4];
    const float high = sums.keep[m * 16 + lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < kValues / 8; ++n) {
      acc[m][n][0] *= low, acc[m][n][1] *= low;
      acc[m][n][2] *= high, acc[m][n][3] *= high;
    }
  }
#pragma unroll
  for (int k = 0; k < kTile; k += 16) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      LoadMatrices(a[m], weight + (m * 16 + lane % 16) * kWeightStride + k + lane / 16 * 8);
    }
#pragma unroll
    for (int n = 0; n < kValues / 8; n += 2) {
      uint32_t b[4];
      LoadTurned(b, tile + (k + lane % 16) * stride + first + n * 8 + lane / 16 * 8);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        Multiply<kHalf>(a[m], b[0], b[1], acc[m][n]);
        Multiply<kHalf>(a[m], b[2], b[3], acc[m][n + 1]);
      }
    }
  }
}

template <int kM>
__device__ void StoreOutput(const RowAttentionAt& at, const RowList& list, int t, int head,
                            int turn, const Sums& sums, const float (&acc)[kM][kValues / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * kValues;
  const int tail = at.value_dim - 2 * at.unrotate.half;
#pragma unroll
  for (int n = 0; n < kValues / 8; ++n) {
    const int d = first + n * 8 + lane % 4 * 2;
    if (d >= at.value_dim) break;
    float2 back = {1.0F, 0.0F};
    if (d >= tail) {
      back = CosSin(at.unrotate, list.position, (d - tail) / 2);
      back.y = -back.y;
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int own = m * 16 + lane / 4 + 8 * i;
        const int h = head + own;
        if (h >= at.heads) continue;
        float scale = 0.0F;  // of a dead token
        if (list.count > 0) {
          const float before = sums.max[turn][own];
          const float sink = at.sink != nullptr ? at.sink[h] * kLog2E : kNoMax;
          const float max = fmaxf(before, sink);
          const float keep = exp2f(before - max);
          scale = keep / (sums.sum[own] * keep + (at.sink != nullptr ? exp2f(sink - max) : 0.0F));
        }
        float2 out = {acc[m][n][2 * i] * scale, acc[m][n][2 * i + 1] * scale};
        if (d >= tail) Rotate(back, &out.x, &out.y);
        *reinterpret_cast<float2*>(at.out + (int64_t{t} * at.heads + h) * at.value_dim + d) = out;
      }
    }
  }
}

template <bool kHalf, int kM>  // of sixteen heads
__global__ void __launch_bounds__(kThreads)
    MmaKernel(const __grid_constant__ RowAttentionAt at, int first_token) {
  extern __shared__ __align__(128) std::byte memory[];
  constexpr int kHeads = 16 * kM;
  const int t = first_token + static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kHeads;
  const RowList list = ListOf(at, t);
  const Layout l = LayoutOf(at, kHeads);
  auto* q = reinterpret_cast<uint16_t*>(memory);
  auto* tile = reinterpret_cast<uint16_t*>(memory + l.tile);
  auto* weight = reinterpret_cast<uint16_t*>(memory + l.weight);
  auto* floats = reinterpret_cast<float*>(memory + l.floats);
  Sums sums;
  sums.max[0] = floats;
  sums.max[1] = floats + kHeads;
  sums.sum = floats + 2 * kHeads;
  sums.keep = floats + 3 * kHeads;
  sums.group_max = floats + 4 * kHeads;
  sums.group_sum = sums.group_max + kWarps * kHeads;
  std::byte* fetched = kHalf ? memory + l.tile : memory + l.raw;
  const int fetched_stride = kHalf ? l.stride * 2 : l.raw_stride;
  const std::byte* found = FindRow(at, list, 0, min(kTile, list.count));
  if (list.count > 0) {
    FetchRows(at, list, found, 0, min(kTile, list.count), fetched, fetched_stride);
  }
  LoadQueries<kHalf, kHeads>(at, t, head, l.stride, reinterpret_cast<uint32_t*>(q));
  if (threadIdx.x < kHeads) {
    sums.max[0][threadIdx.x] = kNoMax;
    sums.sum[threadIdx.x] = 0.0F;
  }
  float acc[kM][kValues / 8][4] = {};
  int turn = 0;
  for (int first = 0; first < list.count; first += kTile, turn ^= 1) {
    const int count = min(kTile, list.count - first);
    const int next = min(kTile, list.count - first - kTile);
    found = FindRow(at, list, first + kTile, next);
    AwaitCopies();
    __syncthreads();
    if constexpr (!kHalf) {
      DecodeRows(at, list, first, count, memory + l.raw, l, reinterpret_cast<__nv_bfloat16*>(tile));
    }
    for (int i = count * l.stride / 8 + static_cast<int>(threadIdx.x); i < kTile * l.stride / 8;
         i += kThreads) {
      reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    if (!kHalf && next > 0) {
      FetchRows(at, list, found, first + kTile, next, fetched, fetched_stride);
    }
    Score<kHalf, kM>(q, tile, at, l.stride, count, turn, weight, sums);
    __syncthreads();
    if (threadIdx.x < kHeads) {
      float sum = sums.sum[threadIdx.x] * sums.keep[threadIdx.x];
      for (int g = 0; g < kWarps / kM; ++g) sum += sums.group_sum[g * kHeads + threadIdx.x];
      sums.sum[threadIdx.x] = sum;
    }
    if (static_cast<int>(threadIdx.x) / 32 * kValues < at.value_dim) {
      Accumulate<kHalf, kM>(tile, weight, l.stride, sums, acc);
    }
    __syncthreads();
    if (kHalf && next > 0) {
      FetchRows(at, list, found, first + kTile, next, fetched, fetched_stride);
    }
  }
  StoreOutput<kM>(at, list, t, head, turn, sums, acc);
}

template <bool kHalf, int kM>
void Launch(const RowAttentionAt& at, int first, int tokens, cudaStream_t stream) {
  const Layout l = LayoutOf(at, 16 * kM);
  cudaFuncSetAttribute(MmaKernel<kHalf, kM>, cudaFuncAttributeMaxDynamicSharedMemorySize, l.total);
  const dim3 grid(tokens, (at.heads + 16 * kM - 1) / (16 * kM));
  MmaKernel<kHalf, kM><<<grid, kThreads, l.total, stream>>>(at, first);
}

bool Aligned(int64_t x) { return x % 16 == 0; }
bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

// By configuration alone.
bool CanAttendByMma(const RowAttentionAt& at) {
  const bool ring =
      at.kind == kListHistory ||
      (Aligned(at.ring.base) && Aligned(at.ring.slot_bytes) && Aligned(at.ring.position_bytes) &&
       Aligned(at.fresh) && Aligned(at.fresh_bytes));
  const bool entries =
      at.entries.base == nullptr || (Aligned(at.entries.base) && Aligned(at.entries.block_bytes) &&
                                     Aligned(at.entries.row_bytes));
  return !at.float32 && at.row_dim % 32 == 0 && at.row_dim <= 576 &&
         at.value_dim <= kWarps * kValues && at.q_dim % 2 == 0 && at.value_dim % 2 == 0 && ring &&
         entries;
}

void AttendByMma(const RowAttentionAt& at, int first, int tokens, cudaStream_t stream) {
  constexpr int kManyBlocks = 64;
  const bool plain = at.kind == kListPlain || at.kind == kListHistory;
  const bool wide = at.heads > 16 && tokens * ((at.heads + 63) / 64) >= kManyBlocks;
  if (plain)
    return wide ? Launch<true, 4>(at, first, tokens, stream)
                : Launch<true, 1>(at, first, tokens, stream);
  return wide ? Launch<false, 4>(at, first, tokens, stream)
              : Launch<false, 1>(at, first, tokens, stream);
}

}  // namespace deepinfer::cuda
