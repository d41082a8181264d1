#include "backend/cpu/hyper_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr int kColumnsPerBlock = 256;

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

void MixToken(const StreamMixArgs& args, int row) {
  const int n = args.shape.streams;
  const int64_t width = int64_t{n} * args.shape.hidden;
  const float* x = args.x + row * width;
  const float* raw = args.raw + int64_t{row} * n * (n + 2);
  const float* base = Cpu(*args.base).vector.data();
  const float* scale = Cpu(*args.scale).vector.data();
  const float mean = DotLanes(x, x, width) / static_cast<float>(width);
  const float norm = 1.0F / std::sqrt(mean + args.norm_eps);
  for (int i = 0; i < n; ++i) {
    args.pre[int64_t{row} * n + i] = SigmoidOf(raw[i] * norm * scale[0] + base[i]) + args.hc_eps;
    args.post[int64_t{row} * n + i] = 2.0F * SigmoidOf(raw[n + i] * norm * scale[1] + base[n + i]);
  }
  float* comb = args.comb + int64_t{row} * n * n;
  for (int i = 0; i < n * n; ++i) comb[i] = raw[2 * n + i] * norm * scale[2] + base[2 * n + i];
  Balance(n, args.sinkhorn_iters, args.hc_eps, comb);
}

void CollapseToken(const StreamShape& shape, const float* x, const float* pre, float* out) {
  for (int d = 0; d < shape.hidden; ++d) out[d] = pre[0] * x[d];
  for (int i = 1; i < shape.streams; ++i) {
    const float* stream = x + int64_t{i} * shape.hidden;
    for (int d = 0; d < shape.hidden; ++d) out[d] += pre[i] * stream[d];
  }
}

// A block of columns at a time: the new streams need all old ones.
void ExpandToken(const StreamShape& shape, const float* y, const float* post, const float* comb,
                 float* x) {
  const int n = shape.streams;
  float mixed[kStreamsMax][kColumnsPerBlock];
  for (int first = 0; first < shape.hidden; first += kColumnsPerBlock) {
    const int count = std::min(kColumnsPerBlock, shape.hidden - first);
    for (int k = 0; k < n; ++k) {
      for (int d = 0; d < count; ++d) mixed[k][d] = post[k] * y[first + d];
      for (int j = 0; j < n; ++j) {
        const float weight = comb[j * n + k];
        const float* stream = x + int64_t{j} * shape.hidden + first;
        for (int d = 0; d < count; ++d) mixed[k][d] += weight * stream[d];
      }
    }
    for (int k = 0; k < n; ++k) {
      std::copy(mixed[k], mixed[k] + count, x + int64_t{k} * shape.hidden + first);
    }
  }
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
  context_->pool->Run(args.shape.rows, [&](int row, int) { MixToken(args, row); });
}

void HyperStage::Collapse(const StreamShape& shape, const float* x, const float* pre, float* out) {
  const int64_t width = int64_t{shape.streams} * shape.hidden;
  context_->pool->Run(shape.rows, [&](int row, int) {
    CollapseToken(shape, x + row * width, pre + int64_t{row} * shape.streams,
                  out + int64_t{row} * shape.hidden);
  });
}

void HyperStage::Expand(const StreamShape& shape, const float* y, const float* post,
                        const float* comb, float* x) {
  const int64_t n = shape.streams;
  context_->pool->Run(shape.rows, [&](int row, int) {
    ExpandToken(shape, y + int64_t{row} * shape.hidden, post + row * n, comb + row * n * n,
                x + row * n * shape.hidden);
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
