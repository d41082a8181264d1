// Rows on their way into a cache: rounding that a model was trained with, the element type of the
// cache, and tiles of rows turned so that a lane holds a key. Plain functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/compressed_ops.h"

namespace deepinfer::cpu {

// `count` elements to float32 or f16 (which saturates: an infinity in the cache would poison masked
// lanes), then zeros up to `padded`.
void StoreRow(bool float32, const float* x, int count, int padded, std::byte* out);

// 16 rows of `dim` elements of `element` bytes (2 or 4), dim a multiple of 16, to [dim, 16].
void TransposeTile(const std::byte* rows, int dim, int element, std::byte* out);

// Rounds a row whose last `tail` elements are rotated.
void RoundRow(StoredRounding rounding, int count, int tail, float* x);

// x = H x / sqrt(count), H the Hadamard matrix of Sylvester's order; count a power of two.
void Hadamard(float* x, int count);

}  // namespace deepinfer::cpu
