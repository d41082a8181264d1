// Device memory that only grows; what it held is lost when it does. Owned by a stage; runner
// thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace deepinfer::cuda {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  template <typename T>
  T* Array(int64_t count) {
    return static_cast<T*>(Reserve(count * static_cast<int64_t>(sizeof(T))));
  }
  float* Floats(int64_t count) { return Array<float>(count); }

 private:
  void* Reserve(int64_t bytes);

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace deepinfer::cuda
