#include "backend/cpu/hyper_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr int kColumnsPerItem = 1024;

// Softmax of the rows, then columns and rows divided by their sums in turn (Sinkhorn and Knopp),
// columns last.
void Balance(int n, int iterations, float eps, float* comb) {
  for (int j = 0; j < n; ++j) {
    float* row = comb + j * n;
    const float max = *std::max_element(row, row + n);
    float sum = 0.0F;
    for (int k = 0; k < n; ++k) {
      row[k] = std::exp(row[k] - max);
      sum += row[k];
    }
    for (int k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  for (int round = 0; round < iterations; ++round) {
    for (int j = 0; round > 0 && j < n; ++j) {
      float sum = 0.0F;
      for (int k = 0; k < n; ++k) sum += comb[j * n + k];
      for (int k = 0; k < n; ++k) comb[j * n + k] /= sum + eps;
    }
    for (int k = 0; k < n; ++k) {
      float sum = 0.0F;
      for (int j = 0; j < n; ++j) sum += comb[j * n + k];
      for (int j = 0; j < n; ++j) comb[j * n + k] /= sum + eps;
    }
  }
}

void MixToken(const SparseKernels& kernels, const StreamMixArgs& args, int row) {
  const int n = args.shape.streams;
  const int64_t width = int64_t{n} * args.shape.hidden;
  const float* x = args.x + row * width;
  const float* raw = args.raw + int64_t{row} * n * (n + 2);
  const float* base = Cpu(*args.base).vector.data();
  const float* scale = Cpu(*args.scale).vector.data();
  const float mean = kernels.dot(x, x, width) / static_cast<float>(width);
  const float norm = 1.0F / std::sqrt(mean + args.norm_eps);
  for (int i = 0; i < n; ++i) {
    args.pre[int64_t{row} * n + i] = SigmoidOf(raw[i] * norm * scale[0] + base[i]) + args.hc_eps;
    args.post[int64_t{row} * n + i] = 2.0F * SigmoidOf(raw[n + i] * norm * scale[1] + base[n + i]);
  }
  float* comb = args.comb + int64_t{row} * n * n;
  for (int i = 0; i < n * n; ++i) comb[i] = raw[2 * n + i] * norm * scale[2] + base[2 * n + i];
  Balance(n, args.sinkhorn_iters, args.hc_eps, comb);
}

// Columns are independent: few rows are cut into several items.
template <typename Fn>
void RunColumns(ComputePool* pool, const StreamShape& shape, const Fn& run) {
  const int parts = shape.rows >= 2 * pool->threads()
                        ? 1
                        : (shape.hidden + kColumnsPerItem - 1) / kColumnsPerItem;
  const int columns = parts == 1 ? shape.hidden : kColumnsPerItem;
  pool->Run(shape.rows * parts, [&](int item, int) {
    const int first = item % parts * columns;
    run(item / parts, first, std::min(columns, shape.hidden - first));
  });
}

}  // namespace

void HyperStage::Start(const StreamShape& shape, const float* embedded, float* x, float* pre) {
  context_->pool->Run(shape.rows, [&](int row, int) {
    const float* from = embedded + int64_t{row} * shape.hidden;
    for (int i = 0; i < shape.streams; ++i) {
      const int64_t stream = int64_t{row} * shape.streams + i;
      std::copy(from, from + shape.hidden, x + stream * shape.hidden);
      pre[stream] = i == 0 ? 1.0F : 0.0F;
    }
  });
}

void HyperStage::Mix(const StreamMixArgs& args) {
  DI_CHECK(args.shape.streams >= 1 && args.shape.streams <= kStreamsMax, "{} streams",
           args.shape.streams);
  context_->pool->Run(args.shape.rows,
                      [&](int row, int) { MixToken(context_->sparse(), args, row); });
}

void HyperStage::Collapse(const StreamShape& shape, const float* x, const float* pre, float* out) {
  const int64_t width = int64_t{shape.streams} * shape.hidden;
  RunColumns(context_->pool.get(), shape, [&](int row, int first, int count) {
    context_->sparse().collapse(x + row * width + first, shape.hidden, shape.streams,
                                pre + int64_t{row} * shape.streams, count,
                                out + int64_t{row} * shape.hidden + first);
  });
}

void HyperStage::Expand(const StreamShape& shape, const float* y, const float* post,
                        const float* comb, float* x) {
  const int64_t n = shape.streams;
  RunColumns(context_->pool.get(), shape, [&](int row, int first, int count) {
    context_->sparse().expand(y + int64_t{row} * shape.hidden + first, post + row * n,
                              comb + row * n * n, shape.streams, shape.hidden, count,
                              x + row * n * shape.hidden + first);
  });
}

void HyperStage::Mean(const StreamShape& shape, const float* x, float* out, int64_t stride) {
  const float share = 1.0F / static_cast<float>(shape.streams);
  context_->pool->Run(shape.rows, [&](int row, int) {
    const float* streams = x + int64_t{row} * shape.streams * shape.hidden;
    float* to = out + row * stride;
    for (int d = 0; d < shape.hidden; ++d) {
      float sum = 0.0F;
      for (int i = 0; i < shape.streams; ++i) sum += streams[int64_t{i} * shape.hidden + d];
      to[d] = sum * share;
    }
  });
}

void HyperStage::Gather(const float* from, const int32_t* index, int rows, int64_t cols,
                        float* to) {
  context_->pool->Run(rows, [&](int row, int) {
    memcpy(to + row * cols, from + index[row] * cols, static_cast<size_t>(cols) * sizeof(float));
  });
}

}  // namespace deepinfer::cpu
