#include "backend/cuda/sparse/device_buffer.h"

#include "base/check.h"

namespace deepinfer::cuda {

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

// Freeing waits for the launches that still use the memory.
void* DeviceBuffer::Reserve(int64_t bytes) {
  if (bytes <= bytes_) return data_;
  cudaFree(data_);
  const cudaError_t error = cudaMalloc(&data_, static_cast<size_t>(bytes));
  DI_CHECK(error == cudaSuccess, "{} bytes of device memory: {}", bytes, cudaGetErrorString(error));
  bytes_ = bytes;
  return data_;
}

}  // namespace deepinfer::cuda
