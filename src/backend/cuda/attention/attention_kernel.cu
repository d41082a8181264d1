// A block takes the query rows (tokens x heads) of one kv head for a few neighbouring tokens, and
// walks the keys in tiles at absolute positions. What a query row gets depends on its position
// alone: every split of 256 keys starts anew, and splits are merged in ascending order, in one
// block or by a kernel of its own.
#include "backend/cuda/attention/attention_kernel.h"

#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/sparse/device_rows.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeyTile = 64;
constexpr int kPad = 8;  // elements: rows of keys start in other banks
constexpr float kNoMax = -1e30F;
constexpr int kManyRows = 16;
constexpr int kFewRows = 4;
constexpr int kEnoughBlocks = 528;  // keep every multiprocessor busy without splits

// ---- rope

// One warp turns one head.
__device__ void TurnHead(const RopeCacheAt& at, const float2* cos_sin, const float* norm,
                         float* x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (norm != nullptr) {
    float sum = 0.0F;
    for (int i = lane; i < at.head_dim; i += 32) sum += x[i] * x[i];
    const float scale = 1.0F / sqrtf(WarpSum(sum) / static_cast<float>(at.head_dim) + at.norm_eps);
    for (int i = lane; i < at.head_dim; i += 32) x[i] = x[i] * scale * norm[i];
    __syncwarp();
  }
  for (int i = lane; i < at.rope.half; i += 32) {
    if (at.halves) {
      Rotate(cos_sin[i], x + i, x + i + at.rope.half);
    } else {
      Rotate(cos_sin[i], x + 2 * i, x + 2 * i + 1);
    }
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kThreads)
    RopeCacheKernel(const __grid_constant__ RopeCacheAt at) {
  __shared__ float2 cos_sin[kRopeHalfMax];
  const int t = static_cast<int>(blockIdx.x);
  if (at.step.Dead(t)) return;
  const int position = at.step.position[t];
  LoadCosSin(at.rope, position, cos_sin);
  std::byte* row = at.rows.Entry(at.step.token_row[t], position);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int head = warp; head < at.heads + 2 * at.kv_heads; head += kThreads / 32) {
    if (head < at.heads) {
      TurnHead(at, cos_sin, at.q_norm, at.q + (int64_t{t} * at.heads + head) * at.head_dim);
      continue;
    }
    const int own = head - at.heads;  // keys, then values
    const float* from;
    if (own < at.kv_heads) {
      float* k = at.k + (int64_t{t} * at.kv_heads + own) * at.head_dim;
      TurnHead(at, cos_sin, at.k_norm, k);
      from = k;
    } else {
      from = at.v + (int64_t{t} * at.kv_heads + own - at.kv_heads) * at.head_dim;
    }
    for (int i = lane; i < at.head_dim; i += 32) {
      StoreElement(from[i], own * at.head_dim + i, at.float32, row);
    }
  }
}

// ---- attention

template <typename T>
__device__ void Unpack(const T* from, float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const __half2* pairs = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = __half22float2(pairs[i]);
      x[2 * i] = both.x, x[2 * i + 1] = both.y;
    }
  }
}
__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__half x) { return __half2float(x); }

// What a block shares.
template <typename T, int kRows>
struct Shared {
  T* keys;       // [kKeyTile, head_dim + kPad]; then the values
  float* q;      // [kRows, head_dim]
  float* p;      // [kKeyTile, kRows]
  float* max;    // [kRows]
  float* sum;    // [kRows]
  float* keep;   // [kRows]
  int* visible;  // [kRows] keys that the row sees in all

  __device__ Shared(std::byte* memory, int head_dim) {
    keys = reinterpret_cast<T*>(memory);
    q = reinterpret_cast<float*>(memory + sizeof(T) * kKeyTile * (head_dim + kPad));
    p = q + kRows * head_dim;
    max = p + kKeyTile * kRows;
    sum = max + kRows;
    keep = sum + kRows;
    visible = reinterpret_cast<int*>(keep + kRows);
  }
  static int Bytes(int head_dim) {
    return static_cast<int>(sizeof(T)) * kKeyTile * (head_dim + kPad) +
           4 * (kRows * head_dim + kKeyTile * kRows + 4 * kRows);
  }
};

// A tile of keys or values, 16 bytes at a time; rows beyond `count` are not needed.
template <typename T>
__device__ void LoadTile(const AttendAt& at, int row, int first, int count, int64_t offset, T* to) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  const int vectors = at.head_dim / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < count * vectors; i += kThreads) {
    const int key = i / vectors;
    const auto* from = reinterpret_cast<const T*>(at.rows.Entry(row, first + key)) + offset +
                       i % vectors * kVector;
    *reinterpret_cast<uint4*>(to + key * (at.head_dim + kPad) + i % vectors * kVector) =
        *reinterpret_cast<const uint4*>(from);
  }
}

template <typename T, int kRows>
__device__ void ScoreTile(const AttendAt& at, const Shared<T, kRows>& s, int first, int count) {
  constexpr int kOwn = kRows / 2;
  const int key = static_cast<int>(threadIdx.x) % kKeyTile;
  const int begin = static_cast<int>(threadIdx.x) / kKeyTile * kOwn;
  float score[kOwn] = {};
  if (key < count) {
    for (int d = 0; d < at.head_dim; d += 8) {
      float k[8];
      Unpack(s.keys + key * (at.head_dim + kPad) + d, k);
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const float* q = s.q + (begin + r) * at.head_dim + d;
#pragma unroll
        for (int i = 0; i < 8; ++i) score[r] = fmaf(q[i], k[i], score[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const bool seen = key < count && first + key < s.visible[begin + r];
    s.p[key * kRows + begin + r] = seen ? score[r] : -INFINITY;
  }
}

// Scores to weights, and how much of what was summed so far stays. A warp per row.
template <typename T, int kRows>
__device__ void WeighTile(const Shared<T, kRows>& s, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < rows; r += kThreads / 32) {
    const float a = s.p[lane * kRows + r];
    const float b = s.p[(lane + 32) * kRows + r];
    const float before = s.max[r];
    // A NaN must not be lost in the maximum: its weight is NaN all the same.
    const float max = fmaxf(before, WarpMax(fmaxf(a, b)));
    const float wa = exp2f(a - max);
    const float wb = exp2f(b - max);
    const float sum = WarpSum(wa + wb);
    s.p[lane * kRows + r] = wa;
    s.p[(lane + 32) * kRows + r] = wb;
    __syncwarp();
    if (lane == 0) {
      const float keep = exp2f(before - max);
      s.keep[r] = keep;
      s.max[r] = max;
      s.sum[r] = fmaf(s.sum[r], keep, sum);
    }
  }
}

// acc = acc * keep + weights x values: a thread owns columns, all rows of them.
template <typename T, int kRows, int kColumns>
__device__ void AddTile(const AttendAt& at, const Shared<T, kRows>& s, int count,
                        float (&acc)[kColumns][kRows]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int d = static_cast<int>(threadIdx.x) + c * kThreads;
    if (d >= at.head_dim) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) acc[c][r] *= s.keep[r];
    for (int key = 0; key < count; ++key) {
      const float v = ToFloat(s.keys[key * (at.head_dim + kPad) + d]);
      const float* p = s.p + key * kRows;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        // What a row does not see may be anything.
        acc[c][r] = p[r] != 0.0F ? fmaf(p[r], v, acc[c][r]) : acc[c][r];
      }
    }
  }
}

// One split of the run's rows into s.max, s.sum and acc.
template <typename T, int kRows, int kColumns>
__device__ void AttendSplit(const AttendAt& at, const Shared<T, kRows>& s, int row, int kv_head,
                            int begin, int end, int rows, float (&acc)[kColumns][kRows]) {
  for (int r = static_cast<int>(threadIdx.x); r < kRows; r += kThreads) {
    s.max[r] = kNoMax;
    s.sum[r] = 0.0F;
    s.keep[r] = 1.0F;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) acc[c][r] = 0.0F;
  }
  const int64_t k_offset = int64_t{kv_head} * at.head_dim;
  const int64_t v_offset = int64_t{at.kv_heads + kv_head} * at.head_dim;
  for (int first = begin; first < end; first += kKeyTile) {
    const int count = min(kKeyTile, end - first);
    __syncthreads();
    LoadTile(at, row, first, count, k_offset, s.keys);
    __syncthreads();
    ScoreTile(at, s, first, count);
    __syncthreads();
    LoadTile(at, row, first, count, v_offset, s.keys);
    WeighTile(s, rows);
    __syncthreads();
    AddTile(at, s, count, acc);
  }
  __syncthreads();
}

__device__ float* PartialAt(const AttendAt& at, int64_t token, int head, int split) {
  return at.partial + ((token * at.heads + head) * at.splits_max + split) * (at.head_dim + 2);
}

// Folds a split's (max, sum) into the total's; returns the factors of both sums of values.
struct Fold {
  float keep;
  float take;
};
__device__ inline Fold FoldSplit(float max, float sum, float* total_max, float* total_sum) {
  if (sum == 0.0F) return {1.0F, 0.0F};
  if (*total_sum == 0.0F) {
    *total_max = max;
    *total_sum = sum;
    return {0.0F, 1.0F};
  }
  const float larger = fmaxf(max, *total_max);
  const Fold fold = {exp2f(*total_max - larger), exp2f(max - larger)};
  *total_max = larger;
  *total_sum = fmaf(*total_sum, fold.keep, sum * fold.take);
  return fold;
}

// The rows of a run: tokens [begin, end) of one row of the step, `group` heads each.
template <typename T, int kRows, int kColumns, bool kPartial>
__device__ void AttendRun(const AttendAt& at, const Shared<T, kRows>& s, int begin, int end,
                          int first_head, int heads, int kv_head, int split) {
  const int rows = (end - begin) * heads;
  int keys = 0;
  for (int t = begin; t < end; ++t) {
    if (!at.step.Dead(t)) keys = max(keys, at.step.position[t] + 1);
  }
  __syncthreads();  // the run before is done with what is shared
  for (int r = static_cast<int>(threadIdx.x); r < kRows; r += kThreads) {
    const int t = begin + r / heads;
    s.visible[r] = r < rows && !at.step.Dead(t) ? at.step.position[t] + 1 : 0;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kRows * at.head_dim; i += kThreads) {
    const int r = i / at.head_dim;
    const int64_t head = int64_t{begin + r / heads} * at.heads + first_head + r % heads;
    s.q[i] = r < rows ? at.q[head * at.head_dim + i % at.head_dim] * at.scale : 0.0F;
  }
  __syncthreads();  // a run of dead tokens meets no other barrier before it reads
  const int row = at.step.token_row[begin];
  float acc[kColumns][kRows];
  if (kPartial) {
    if (split * kSplitKeys >= keys) return;
    AttendSplit(at, s, row, kv_head, split * kSplitKeys, min(keys, (split + 1) * kSplitKeys), rows,
                acc);
    for (int r = 0; r < rows; ++r) {
      float* to = PartialAt(at, begin + r / heads, first_head + r % heads, split);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int d = static_cast<int>(threadIdx.x) + c * kThreads;
#pragma unroll
        for (int own = 0; own < kRows; ++own) {
          if (own == r && d < at.head_dim) to[2 + d] = acc[c][own];
        }
      }
      if (threadIdx.x == 0) to[0] = s.max[r], to[1] = s.sum[r];
    }
    return;
  }
  float total[kColumns][kRows] = {};
  float total_max[kRows], total_sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) total_max[r] = kNoMax, total_sum[r] = 0.0F;
  for (int first = 0; first < keys; first += kSplitKeys) {
    AttendSplit(at, s, row, kv_head, first, min(keys, first + kSplitKeys), rows, acc);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Fold fold = FoldSplit(s.max[r], s.sum[r], &total_max[r], &total_sum[r]);
      if (fold.take == 0.0F) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        total[c][r] = fold.keep == 0.0F ? acc[c][r] * fold.take
                                        : fmaf(total[c][r], fold.keep, acc[c][r] * fold.take);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    const int64_t head = int64_t{begin + r / heads} * at.heads + first_head + r % heads;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = static_cast<int>(threadIdx.x) + c * kThreads;
      if (d >= at.head_dim) continue;
      at.out[head * at.head_dim + d] = s.visible[r] > 0 ? total[c][r] / total_sum[r] : 0.0F;
    }
  }
}

// Grid: tiles of tokens x (kv heads x parts of their heads) x splits.
template <typename T, int kRows, int kColumns, bool kPartial>
__global__ void __launch_bounds__(kThreads)
    AttendKernel(const __grid_constant__ AttendAt at, int tokens_each, int heads_each) {
  extern __shared__ __align__(16) std::byte memory[];
  const Shared<T, kRows> s(memory, at.head_dim);
  const int group = at.heads / at.kv_heads;
  const int parts = (group + heads_each - 1) / heads_each;
  const int kv_head = static_cast<int>(blockIdx.y) / parts;
  const int part = static_cast<int>(blockIdx.y) % parts;
  const int first_head = kv_head * group + part * heads_each;
  const int heads = min(heads_each, group - part * heads_each);
  const int end = min(at.step.num_tokens, (static_cast<int>(blockIdx.x) + 1) * tokens_each);
  for (int begin = static_cast<int>(blockIdx.x) * tokens_each; begin < end;) {
    int run_end = begin + 1;
    while (run_end < end && at.step.token_row[run_end] == at.step.token_row[begin]) ++run_end;
    AttendRun<T, kRows, kColumns, kPartial>(at, s, begin, run_end, first_head, heads, kv_head,
                                            static_cast<int>(blockIdx.z));
    begin = run_end;
  }
}

// One block per token and head.
__global__ void __launch_bounds__(kThreads) MergeKernel(const __grid_constant__ AttendAt at) {
  const int64_t t = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  float* out = at.out + (t * at.heads + head) * at.head_dim;
  const bool dead = at.step.Dead(static_cast<int>(t));
  const int keys = dead ? 0 : at.step.position[t] + 1;
  for (int d = static_cast<int>(threadIdx.x); d < at.head_dim; d += kThreads) {
    float total = 0.0F, max = kNoMax, sum = 0.0F;
    for (int split = 0; split * kSplitKeys < keys; ++split) {
      const float* from = PartialAt(at, t, head, split);
      const Fold fold = FoldSplit(from[0], from[1], &max, &sum);
      if (fold.take == 0.0F) continue;
      total = fold.keep == 0.0F ? from[2 + d] * fold.take
                                : fmaf(total, fold.keep, from[2 + d] * fold.take);
    }
    out[d] = dead ? 0.0F : total / sum;
  }
}

struct Cut {
  int rows;         // kManyRows or kFewRows
  int tokens_each;  // of a block
  int heads_each;
  int tiles;
  int heads;  // blocks
  bool split;
};
Cut CutOf(const AttendAt& at) {
  const int group = at.heads / at.kv_heads;
  Cut cut{};
  const bool many = at.query_len_max > 1 || group > kFewRows;
  cut.rows = many ? kManyRows : kFewRows;
  cut.heads_each = std::min(group, cut.rows);
  cut.tokens_each = at.query_len_max > 1 ? std::max(1, cut.rows / cut.heads_each) : 1;
  cut.tiles = (at.step.num_tokens + cut.tokens_each - 1) / cut.tokens_each;
  cut.heads = at.kv_heads * ((group + cut.heads_each - 1) / cut.heads_each);
  cut.split = at.splits_max > 1 && cut.tiles * cut.heads < kEnoughBlocks;
  return cut;
}

template <typename T, int kRows, int kColumns>
void Launch(const AttendAt& at, const Cut& cut, cudaStream_t stream) {
  const int bytes = Shared<T, kRows>::Bytes(at.head_dim);
  const auto kernel =
      cut.split ? AttendKernel<T, kRows, kColumns, true> : AttendKernel<T, kRows, kColumns, false>;
  if (bytes > 48 << 10) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
  kernel<<<dim3(cut.tiles, cut.heads, cut.split ? at.splits_max : 1), kThreads, bytes, stream>>>(
      at, cut.tokens_each, cut.heads_each);
  if (cut.split) {
    MergeKernel<<<dim3(at.step.num_tokens, at.heads), kThreads, 0, stream>>>(at);
  }
}

template <typename T>
void LaunchType(const AttendAt& at, const Cut& cut, cudaStream_t stream) {
  if (at.head_dim <= kThreads) {
    if (cut.rows == kFewRows) return Launch<T, kFewRows, 1>(at, cut, stream);
    return Launch<T, kManyRows, 1>(at, cut, stream);
  }
  if (cut.rows == kFewRows) return Launch<T, kFewRows, 2>(at, cut, stream);
  Launch<T, kManyRows, 2>(at, cut, stream);
}

}  // namespace

void RopeAndCacheRows(const RopeCacheAt& at, cudaStream_t stream) {
  if (at.step.num_tokens == 0) return;
  RopeCacheKernel<<<at.step.num_tokens, kThreads, 0, stream>>>(at);
}

int64_t AttendScratch(const AttendAt& at) {
  if (!CutOf(at).split) return 0;
  return int64_t{at.step.num_tokens} * at.heads * at.splits_max * (at.head_dim + 2);
}

void AttendHeads(const AttendAt& at, cudaStream_t stream) {
  if (at.step.num_tokens == 0) return;
  const Cut cut = CutOf(at);
  if (at.float32) return LaunchType<float>(at, cut, stream);
  LaunchType<__half>(at, cut, stream);
}

}  // namespace deepinfer::cuda
