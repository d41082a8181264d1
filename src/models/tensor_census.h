// What a family expects of the tensors of a checkpoint, tensor by tensor: whatever is missing,
// misshapen or left over is gathered, so that one message names several at once.
// Lives on the loading thread while a family binds; the TensorFile outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "deepinfer/status.h"
#include "tensor/tensor_file.h"

namespace deepinfer {

std::string ShapeText(const std::vector<int64_t>& shape);  // "[3, 4]"

class TensorProblems {
 public:
  void Add(std::string problem);
  // Ok when nothing was added; `path` is the checkpoint's.
  Status ToStatus(const std::string& path) const;

 private:
  size_t count_ = 0;
  std::vector<std::string> shown_;
};

class TensorCensus {
 public:
  explicit TensorCensus(const TensorFile& file) : file_(file) {}

  bool Has(std::string_view name) const { return file_.Find(name) != nullptr; }
  // The tensor of exactly this shape. nullptr, and a problem noted, when it is missing or has
  // another one; `allowed` (if not empty) lists the types it may have.
  const TensorView* Take(const std::string& name, const std::vector<int64_t>& shape,
                         std::span<const DType> allowed = {});
  // The same, but an absent tensor is no problem.
  const TensorView* TakeIfPresent(const std::string& name, const std::vector<int64_t>& shape,
                                  std::span<const DType> allowed = {});
  // `base`.weight as the matrix [rows, cols] that it stands for: with `base`.scale when that is
  // there (FP8 blocks, packed FP4), else a plain float type. The view keeps the tensor's name; its
  // bytes are empty when a problem was noted.
  TensorView TakeMatrix(const std::string& base, int64_t rows, int64_t cols);
  // Tensors whose names begin so are known and left alone.
  void Ignore(std::string_view prefix) { ignored_.emplace_back(prefix); }
  void Problem(std::string problem) { problems_.Add(std::move(problem)); }

  // Every tensor must have been taken or ignored by now.
  Status Finish(const std::string& path, std::string_view architecture);

 private:
  const TensorFile& file_;
  TensorProblems problems_;
  std::unordered_set<std::string_view> used_;
  std::vector<std::string> ignored_;
};

}  // namespace deepinfer
