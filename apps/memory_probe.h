// Measures what this machine's memory moves, for `doctor --measure` and benchmark reports.
#pragma once

#include <cstddef>

namespace deepinfer {

struct MemoryRates {
  double read_gb_s = 0;  // sequential reads of a set larger than the caches
  double copy_gb_s = 0;  // memcpy, bytes read plus bytes written
};

// Best of several passes over `bytes` with `threads` threads; takes about a second.
MemoryRates MeasureMemory(int threads, size_t bytes);

}  // namespace deepinfer
