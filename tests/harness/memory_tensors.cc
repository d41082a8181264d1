#include "tests/harness/memory_tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "tensor/block_formats.h"
#include "tensor/fake_quant.h"
#include "tensor/quantize.h"
#include "tensor/scaled_tensor.h"

namespace deepinfer {

std::vector<float> RandomFloats(uint64_t seed, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto word = Philox4x32(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0];
    values[i] = static_cast<float>(2.0 * UniformOpen(word) - 1.0);
  }
  return values;
}

const TensorView& MemoryTensors::Add(std::string name, DType dtype, std::vector<int64_t> shape,
                                     const std::vector<float>& values) {
  const Result<size_t> size = ByteSize(dtype, static_cast<int64_t>(values.size()));
  DI_CHECK(size.ok(), "{}", size.status().message());
  std::vector<std::byte>& bytes = bytes_.emplace_back(*size);
  const Status status =
      QuantizeRow(dtype, values.data(), static_cast<int64_t>(values.size()), bytes.data());
  DI_CHECK(status.ok(), "{}", status.message());
  stable_.push_back({.name = std::move(name),
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .data = bytes.data(),
                     .bytes = bytes.size()});
  views_.push_back(stable_.back());
  return stable_.back();
}

const TensorView& MemoryTensors::AddScaled(std::string name, DType dtype, int64_t rows,
                                           int64_t cols, const std::vector<float>& values) {
  const bool pairs = dtype == DType::kF4Pairs;
  const int64_t down = pairs ? 1 : 32;
  const int64_t scale_rows = (rows + down - 1) / down, scale_cols = (cols + 31) / 32;
  std::vector<std::byte>& codes =
      bytes_.emplace_back(static_cast<size_t>(rows * cols) / (pairs ? 2 : 1));
  std::vector<std::byte>& scales =
      bytes_.emplace_back(static_cast<size_t>(scale_rows * scale_cols));
  std::vector<float> top(scales.size(), 1e-20F);
  const auto block = [&](int64_t r, int64_t k) {
    return static_cast<size_t>(r / down * scale_cols + k / 32);
  };
  const auto value = [&](int64_t r, int64_t k) {
    return values[static_cast<size_t>(r * cols + k)];
  };
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      top[block(r, k)] = std::max(top[block(r, k)], std::fabs(value(r, k)));
    }
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    const float power = PowerOfTwoCeil(top[i] / (pairs ? 6.0F : 448.0F));
    scales[i] = static_cast<std::byte>(std::bit_cast<uint32_t>(power) >> 23);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      const float scale = E8M0ToFloat(std::to_integer<uint8_t>(scales[block(r, k)]));
      const auto at = static_cast<size_t>(r * cols + k);
      if (pairs) {
        codes[at / 2] |= static_cast<std::byte>(FloatToE2M1(value(r, k) / scale) << (4 * (k & 1)));
      } else {
        codes[at] = std::byte{FloatToE4M3(value(r, k) / scale)};
      }
    }
  }
  const Result<TensorView> view = WithScale(
      {name,
       pairs ? DType::kI8 : DType::kF8_E4M3,
       {rows, pairs ? cols / 2 : cols},
       codes.data(),
       codes.size()},
      {name + ".scale", DType::kF8_E8M0, {scale_rows, scale_cols}, scales.data(), scales.size()});
  DI_CHECK(view.ok(), "{}", view.status().message());
  stable_.push_back(*view);
  views_.push_back(stable_.back());
  return stable_.back();
}

const TensorView* MemoryTensors::Find(std::string_view name) const {
  for (const TensorView& view : stable_) {
    if (view.name == name) return &view;
  }
  return nullptr;
}

}  // namespace deepinfer
