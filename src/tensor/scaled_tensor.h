// Matrices stored as codes and a second tensor of E8M0 scales, joined into one view of the logical
// matrix: FP8 (e4m3) in square blocks or in runs of 32 columns, packed FP4 in runs of 32 columns.
// Plain functions, any thread; views point where their tensors point.
#pragma once

#include "deepinfer/status.h"
#include "tensor/tensor_view.h"

namespace deepinfer {

// The view [N, K] of `weight` with its `scale` (F8_E8M0):
//   weight F8_E4M3 [N, K], scale [ceil(N/B), ceil(K/B)], B = 32, 64, 128 or 256   -> kF8Block
//   weight F8_E4M3 [N, K], scale [N, ceil(K/32)]                                   -> kF8Block
//   weight I8 or U8 [N, K/2], low nibble = even column, scale [N, K/32]            -> kF4Pairs
// Errors name both tensors when types or shapes do not fit. Values are not looked at.
Result<TensorView> WithScale(const TensorView& weight, const TensorView& scale);

// The rows [begin, end) of a matrix, scaled or not. Errors: rows out of range, or a begin inside a
// block of scales.
Result<TensorView> RowsOf(const TensorView& view, int64_t begin, int64_t end);

}  // namespace deepinfer
