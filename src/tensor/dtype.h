// Element and block types of stored tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "deepinfer/status.h"

namespace deepinfer {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI8,
  kU8,
  kI32,
  kI64,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMXFP4,
  kF8_E4M3,
  kF8_E8M0,
  // Codes whose scales are a second tensor: only scaled views (scaled_tensor.h) have these types.
  kF8Block,  // one e4m3 code an element
  kF4Pairs,  // two e2m1 codes a byte, the low nibble is the even column
};

// A block is `block_elements` consecutive elements of a row stored in `block_bytes`; plain types
// have blocks of one element.
struct DTypeInfo {
  std::string_view name;  // "F32", "Q4_K", ... as GGUF and safetensors spell them
  int block_elements;
  int block_bytes;
};

const DTypeInfo& Info(DType dtype);
// True for the types of scaled views.
inline bool HasScaleTensor(DType dtype) {
  return dtype == DType::kF8Block || dtype == DType::kF4Pairs;
}
Result<DType> ParseDType(std::string_view name);

// Bytes of `count` elements (a multiple of the block). Error on overflow or a partial block.
Result<size_t> ByteSize(DType dtype, int64_t count);

}  // namespace deepinfer
