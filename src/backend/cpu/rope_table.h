// Cosines and sines of a step's positions for one set of frequencies, computed once and kept while
// the layers of the step ask for them again. One per stage; filled on the runner thread, read by
// pool threads.
#pragma once

#include <cstdint>
#include <vector>

#include "base/compute_pool.h"

namespace deepinfer::cpu {

class RopeTable {
 public:
  // `half` frequencies; `factor` multiplies cosines and sines.
  void Prepare(ComputePool* pool, const int32_t* positions, int count, const float* inv_freq,
               int half, float factor);
  const float* cos(int i) const { return cos_.data() + static_cast<int64_t>(i) * half_; }
  const float* sin(int i) const { return sin_.data() + static_cast<int64_t>(i) * half_; }

 private:
  std::vector<float> cos_, sin_;  // [count, half]
  std::vector<int32_t> positions_;
  std::vector<float> freq_;
  float factor_ = 0.0F;
  int half_ = 0;
};

}  // namespace deepinfer::cpu
