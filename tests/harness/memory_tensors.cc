#include "tests/harness/memory_tensors.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "tensor/quantize.h"

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

const TensorView* MemoryTensors::Find(std::string_view name) const {
  for (const TensorView& view : stable_) {
    if (view.name == name) return &view;
  }
  return nullptr;
}

}  // namespace deepinfer
