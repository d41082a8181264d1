#include "backend/cuda/sparse/device_rows.cuh"
#include "backend/cuda/sparse/step_kernel.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;

__device__ bool Taken(const SubStepAt& at, int t) {
  if (at.step.Dead(t)) return false;
  const int position = at.step.position[t];
  if (at.pairs) return position > 0;
  return at.suffix_begin == nullptr || position >= at.suffix_begin[at.step.token_row[t]];
}

__device__ void Put(const SubStepAt& at, int t, int to) {
  const int row = at.step.token_row[t];
  at.index[to] = !at.pairs ? t : (t > at.step.query_start[row] ? t - 1 : -1);
  at.token[to] = at.step.token[t];
  at.position[to] = at.step.position[t] - (at.pairs ? 1 : 0);
  at.token_row[to] = row;
  at.kind[to] = at.pairs ? kTextToken : at.step.kind[t];
}

// Tokens taken before this thread's, among the block's; the sum of all in *all.
__device__ int Before(bool taken, int* all) {
  __shared__ int of_warp[32];
  const unsigned votes = __ballot_sync(kWholeWarp, taken);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();
  if (lane == 0) of_warp[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  *all = 0;
  for (int w = 0; w < kScanThreads / 32; ++w) {
    if (w < warp) before += of_warp[w];
    *all += of_warp[w];
  }
  return before + __popc(votes & ((1U << lane) - 1U));
}

// One block: steps are short, and the order must be kept.
__global__ void SubStepKernel(SubStepAt at) {
  const int n = at.step.num_tokens;
  int done = 0;
  for (int first = 0; first < n; first += kScanThreads) {
    const int t = first + static_cast<int>(threadIdx.x);
    const bool taken = t < n && Taken(at, t);
    int all;
    const int to = done + Before(taken, &all);
    if (taken && to < at.bound) Put(at, t, to);
    // A row starts where its first token would stand. Rows without tokens share a start.
    if (t < n) {
      const int row = at.step.token_row[t];
      if (t == at.step.query_start[row]) at.query_start[row] = min(to, at.bound);
    }
    done += all;
  }
  done = min(done, at.bound);
  __syncthreads();
  const int rows = at.step.num_rows;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += kScanThreads) {
    // An empty row at the end of the step has no token to start it.
    if (at.step.query_start[row] == n) at.query_start[row] = done;
  }
  if (threadIdx.x == 0) at.query_start[rows] = at.bound;
  for (int to = done + static_cast<int>(threadIdx.x); to < at.bound; to += kScanThreads) {
    at.index[to] = kNoToken;
    at.token[to] = 0;
    at.position[to] = 0;
    at.token_row[to] = rows - 1;
    at.kind[to] = kDeadToken;
  }
}

// Empty rows in the middle start where the next one does.
__global__ void EmptyRowsKernel(SubStepAt at) {
  for (int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); row < at.step.num_rows;
       row += static_cast<int>(gridDim.x * blockDim.x)) {
    if (at.step.query_start[row] != at.step.query_start[row + 1]) continue;
    int next = row + 1;
    while (next < at.step.num_rows && at.step.query_start[next] == at.step.query_start[next + 1]) {
      ++next;
    }
    if (next < at.step.num_rows) at.query_start[row] = at.query_start[next];
  }
}

__device__ void CopyRow(const float* from, int64_t cols, float* to) {
  const int64_t first = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < cols; i += int64_t{gridDim.y} * blockDim.x) to[i] = from[i];
}
__device__ void FillRow(float value, int64_t cols, float* to) {
  const int64_t first = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < cols; i += int64_t{gridDim.y} * blockDim.x) to[i] = value;
}
dim3 RowGrid(int rows, int64_t cols) {
  const int64_t parts = (cols + 4 * kThreads - 1) / (4 * kThreads);
  return dim3(rows, static_cast<unsigned>(parts < 64 ? parts : 64));
}

__global__ void GatherKernel(const float* from, const int32_t* index, int64_t cols, float* to) {
  const int64_t row = blockIdx.x;
  if (index[row] < 0) {
    FillRow(0.0F, cols, to + row * cols);
  } else {
    CopyRow(from + index[row] * cols, cols, to + row * cols);
  }
}

__global__ void NanKernel(int64_t cols, float* to) {
  FillRow(__uint_as_float(0x7fc00000U), cols, to + blockIdx.x * cols);
}

__global__ void ScatterKernel(const float* from, const int32_t* index, int64_t cols, float* to) {
  const int64_t row = blockIdx.x;
  if (index[row] >= 0) CopyRow(from + row * cols, cols, to + index[row] * cols);
}

__global__ void GatherPairsKernel(StepAt step, const int32_t* source, StateAt ring, int64_t cols,
                                  const float* x, float* out) {
  const int t = static_cast<int>(blockIdx.x);
  float* to = out + t * cols;
  if (step.Dead(t)) return FillRow(0.0F, cols, to);
  const int from = source != nullptr ? source[t] : -1;
  if (from >= 0) return CopyRow(x + from * cols, cols, to);
  const std::byte* stored = ring.At(step.slot[step.token_row[t]], step.position[t]);
  const int64_t first = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < cols; i += int64_t{gridDim.y} * blockDim.x) {
    to[i] = __uint_as_float(WordAt(stored, static_cast<int>(i)));
  }
}

// ---- n-grams

constexpr int32_t kDeadId = -1;

__device__ int32_t Compressed(const NgramAt& at, int32_t token) {
  return token < 0 || token >= at.map_size ? kDeadId : at.token_map[token];
}
__device__ int32_t IdOf(const NgramAt& at, int t) {
  return at.step.kind[t] == kTextToken ? Compressed(at, at.step.token[t]) : kDeadId;
}

// ids[s] of the token s places back; a dead one or none makes it and all before it the pad.
__device__ void LookBack(const NgramAt& at, int t, int32_t* ids) {
  const int row = at.step.token_row[t];
  const int first = at.step.query_start[row];
  bool blocked = false;
  for (int s = 0; s < at.ngram; ++s) {
    const int position = at.step.position[t] - s;
    int32_t id = kDeadId;
    if (position >= 0 && !blocked) {
      const int lead = first - (t - s);  // places before the row's first token
      if (lead <= 0) {
        id = IdOf(at, t - s);
      } else {
        const int32_t given =
            at.lead_token == nullptr ? -1 : at.lead_token[row * kLeadMost + lead - 1];
        id = given != -1
                 ? Compressed(at, given)
                 : static_cast<int32_t>(WordAt(at.state.At(at.step.slot[row], position), 0));
      }
    }
    blocked = blocked || id == kDeadId;
    ids[s] = blocked ? at.pad : id;
  }
}

__global__ void NgramKernel(const __grid_constant__ NgramAt at) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= at.step.num_tokens) return;
  const int columns = (at.ngram - 1) * at.heads;
  int64_t* out = at.rows[blockIdx.y] + int64_t{t} * columns;
  if (at.step.Dead(t)) {
    for (int c = 0; c < columns; ++c) out[c] = 0;
    return;
  }
  int32_t ids[kNgramMost];
  LookBack(at, t, ids);
  const int64_t* multiplier = at.constants + int64_t{blockIdx.y} * (at.ngram + 2 * columns);
  const int64_t* prime = multiplier + at.ngram;
  const int64_t* offset = prime + columns;
  int64_t mixed = ids[0] * multiplier[0];
  for (int n = 1; n < at.ngram; ++n) {
    mixed ^= ids[n] * multiplier[n];
    for (int c = (n - 1) * at.heads; c < n * at.heads; ++c) out[c] = mixed % prime[c] + offset[c];
  }
}

// Once everybody has looked back: a thread per row and token.
__global__ void NgramStateKernel(const __grid_constant__ NgramAt at) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < at.step.num_tokens && at.step.Survives(i, at.state.positions)) {
    StoreWord(static_cast<uint32_t>(IdOf(at, i)), 0,
              at.state.At(at.step.slot[at.step.token_row[i]], at.step.position[i]));
  }
  if (i >= at.step.num_rows || at.lead_token == nullptr) return;
  const int first = at.step.query_start[i];
  const int live = at.step.LiveEnd(i) - first;
  if (live == 0) return;
  // A ring that the step fills leaves no place for what was before it.
  for (int s = 0; s < kLeadMost && s < at.step.position[first]; ++s) {
    const int32_t given = at.lead_token[i * kLeadMost + s];
    if (given == -1 || s + 1 + live > at.state.positions) continue;
    StoreWord(static_cast<uint32_t>(Compressed(at, given)), 0,
              at.state.At(at.step.slot[i], at.step.position[first] - 1 - s));
  }
}

}  // namespace

void TakeSubStep(const SubStepAt& at, cudaStream_t stream) {
  SubStepKernel<<<1, kScanThreads, 0, stream>>>(at);
  EmptyRowsKernel<<<1, kScanThreads, 0, stream>>>(at);
}

void GatherRows(const float* from, const int32_t* index, int rows, int64_t cols, float* to,
                cudaStream_t stream) {
  if (rows > 0) GatherKernel<<<RowGrid(rows, cols), kThreads, 0, stream>>>(from, index, cols, to);
}

void ScatterRows(const float* from, const int32_t* index, int rows, int64_t cols, float* to,
                 int to_rows, cudaStream_t stream) {
  if (to_rows > 0) NanKernel<<<RowGrid(to_rows, cols), kThreads, 0, stream>>>(cols, to);
  if (rows > 0) ScatterKernel<<<RowGrid(rows, cols), kThreads, 0, stream>>>(from, index, cols, to);
}

void GatherPairs(const StepAt& step, const int32_t* source, const StateAt& ring, int64_t cols,
                 const float* x, float* out, cudaStream_t stream) {
  if (step.num_tokens == 0) return;
  GatherPairsKernel<<<RowGrid(step.num_tokens, cols), kThreads, 0, stream>>>(step, source, ring,
                                                                             cols, x, out);
}

void NgramRows(const NgramAt& at, cudaStream_t stream) {
  const int tokens = at.step.num_tokens;
  if (tokens == 0) return;
  NgramKernel<<<dim3((tokens + kThreads - 1) / kThreads, at.tables), kThreads, 0, stream>>>(at);
  const int most = tokens > at.step.num_rows ? tokens : at.step.num_rows;
  NgramStateKernel<<<(most + kThreads - 1) / kThreads, kThreads, 0, stream>>>(at);
}

}  // namespace deepinfer::cuda
