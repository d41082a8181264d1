// float32 rows to stored types: F32, F16, BF16 and the block formats, with a search for the scales
// that minimise the squared error as a reader will see it (scales already rounded).
// Plain functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepinfer/status.h"
#include "tensor/dtype.h"

namespace deepinfer {

// True for the types that QuantizeRow writes.
bool CanQuantizeTo(DType dtype);

// Encodes `count` elements (a multiple of the block) into ByteSize(dtype, count) bytes at `out`.
// Errors: an element that is NaN, infinite or beyond the type's range; its index is named.
Status QuantizeRow(DType dtype, const float* row, int64_t count, std::byte* out);

}  // namespace deepinfer
