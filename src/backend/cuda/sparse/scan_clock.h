// Adds up the time that the device spends between pairs of marks in its stream, without waiting for
// it. Marks of a captured graph are left out. Begin and End on the runner thread, us on any.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace deepinfer::cuda {

class ScanClock {
 public:
  ScanClock() = default;
  ScanClock(const ScanClock&) = delete;
  ScanClock& operator=(const ScanClock&) = delete;
  ~ScanClock();
  void Begin(cudaStream_t stream);
  void End(cudaStream_t stream);
  int64_t us() const { return ns_.load(std::memory_order_relaxed) / 1000; }

 private:
  struct Span {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    bool open = false;
  };
  void Harvest(Span* span);

  std::array<Span, 64> spans_;  // the oldest is read when its place is needed
  size_t next_ = 0;
  bool begun_ = false;
  std::atomic<int64_t> ns_{0};
};

}  // namespace deepinfer::cuda
