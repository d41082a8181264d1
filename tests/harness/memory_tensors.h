// Tensors made in memory, for binding without a file; and random numbers that every machine draws
// alike. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tensor/tensor_file.h"

namespace deepinfer {

// Uniform in [-1, 1), a pure function of the seed.
std::vector<float> RandomFloats(uint64_t seed, int64_t count);

class MemoryTensors final : public TensorFile {
 public:
  // Encodes `values` as `dtype`; the reference stays valid.
  const TensorView& Add(std::string name, DType dtype, std::vector<int64_t> shape,
                        const std::vector<float>& values);

  const TensorView* Find(std::string_view name) const override;
  const std::vector<TensorView>& tensors() const override { return views_; }
  void Drop(const TensorView&) const override {}
  size_t file_bytes() const override { return 0; }

 private:
  std::deque<std::vector<std::byte>> bytes_;
  std::deque<TensorView> stable_;
  std::vector<TensorView> views_;
};

}  // namespace deepinfer
