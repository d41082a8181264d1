#include "backend/cuda/cuda_context.h"

#include "base/check.h"
#include "base/format.h"

namespace deepinfer::cuda {

Status DeviceError(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(Format("{}: {}", what, cudaGetErrorString(error)));
}

void MustWork(cudaError_t error, const char* what) {
  DI_CHECK(error == cudaSuccess, "{}: {}", what, cudaGetErrorString(error));
}

void CudaContext::Upload(const void* from, size_t bytes, void* to) const {
  if (bytes == 0) return;
  MustWork(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy to the device");
  MustWork(cudaStreamSynchronize(stream), "copy to the device");
}

void SetInput(const CudaContext& context, const float* x, const int32_t* index, int rows,
              const float* norm, float eps, Activation* out) {
  auto& own = static_cast<CudaActivation&>(*out);
  const int64_t padded = Padded(static_cast<int>(own.cols), kPaddedColumns);
  own.float32 = own.has_float32 ? own.float32_memory.Floats(rows * padded) : nullptr;
  own.bf16 = own.has_bf16 ? own.bf16_memory.Array<std::byte>(rows * padded * 2) : nullptr;
  PrepareInput({.x = x,
                .stride = own.cols,
                .index = index,
                .rows = rows,
                .groups = 1,
                .cols = static_cast<int>(own.cols),
                .norm = norm,
                .norm_eps = eps,
                .float32 = own.float32,
                .bf16 = own.bf16},
               context.stream);
}

}  // namespace deepinfer::cuda
