// Stored elements of any DType to float32, exactly as the public format definitions say.
// Plain functions, any thread; the reference for every packed kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "deepinfer/status.h"
#include "tensor/tensor_view.h"

namespace deepinfer {

// Decodes `count` elements, a multiple of the block, from `source` (any alignment) to `out`.
// Not for the types of scaled views.
void DequantizeRow(DType dtype, const std::byte* source, int64_t count, float* out);

// Elements [begin, begin + count) of one row of a scaled type, by the codes and the scales of the
// row; a scale covers `scale_block` columns. out [count].
void DequantizeScaled(DType dtype, const std::byte* codes, const std::byte* scales,
                      int64_t scale_block, int64_t begin, int64_t count, float* out);

// Row `row` of a view taken as a matrix of its last dimension, scaled or not; out [last dimension].
void DequantizeRow(const TensorView& view, int64_t row, float* out);

// True when no scale (quantised types) or element (float types) is NaN or infinite.
bool AllFinite(DType dtype, const std::byte* source, int64_t count);
// The same for a whole view, scaled or not.
bool AllFinite(const TensorView& view);

// The whole tensor; an error names it when a scale or element is not finite.
Result<std::vector<float>> DequantizeTensor(const TensorView& view);

}  // namespace deepinfer
