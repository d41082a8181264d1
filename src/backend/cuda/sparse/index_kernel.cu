#include "backend/cuda/sparse/device_rows.cuh"
#include "backend/cuda/sparse/index_kernel.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKeys = 128;  // of a block of ScoreIndexKeys, one a thread
constexpr int kBlock = 32;  // elements of a scale
constexpr int kChoiceKeys = 64;
constexpr int kChoiceHeads = 8;  // in shared memory at once

__device__ float Hidden() { return __uint_as_float(0xff800000U); }

__device__ int Visible(const StepAt& step, int t, int ratio) {
  return step.Dead(t) ? 0 : (step.position[t] + 1) / ratio;
}

// ---- index keys of FP4

__global__ void IndexQueryKernel(const __grid_constant__ IndexAt at) {
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (at.step.Dead(t)) return;
  const int half = at.rope.half;
  const int width = at.heads * at.dim;
  float* q = at.q + int64_t{t} * width;
  LoadCosSin(at.rope, at.step.position[t], cos_sin);
  for (int i = static_cast<int>(threadIdx.x); i < at.heads * half; i += kThreads) {
    float* pair = q + i / half * at.dim + at.dim - 2 * half + 2 * (i % half);
    Rotate(cos_sin[i % half], pair, pair + 1);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    const uint32_t scale_code = Fp4ScaleCode(LanesMax(MagnitudeBits(q[i]), kBlock));
    const float scale = E8M0Value(scale_code);
    const float value = E2M1Value(Fp4Code(q[i], scale));
    at.codes[int64_t{t} * width + i] = static_cast<int8_t>(2.0F * value);
    q[i] = value * scale;
    if (i % kBlock == 0) at.scales[(int64_t{t} * width + i) / kBlock] = 0.25F * scale;
  }
}

// Four codes (the low nibble first) to twice their values, a byte each.
__device__ int TwiceOf(uint32_t codes) {
  const uint32_t magnitude = __byte_perm(0x03020100U, 0x0c080604U, codes & 0x7777U);
  const uint32_t negative = __byte_perm(0x0000ff00U, 0U, codes >> 3 & 0x1111U);
  return static_cast<int>(__vsub4(magnitude ^ negative, negative));
}

// The entry that score i of a token stands for; -1: none.
__device__ int EntryOf(const IndexAt& at, int t, int visible, int i) {
  if (at.rows == kScoredVisible) return i < visible ? i : -1;
  if (visible == 0 || i / at.block_size >= at.candidate_count[t]) return -1;
  const int block = at.candidate[int64_t{t} * at.candidate_blocks + i / at.block_size];
  const int entry = block * at.block_size + i % at.block_size;
  return entry < visible ? entry : -1;
}

__global__ void IndexScoreKernel(const __grid_constant__ IndexAt at) {
  extern __shared__ int4 memory[];
  const int t = at.first + static_cast<int>(blockIdx.x);
  const int visible = Visible(at.step, t, at.ratio);
  const int begin = static_cast<int>(blockIdx.y) * kKeys;
  const int total = at.rows == kScoredVisible
                        ? visible
                        : (visible > 0 ? at.candidate_count[t] * at.block_size : 0);
  if (begin >= total) return;
  const int words = at.dim / 4;
  const int blocks = at.dim / kBlock;
  const int width = at.heads * at.dim;
  int* q = reinterpret_cast<int*>(memory);                          // [heads, words]
  float* q_scale = reinterpret_cast<float*>(q + at.heads * words);  // [heads, blocks]
  float* weight = q_scale + at.heads * blocks;                      // [heads]
  float* key_scale = weight + at.heads;                             // [blocks, keys]
  int* keys = reinterpret_cast<int*>(key_scale + blocks * kKeys);   // [keys, words + 1]
  const int* codes = reinterpret_cast<const int*>(at.codes + int64_t{t} * width);
  for (int i = static_cast<int>(threadIdx.x); i < width / 4; i += kKeys) q[i] = codes[i];
  for (int i = static_cast<int>(threadIdx.x); i < at.heads * blocks; i += kKeys) {
    q_scale[i] = at.scales[int64_t{t} * at.heads * blocks + i];
  }
  const float head_scale = 1.0F / sqrtf(static_cast<float>(at.heads));
  for (int i = static_cast<int>(threadIdx.x); i < at.heads; i += kKeys) {
    weight[i] = __fmul_rn(at.weight[int64_t{t} * at.heads + i], head_scale);
  }
  const int row = at.step.token_row[t];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int k = warp; k < kKeys; k += kKeys / 32) {  // a warp takes a key
    const int entry = begin + k < total ? EntryOf(at, t, visible, begin + k) : -1;
    if (entry < 0) continue;
    const std::byte* from = at.keys.Entry(row, entry);
    for (int w = lane; w < words; w += 32) {
      const uint32_t pairs = ByteAt(from + 2 * w) | ByteAt(from + 2 * w + 1) << 8;
      keys[k * (words + 1) + w] = TwiceOf(pairs);
    }
    for (int b = lane; b < blocks; b += 32) {
      key_scale[b * kKeys + k] = E8M0Value(ByteAt(from + at.dim / 2 + b));
    }
  }
  __syncthreads();
  const int k = static_cast<int>(threadIdx.x);
  if (begin + k >= total) return;
  float* out = at.scores + int64_t{blockIdx.x} * at.entries_max + begin + k;
  if (EntryOf(at, t, visible, begin + k) < 0) {
    *out = Hidden();
    return;
  }
  const int* key = keys + k * (words + 1);
  float sum = 0.0F;
  for (int h = 0; h < at.heads; ++h) {
    float dot = 0.0F;
    for (int b = 0; b < blocks; ++b) {
      int exact = 0;
#pragma unroll
      for (int i = 0; i < kBlock / 4; ++i) {
        const int w = b * (kBlock / 4) + i;
        exact = __dp4a(q[h * words + w], key[w], exact);
      }
      const float scaled = __fmul_rn(static_cast<float>(exact), q_scale[h * blocks + b]);
      dot = __fadd_rn(dot, __fmul_rn(scaled, key_scale[b * kKeys + k]));
    }
    sum = __fadd_rn(sum, __fmul_rn(weight[h], dot < 0.0F ? 0.0F : dot));
  }
  *out = __fmul_rn(sum, 1.0F / sqrtf(static_cast<float>(at.dim)));
}

__global__ void BlockScoreKernel(const __grid_constant__ IndexAt at, float* blocks, int stride) {
  const int t = at.first + static_cast<int>(blockIdx.x);
  const int visible = Visible(at.step, t, at.ratio);
  const int count = (visible + at.block_size - 1) / at.block_size;
  const float* scores = at.scores + int64_t{blockIdx.x} * at.entries_max;
  const int step = static_cast<int>(gridDim.y * blockDim.x);
  for (int b = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); b < count; b += step) {
    float best = Hidden();
    const int end = min(visible, (b + 1) * at.block_size);
    for (int i = b * at.block_size; i < end; ++i) best = fmaxf(best, scores[i]);
    // The block of the newest entry always belongs to the best.
    blocks[int64_t{blockIdx.x} * stride + b] = b + 1 == count ? -Hidden() : best;
  }
}

// ---- keys of float32

__global__ void ChoiceQueryKernel(const __grid_constant__ ChoiceAt at) {
  extern __shared__ float row[];
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (Visible(at.step, t, at.ratio) <= at.top_k) return;
  float* q = at.q + (int64_t{t} * at.heads + blockIdx.y) * at.dim;
  LoadCosSin(at.rope, at.step.position[t], cos_sin);
  for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += static_cast<int>(blockDim.x)) {
    row[i] = q[i];
  }
  __syncthreads();
  RotateTail(cos_sin, at.rope.half, at.dim, row);
  RoundRow(at.rounding, at.dim, 2 * at.rope.half, row);
  for (int i = static_cast<int>(threadIdx.x); i < at.dim; i += static_cast<int>(blockDim.x)) {
    q[i] = row[i];
  }
}

__global__ void ChoiceScoreKernel(const __grid_constant__ ChoiceAt at) {
  extern __shared__ float shared[];
  const int t = at.first + static_cast<int>(blockIdx.x);
  const int visible = Visible(at.step, t, at.ratio);
  const int begin = static_cast<int>(blockIdx.y) * kChoiceKeys;
  if (begin >= visible) return;
  float* out = at.scores + int64_t{blockIdx.x} * at.entries_max;
  const int key = static_cast<int>(threadIdx.x) / 4;
  const int part = static_cast<int>(threadIdx.x) % 4;
  if (visible <= at.top_k) {  // all are chosen
    if (part == 0 && begin + key < visible) out[begin + key] = 0.0F;
    return;
  }
  const int stride = at.dim + 1;
  float* keys = shared;                      // [64, stride]
  float* q = shared + kChoiceKeys * stride;  // [8, stride]
  const int count = min(kChoiceKeys, visible - begin);
  const int owner = at.step.token_row[t];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int k = static_cast<int>(threadIdx.x) / 32; k < count; k += kThreads / 32) {
    const int last = (begin + k + 1) * at.ratio - 1;
    const auto* from = reinterpret_cast<const float*>(at.keys.Entry(owner, last / at.entry_ratio));
    for (int d = lane; d < at.dim; d += 32) keys[k * stride + d] = from[d];
  }
  float sum = 0.0F;
  for (int first = 0; first < at.heads; first += kChoiceHeads) {
    const int heads = min(kChoiceHeads, at.heads - first);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < heads * at.dim; i += kThreads) {
      q[i / at.dim * stride + i % at.dim] = at.q[(int64_t{t} * at.heads + first) * at.dim + i];
    }
    __syncthreads();
    for (int h = part; h < heads; h += 4) {
      float dot = 0.0F;
      for (int d = 0; d < at.dim; ++d) {
        dot = fmaf(q[h * stride + d], keys[key * stride + d], dot);
      }
      const float weight = at.weight[int64_t{t} * at.heads + first + h];
      // A NaN counts as nothing, as on the CPU.
      sum += weight * (dot > 0.0F ? dot * at.scale : 0.0F);
    }
  }
  sum += __shfl_xor_sync(kWholeWarp, sum, 1);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  if (part == 0 && key < count) out[begin + key] = sum;
}

// ---- the best

constexpr int kTopThreads = 1024;

// Ordered like the scores.
__device__ uint32_t Ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

struct Votes {
  int before;  // of threads with lower numbers
  int all;
};
__device__ Votes Vote(bool yes, int* of_warp) {
  const unsigned votes = __ballot_sync(kWholeWarp, yes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();
  if (lane == 0) of_warp[warp] = __popc(votes);
  __syncthreads();
  const int own = of_warp[lane];
  int upto = own;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, upto, step);
    if (lane >= step) upto += other;
  }
  const int before = __shfl_sync(kWholeWarp, upto - own, warp);
  const int all = __shfl_sync(kWholeWarp, upto, 31);
  return {before + __popc(votes & ((1U << lane) - 1U)), all};
}

// By warp 0: the bin, from the highest down, in which the `wanted`-th falls, and how many are
// above.
__device__ void FindBin(const int* histogram, int wanted, int* bin, int* above) {
  const int lane = static_cast<int>(threadIdx.x);
  int own = 0;
  for (int i = 0; i < 8; ++i) own += histogram[255 - lane * 8 - i];
  int upto = own;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, upto, step);
    if (lane >= step) upto += other;
  }
  int count = upto - own;
  if (count >= wanted || upto < wanted) return;
  for (int i = 0; i < 8; ++i) {
    const int here = histogram[255 - lane * 8 - i];
    if (count + here >= wanted) {
      *bin = 255 - lane * 8 - i;
      *above = count;
      return;
    }
    count += here;
  }
}

__device__ int ScoredCount(const TopRowsAt& at, int t) {
  const int visible = Visible(at.step, t, at.ratio);
  if (at.rows == kScoredBlocks) return (visible + at.block_size - 1) / at.block_size;
  if (at.rows == kScoredCandidates) return visible > 0 ? at.candidate_count[t] * at.block_size : 0;
  return visible;
}

__global__ void TopRowsKernel(const __grid_constant__ TopRowsAt at) {
  __shared__ int histogram[256];
  __shared__ int of_warp[32];
  __shared__ int found_bin, found_above, eligible;
  const int t = at.first + static_cast<int>(blockIdx.x);
  const int n = ScoredCount(at, t);
  const float* scores = at.scores + int64_t{blockIdx.x} * at.stride;
  const int thread = static_cast<int>(threadIdx.x);
  // False for what is hidden or not a number.
  const auto key_of = [&](int i, uint32_t* key) {
    float score = scores[i];
    if (isnan(score)) score = Hidden();
    *key = Ordered(score);
    return at.lost_count || score > Hidden();
  };
  uint32_t least = 0;  // the worst key that belongs to the best
  int equal = 0;       // how many of it do
  bool all_in = false;
  uint32_t prefix = 0;
  int wanted = at.keep;
  for (int shift = 24; shift >= 0 && !all_in; shift -= 8) {
    if (thread < 256) histogram[thread] = 0;
    if (thread == 0) eligible = 0;
    __syncthreads();
    for (int i = thread; i < n; i += kTopThreads) {
      uint32_t key;
      if (!key_of(i, &key)) continue;
      if (shift < 24 && key >> (shift + 8) != prefix >> (shift + 8)) continue;
      atomicAdd(&histogram[key >> shift & 255U], 1);
      if (shift == 24) atomicAdd(&eligible, 1);
    }
    __syncthreads();
    if (shift == 24 && eligible <= at.keep) {
      all_in = true;
      break;
    }
    if (thread < 32) FindBin(histogram, wanted, &found_bin, &found_above);
    __syncthreads();
    prefix |= static_cast<uint32_t>(found_bin) << shift;
    wanted -= found_above;
    __syncthreads();
  }
  least = prefix;
  equal = wanted;
  int taken = 0, same = 0;
  int32_t* out = at.out + int64_t{t} * at.keep;
  for (int first = 0; first < n; first += kTopThreads) {
    const int i = first + thread;
    uint32_t key = 0;
    const bool real = i < n && key_of(i, &key);
    const bool tie = real && !all_in && key == least;
    bool take = real && (all_in || key > least);
    if (!all_in) {
      const Votes ties = Vote(tie, of_warp);
      take = take || (tie && same + ties.before < equal);
      same += ties.all;
    }
    const Votes votes = Vote(take, of_warp);
    if (take) {
      int row = i;
      if (at.rows == kScoredCandidates) {
        row = at.candidate[int64_t{t} * at.candidate_blocks + i / at.block_size] * at.block_size +
              i % at.block_size;
      }
      out[taken + votes.before] = row;
    }
    taken += votes.all;
  }
  if (thread == 0) at.count[t] = taken;
}

template <typename Kernel>
void Allow(Kernel kernel, int bytes) {
  if (bytes > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
}

}  // namespace

void PrepareIndexQueries(const IndexAt& at, cudaStream_t stream) {
  IndexQueryKernel<<<at.step.num_tokens, kThreads, 0, stream>>>(at);
}

void ScoreIndexKeys(const IndexAt& at, cudaStream_t stream) {
  const int words = at.dim / 4;
  const int blocks = at.dim / kBlock;
  const int bytes = 4 * (at.heads * (words + blocks + 1) + blocks * kKeys + kKeys * (words + 1));
  Allow(IndexScoreKernel, bytes);
  const dim3 grid(at.tokens, (at.entries_max + kKeys - 1) / kKeys);
  IndexScoreKernel<<<grid, kKeys, bytes, stream>>>(at);
}

void ScoreBlocks(const IndexAt& at, float* blocks, int stride, cudaStream_t stream) {
  const int parts = (stride + kThreads - 1) / kThreads;
  BlockScoreKernel<<<dim3(at.tokens, parts < 64 ? parts : 64), kThreads, 0, stream>>>(at, blocks,
                                                                                      stride);
}

void PrepareChoiceQueries(const ChoiceAt& at, cudaStream_t stream) {
  const int bytes = at.dim * static_cast<int>(sizeof(float));
  ChoiceQueryKernel<<<dim3(at.step.num_tokens, at.heads), 64, bytes, stream>>>(at);
}

void ScoreChoiceKeys(const ChoiceAt& at, cudaStream_t stream) {
  const int bytes = (kChoiceKeys + kChoiceHeads) * (at.dim + 1) * static_cast<int>(sizeof(float));
  Allow(ChoiceScoreKernel, bytes);
  const dim3 grid(at.tokens, (at.entries_max + kChoiceKeys - 1) / kChoiceKeys);
  ChoiceScoreKernel<<<grid, kThreads, bytes, stream>>>(at);
}

void TakeTopRows(const TopRowsAt& at, cudaStream_t stream) {
  TopRowsKernel<<<at.tokens, kTopThreads, 0, stream>>>(at);
}

}  // namespace deepinfer::cuda
