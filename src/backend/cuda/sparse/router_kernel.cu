#include "backend/cuda/sparse/device_rows.cuh"
#include "backend/cuda/sparse/router_kernel.h"

namespace deepinfer::cuda {
namespace {

constexpr int kRouteThreads = 128;
constexpr int kSortThreads = 1024;
constexpr float kLinearSoftplus = 20.0F;  // above it ln(1 + e^x) is x, as models are trained with

__device__ float ScoreOf(ScoringAt scoring, float x) {
  if (scoring == kScoreSigmoid) return SigmoidOf(x);
  if (scoring == kScoreSqrtSoftplus) return sqrtf(x > kLinearSoftplus ? x : log1pf(expf(x)));
  return x;  // the order of the logits; weights follow the choice
}

// Orders values, NaN below all numbers but above what was taken.
__device__ uint32_t Rank(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (isnan(x)) return 1;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// The largest of ranks[0, count), the lower on a tie, by one warp: rank and index in one number.
__device__ int WarpArgMax(const uint32_t* ranks, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned long long best = 0;
  for (int i = lane; i < count; i += 32) {
    const unsigned long long own =
        static_cast<unsigned long long>(ranks[i]) << 32 | (0xffffffffU - static_cast<uint32_t>(i));
    best = own > best ? own : best;
  }
  for (int step = 16; step > 0; step /= 2) {
    const unsigned long long other = __shfl_xor_sync(kWholeWarp, best, step);
    best = other > best ? other : best;
  }
  return static_cast<int>(0xffffffffU - static_cast<uint32_t>(best));
}

// Experts outside the best groups lose their chance. A NaN never helps a group.
__device__ void KeepBestGroups(const RouteAt& at, float* values) {
  __shared__ uint32_t strength[kExpertGroupsMost];
  const int size = at.experts / at.groups;
  const float never = __uint_as_float(0xff800000U);
  for (int g = static_cast<int>(threadIdx.x); g < at.groups; g += kRouteThreads) {
    float best = never, second = never;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      if (values[e] > best) {
        second = best;
        best = values[e];
      } else if (values[e] > second) {
        second = values[e];
      }
    }
    strength[g] = Rank(size > 1 ? best + second : best);
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // the best groups are marked by zero
    for (int i = 0; i < min(at.group_top_k, at.groups); ++i) {
      const int g = WarpArgMax(strength, at.groups);
      __syncwarp();
      if (threadIdx.x == 0) strength[g] = 0;
      __syncwarp();
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < at.experts; e += kRouteThreads) {
    if (strength[e / size] != 0) values[e] = never;
  }
  __syncthreads();
}

// By one thread: few choices.
__device__ void SortChoices(int count, int32_t* chosen) {
  for (int i = 1; i < count; ++i) {
    const int32_t own = chosen[i];
    int place = i;
    for (; place > 0 && chosen[place - 1] > own; --place) chosen[place] = chosen[place - 1];
    chosen[place] = own;
  }
}

// Sum over all experts of e^(score - max), and that maximum.
__device__ float SoftmaxSum(const RouteAt& at, const float* scores, float* max) {
  float largest = __uint_as_float(0xff800000U);
  for (int e = 0; e < at.experts; ++e) largest = fmaxf(largest, scores[e]);
  *max = largest;
  float sum = 0.0F;
  for (int e = static_cast<int>(threadIdx.x); e < at.experts; e += kRouteThreads) {
    sum += expf(scores[e] - largest);
  }
  return BlockSum(sum);
}

__global__ void __launch_bounds__(kRouteThreads) RouteKernel(const __grid_constant__ RouteAt at) {
  extern __shared__ float scores[];  // [experts], then values to choose by and their ranks
  __shared__ int32_t chosen[kTopExpertsMost];
  const int64_t row = blockIdx.x;
  float* values = scores + at.experts;
  auto* ranks = reinterpret_cast<uint32_t*>(values + at.experts);
  const bool image = at.image_bias != nullptr && at.kind[row] == kImageToken;
  const float* bias = image ? at.image_bias : at.bias;
  for (int e = static_cast<int>(threadIdx.x); e < at.experts; e += kRouteThreads) {
    scores[e] = ScoreOf(at.scoring, at.logits[row * at.experts + e]);
    values[e] = scores[e] + (bias != nullptr ? bias[e] : 0.0F);
  }
  __syncthreads();
  if (at.token_experts != nullptr) {
    const int32_t* fixed = at.token_experts + int64_t{at.token[row]} * at.top_k;
    for (int i = static_cast<int>(threadIdx.x); i < at.top_k; i += kRouteThreads) {
      chosen[i] = fixed[i];
    }
  } else {
    if (at.groups > 1) KeepBestGroups(at, values);
    for (int e = static_cast<int>(threadIdx.x); e < at.experts; e += kRouteThreads) {
      ranks[e] = Rank(values[e]);
    }
    __syncthreads();
    for (int i = 0; i < at.top_k && threadIdx.x < 32; ++i) {
      const int best = WarpArgMax(ranks, at.experts);
      __syncwarp();
      if (threadIdx.x == 0) {
        chosen[i] = best;
        ranks[best] = 0;
      }
      __syncwarp();
    }
  }
  __syncthreads();
  const bool softmax = at.scoring == kScoreSoftmax;
  float max = 0.0F;
  float all = 0.0F;
  if (softmax && !at.normalize) all = SoftmaxSum(at, scores, &max);
  if (threadIdx.x != 0) return;
  SortChoices(at.top_k, chosen);
  float sum = 0.0F;
  if (softmax && at.normalize) {
    max = scores[chosen[0]];
    for (int i = 1; i < at.top_k; ++i) max = fmaxf(max, scores[chosen[i]]);
  }
  for (int i = 0; i < at.top_k; ++i) {
    const float score = scores[chosen[i]];
    sum += softmax ? expf(score - max) : score;
  }
  if (!at.normalize) sum = softmax ? all : 1.0F;
  if (at.normalize || softmax) sum += at.normalize_eps;
  for (int i = 0; i < at.top_k; ++i) {
    const float score = scores[chosen[i]];
    const float weight = (softmax ? expf(score - max) : score) / sum;
    at.expert[row * at.top_k + i] = chosen[i];
    at.weight[row * at.top_k + i] = weight * at.scale;
  }
}

// One block. Rows of an expert stand in any order: each is computed alone.
__global__ void __launch_bounds__(kSortThreads) SortKernel(SortAt at) {
  extern __shared__ int32_t place[];  // [experts]
  const int entries = at.rows * at.top_k;
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < at.experts; e += kSortThreads) place[e] = 0;
  __syncthreads();
  for (int i = thread; i < entries; i += kSortThreads) atomicAdd(&place[at.expert[i]], 1);
  __syncthreads();
  if (thread < 32) {
    int before = 0;
    for (int first = 0; first < at.experts; first += 32) {
      const int e = first + thread;
      const int own = e < at.experts ? place[e] : 0;
      int upto = own;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, upto, step);
        if (thread >= step) upto += other;
      }
      if (e < at.experts) at.begin[e] = place[e] = before + upto - own;
      before += __shfl_sync(kWholeWarp, upto, 31);
    }
    if (thread == 0) at.begin[at.experts] = before;
  }
  __syncthreads();
  for (int i = thread; i < entries; i += kSortThreads) {
    const int entry = atomicAdd(&place[at.expert[i]], 1);
    at.entry[i] = entry;
    at.entry_row[entry] = i / at.top_k;
  }
}

__global__ void CombineKernel(CombineAt at) {
  const int64_t row = blockIdx.x;
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (c >= at.cols) return;
  float sum = at.out[row * at.cols + c];
  for (int i = 0; i < at.top_k; ++i) {
    const int64_t choice = row * at.top_k + i;
    sum += at.weight[choice] * at.y[int64_t{at.entry[choice]} * at.cols + c];
  }
  at.out[row * at.cols + c] = sum;
}

}  // namespace

void Route(const RouteAt& at, cudaStream_t stream) {
  RouteKernel<<<at.rows, kRouteThreads, 12 * at.experts, stream>>>(at);
}

void SortByExpert(const SortAt& at, cudaStream_t stream) {
  SortKernel<<<1, kSortThreads, 4 * at.experts, stream>>>(at);
}

void Combine(const CombineAt& at, cudaStream_t stream) {
  CombineKernel<<<dim3(at.rows, (at.cols + 255) / 256), 256, 0, stream>>>(at);
}

}  // namespace deepinfer::cuda
