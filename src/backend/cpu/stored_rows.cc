#include "backend/cpu/stored_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/row_kernels.h"
#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

constexpr int kFp8Block = 64;
constexpr int kFp4Block = 32;

template <typename T>
void Transpose(const std::byte* from, int dim, std::byte* to) {
  const auto* rows = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(to);
  for (int d = 0; d < dim; d += kCacheTile) {
    for (int t = 0; t < kCacheTile; ++t) {
      const T* row = rows + int64_t{t} * dim + d;
      T* lane = out + int64_t{d} * kCacheTile + t;
      for (int i = 0; i < kCacheTile; ++i) lane[i * kCacheTile] = row[i];
    }
  }
}

}  // namespace

void StoreRow(bool float32, const float* x, int count, int padded, std::byte* out) {
  const size_t element = float32 ? sizeof(float) : sizeof(uint16_t);
  memset(out + static_cast<size_t>(count) * element, 0,
         static_cast<size_t>(padded - count) * element);
  if (float32) {
    memcpy(out, x, static_cast<size_t>(count) * element);
    return;
  }
  constexpr float kHalfMax = 65504.0F;
  for (int i = 0; i < count; ++i) {
    const uint16_t bits = FloatToHalf(std::clamp(x[i], -kHalfMax, kHalfMax));
    memcpy(out + static_cast<size_t>(i) * element, &bits, sizeof(bits));
  }
}

void TransposeTile(const std::byte* rows, int dim, int element, std::byte* out) {
  if (element == sizeof(float)) {
    Transpose<float>(rows, dim, out);
  } else {
    Transpose<uint16_t>(rows, dim, out);
  }
}

void Hadamard(float* x, int count) {
  for (int half = 1; half < count; half *= 2) {
    for (int i = 0; i < count; i += 2 * half) {
      for (int j = i; j < i + half; ++j) {
        const float a = x[j];
        const float b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
    }
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(count));
  for (int i = 0; i < count; ++i) x[i] *= scale;
}

void RoundRow(StoredRounding rounding, int count, int tail, float* x) {
  switch (rounding) {
    case StoredRounding::kNone:
      return;
    case StoredRounding::kFp8Blocks64:
      DI_CHECK((count - tail) % kFp8Block == 0, "{} elements before the tail", count - tail);
      FakeQuantFp8(x, count - tail, kFp8Block, x);
      return;
    case StoredRounding::kHadamardFp4:
      DI_CHECK(count % kFp4Block == 0 && (count & (count - 1)) == 0, "{} elements", count);
      Hadamard(x, count);
      FakeQuantFp4E8m0(x, count, kFp4Block, x);
      return;
  }
}

}  // namespace deepinfer::cpu
