// Element and block types of stored tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "deepinfer/status.h"

namespace deepinfer {

enum class DType : uint8_t {
  kF32, kF16, kBF16, kI8, kU8, kI32, kI64,
  kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K, kMXFP4,
};

// A block is `block_elements` consecutive elements of a row stored in `block_bytes`; plain types
// have blocks of one element.
struct DTypeInfo {
  std::string_view name;       // "F32", "Q4_K", ... as GGUF and safetensors spell them
  int block_elements;
  int block_bytes;
};

const DTypeInfo& Info(DType dtype);
Result<DType> ParseDType(std::string_view name);

// Bytes of `count` elements (a multiple of the block). Error on overflow or a partial block.
Result<size_t> ByteSize(DType dtype, int64_t count);

}  // namespace deepinfer
