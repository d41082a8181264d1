// A named, typed, shaped view of bytes that somebody else keeps alive (a mapped file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace deepinfer {

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first: a linear weight is [out, in]
  const std::byte* data = nullptr;
  size_t bytes = 0;

  // Scaled views alone: the E8M0 codes [scale_rows, scale_cols] of blocks of scale_block_rows x
  // scale_block_cols elements; the last block of a row or column may be partial.
  const std::byte* scale = nullptr;
  int64_t scale_rows = 0;
  int64_t scale_cols = 0;
  int64_t scale_block_rows = 0;
  int64_t scale_block_cols = 0;

  int64_t dim(size_t i) const { return i < shape.size() ? shape[i] : 1; }
  int64_t elements() const {
    int64_t count = 1;
    for (int64_t d : shape) count *= d;
    return count;
  }
};

}  // namespace deepinfer
