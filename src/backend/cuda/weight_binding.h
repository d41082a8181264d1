// Tensors of a file to weights in device memory. Plain functions; loading thread.
#pragma once

#include <memory>
#include <span>

#include "backend/cuda/cuda_context.h"
#include "tensor/tensor_file.h"

namespace deepinfer::cuda {

Result<std::unique_ptr<Weight>> BindVector(const CudaContext& context, const TensorView& view);
// One matrix, a stack of them, or the experts of a layer, of one shape and type. Stored as FP8 or
// FP4 codes where they come as such, as bfloat16 otherwise; as float32 in float32 mode.
Result<std::unique_ptr<Weight>> BindMatrices(const CudaContext& context,
                                             std::span<const TensorView> views);

}  // namespace deepinfer::cuda
