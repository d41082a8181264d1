// Time as the engine sees it: monotonic microseconds. Real in the product, virtual in simulations.
// Safe on any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace deepinfer {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowUs() const = 0;
};

// The machine's steady clock; Request::deadline_us is on it.
inline int64_t MonotonicUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class MonotonicClock final : public Clock {
 public:
  int64_t NowUs() const override { return MonotonicUs(); }
};

}  // namespace deepinfer
