// The buffers of ActRows. Owned by one ActRows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/packed_linear.h"

namespace deepinfer::cpu {

// Rows of one format: 64-byte aligned, `stride` bytes apart.
struct ActPlane {
  ActPlane() = default;
  ~ActPlane();
  ActPlane(const ActPlane&) = delete;
  ActPlane& operator=(const ActPlane&) = delete;
  void Reserve(int64_t rows);
  uint8_t* row(int64_t i) const { return bytes + i * stride; }
  const uint8_t* data() const { return bytes; }

  uint8_t* bytes = nullptr;
  int64_t stride = 0;
};

struct ActRows::Storage {
  ActPlane f32, bf16, q8;
  const ActPlane& plane(ActFormat format) const {
    return format == kActF32 ? f32 : (format == kActBF16 ? bf16 : q8);
  }
};

}  // namespace deepinfer::cpu
