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
  // The same for a matrix of a type with scales (kF8Block in blocks of 32 x 32, kF4Pairs).
  const TensorView& AddScaled(std::string name, DType dtype, int64_t rows, int64_t cols,
                              const std::vector<float>& values);
  // The scales of the last AddScaled, to be damaged.
  std::byte* last_scales() { return bytes_.back().data(); }

  const TensorView* Find(std::string_view name) const override;
  const std::vector<TensorView>& tensors() const override { return views_; }
  void Drop(const TensorView&) const override {}
  bool Holds(const TensorView&) const override { return true; }
  size_t file_bytes() const override { return 0; }

 private:
  std::deque<std::vector<std::byte>> bytes_;
  std::deque<TensorView> stable_;
  std::vector<TensorView> views_;
};

}  // namespace deepinfer
