#include "backend/cpu/cpu_compressed_ops.h"

#include <cmath>

#include "backend/cpu/lanes.h"

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

}  // namespace deepinfer::cpu
