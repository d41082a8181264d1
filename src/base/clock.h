// Time as a seam: real in the product, set by hand in tests and simulations. Safe on any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace deepinfer {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic microseconds; the zero point means nothing. Request::deadline_us is on this clock.
  virtual int64_t NowUs() const = 0;
  // Microseconds since 1970, for stamps that people and other machines read.
  virtual int64_t UnixUs() const = 0;
};

class RealClock final : public Clock {
 public:
  int64_t NowUs() const override { return Count(std::chrono::steady_clock::now()); }
  int64_t UnixUs() const override { return Count(std::chrono::system_clock::now()); }

 private:
  template <typename TimePoint>
  static int64_t Count(TimePoint time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  }
};

// Stands still until advanced.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t now_us = 0, int64_t unix_us = 0)
      : now_us_(now_us), unix_offset_us_(unix_us - now_us) {}
  int64_t NowUs() const override { return now_us_.load(std::memory_order_relaxed); }
  int64_t UnixUs() const override { return NowUs() + unix_offset_us_; }
  void Advance(int64_t us) { now_us_.fetch_add(us, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_us_;
  const int64_t unix_offset_us_;
};

}  // namespace deepinfer
