#include "backend/cpu/cpu_compressed_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "backend/cpu/step_rows.h"

namespace deepinfer::cpu {

void CpuCompressedOps::CollapseHead(const HeadCollapseArgs& args) {
  const int n = args.shape.streams;
  const int hidden = args.shape.hidden;
  const int64_t width = int64_t{n} * hidden;
  const float* base = Cpu(*args.base).vector.data();
  const float scale = Cpu(*args.scale).vector[0];
  context_->pool->Run(args.shape.rows, [&](int row, int) {
    const float* x = args.x + row * width;
    const float mean = DotLanes(x, x, width) / static_cast<float>(width);
    const float norm = 1.0F / std::sqrt(mean + args.norm_eps);
    float* out = args.out + int64_t{row} * hidden;
    for (int i = 0; i < n; ++i) {
      const float raw = args.raw[int64_t{row} * n + i];
      const float pre = SigmoidOf(raw * norm * scale + base[i]) + args.hc_eps;
      const float* stream = x + int64_t{i} * hidden;
      if (i == 0) {
        for (int d = 0; d < hidden; ++d) out[d] = pre * stream[d];
      } else {
        for (int d = 0; d < hidden; ++d) out[d] += pre * stream[d];
      }
    }
  });
}

PairStep CpuCompressedOps::TakePairs(const StepInput& step) {
  for (std::vector<int32_t>* array : {&source_, &token_, &position_, &token_row_, &query_start_}) {
    array->clear();
  }
  query_start_.push_back(0);
  int longest = 0;
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int start = step.query_start[row];
    const int count = LiveTokens(step, row);
    for (int i = count > 0 && step.position[start] > 0 ? -1 : 0; i + 1 < count; ++i) {
      source_.push_back(i < 0 ? -1 : start + i);
      token_.push_back(step.token[start + i + 1]);
      position_.push_back(step.position[start] + i);
      token_row_.push_back(row);
    }
    query_start_.push_back(static_cast<int32_t>(token_.size()));
    longest = std::max(longest, query_start_.back() - query_start_[static_cast<size_t>(row)]);
  }
  kind_.assign(token_.size(), TokenKind::kText);
  PairStep pairs{.step = step, .source = source_.data()};
  pairs.step.shape.num_tokens = static_cast<int>(token_.size());
  pairs.step.shape.query_len_max = longest;
  pairs.step.token = token_.data();
  pairs.step.position = position_.data();
  pairs.step.token_row = token_row_.data();
  pairs.step.query_start = query_start_.data();
  pairs.step.kind = kind_.data();
  return pairs;
}

void CpuCompressedOps::GatherPairs(const PairStep& pairs, const WindowRing& ring, int64_t width,
                                   const float* x, float* out) {
  const StepInput& step = pairs.step;
  const auto bytes = static_cast<size_t>(width) * sizeof(float);
  const StateView stored(step, ring.group, ring.layer, static_cast<int64_t>(bytes));
  context_->pool->Run(step.shape.num_tokens, [&](int t, int) {
    const int32_t source = pairs.source != nullptr ? pairs.source[t] : -1;
    const void* from = source >= 0 ? static_cast<const void*>(x + source * width)
                                   : stored.At(step.slot[step.token_row[t]], step.position[t]);
    memcpy(out + t * width, from, bytes);
  });
}

void CpuCompressedOps::StorePairs(const StepInput& step, const WindowRing& ring, int64_t width,
                                  const float* x) {
  const auto bytes = static_cast<size_t>(width) * sizeof(float);
  const StateView stored(step, ring.group, ring.layer, static_cast<int64_t>(bytes));
  context_->pool->Run(step.shape.num_rows, [&](int row, int) {
    const int count = LiveTokens(step, row);
    for (int i = std::max(0, count - stored.positions()); i < count; ++i) {
      const int64_t token = step.query_start[row] + i;
      memcpy(stored.At(step.slot[row], step.position[token]), x + token * width, bytes);
    }
  });
}

void CpuCompressedOps::AddToStreams(const StreamShape& shape, const float* row, float* x) {
  context_->pool->Run(shape.rows, [&](int t, int) {
    for (int i = 0; i < shape.streams; ++i) {
      context_->rows->add(row + int64_t{t} * shape.hidden, shape.hidden,
                          x + (int64_t{t} * shape.streams + i) * shape.hidden);
    }
  });
}

}  // namespace deepinfer::cpu
