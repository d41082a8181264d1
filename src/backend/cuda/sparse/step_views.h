// Makes the values that kernels of sparse models take from the arguments of a stage. Host code; the
// step, which it does not read, outlives the launch.
#pragma once

#include <cstdint>

#include "backend/cuda/sparse/row_views.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cuda {

StepAt ViewOf(const StepInput& step);
RopeAt ViewOf(const TailRope& rope);
RopeAt RopeView(const float* inv_freq, int half, float factor);
// A layer of a group whose rows have `row_bytes`.
HistoryAt HistoryView(const StepInput& step, const HistoryRows& rows, int64_t row_bytes);
StateAt StateView(std::byte* slots, const CacheLayout& layout, const WindowRing& ring,
                  int64_t position_bytes);
inline StateAt StateView(const StepInput& step, const WindowRing& ring, int64_t position_bytes) {
  return StateView(step.cache_slots, *step.layout, ring, position_bytes);
}

}  // namespace deepinfer::cuda
