#include "backend/cpu/rope_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace deepinfer::cpu {
namespace {

constexpr int kAnglesPerChunk = 1024;

}  // namespace

void RopeTable::Prepare(ComputePool* pool, const int32_t* positions, int count,
                        const float* inv_freq, int half, float factor) {
  const auto size = static_cast<size_t>(count);
  if (positions_.size() == size && half_ == half && factor_ == factor &&
      memcmp(positions_.data(), positions, size * sizeof(int32_t)) == 0 &&
      memcmp(freq_.data(), inv_freq, static_cast<size_t>(half) * sizeof(float)) == 0) {
    return;
  }
  positions_.assign(positions, positions + count);
  freq_.assign(inv_freq, inv_freq + half);
  factor_ = factor;
  half_ = half;
  cos_.resize(size * static_cast<size_t>(half));
  sin_.resize(size * static_cast<size_t>(half));
  const int per_chunk = std::max(1, kAnglesPerChunk / std::max(half, 1));
  pool->Run((count + per_chunk - 1) / per_chunk, [&](int chunk, int) {
    const int end = std::min(count, (chunk + 1) * per_chunk);
    for (int t = chunk * per_chunk; t < end; ++t) {
      const auto at = static_cast<size_t>(t) * static_cast<size_t>(half_);
      for (size_t i = 0; i < freq_.size(); ++i) {
        // The angle in float, as the models were trained; its functions exactly.
        const float angle = static_cast<float>(positions_[static_cast<size_t>(t)]) * freq_[i];
        cos_[at + i] = static_cast<float>(std::cos(double{angle})) * factor_;
        sin_[at + i] = static_cast<float>(std::sin(double{angle})) * factor_;
      }
    }
  });
}

}  // namespace deepinfer::cpu
