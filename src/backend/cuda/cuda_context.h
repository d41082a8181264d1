// What every stage of the CUDA device works with, and the handles behind Weight and Activation.
// Owned by CudaBackend; used on the runner thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/sparse/device_buffer.h"
#include "backend/cuda/sparse/product_kernel.h"

namespace deepinfer::cuda {

// A fault of the device that `what` met: internal, so that programs end with the code of devices.
Status DeviceError(cudaError_t error, const char* what);
// Ends the program with a message: after such an error nothing on the device can be trusted.
void MustWork(cudaError_t error, const char* what);

struct CudaContext {
  bool float32 = false;
  cudaStream_t stream = nullptr;

  // Waits until the copy is done: the source may go.
  void Upload(const void* from, size_t bytes, void* to) const;
};

class CudaWeight final : public Weight {
 public:
  StoredMatrix stored;
  DeviceBuffer codes, scales;
  DeviceBuffer vector;        // of kVector
  float* elements = nullptr;  // in it
};

class CudaActivation final : public Activation {
 public:
  int64_t cols = 0;
  bool has_float32 = false;
  bool has_bf16 = false;
  DeviceBuffer float32_memory, bf16_memory;
  float* float32 = nullptr;  // [rows, padded columns]
  std::byte* bf16 = nullptr;
};

// The elements of a vector; nullptr of nullptr.
inline const float* Vector(const Weight* weight) {
  return weight == nullptr ? nullptr : static_cast<const CudaWeight*>(weight)->elements;
}
inline const StoredMatrix& StoredOf(const Weight& weight) {
  return static_cast<const CudaWeight&>(weight).stored;
}
// The rows of an input as products with `matrix` read them.
inline const void* InputOf(const Activation& input, const StoredMatrix& matrix) {
  const auto& own = static_cast<const CudaActivation&>(input);
  if (matrix.type == kStoredF32) return own.float32;
  return own.bf16;
}
// Rows x[index[i]] (nullptr: x[i]), normed by `norm` (nullptr: as they are).
void SetInput(const CudaContext& context, const float* x, const int32_t* index, int rows,
              const float* norm, float eps, Activation* out);
inline void SetInput(const CudaContext& context, const float* x, int rows, Activation* out) {
  SetInput(context, x, nullptr, rows, nullptr, 0.0F, out);
}

}  // namespace deepinfer::cuda
