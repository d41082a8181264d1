// Takes the tensors of a family by name, checks them and binds them: matrices stored plainly, as
// FP8 with scales of blocks (F8_E8M0 `NAME.scale` or F32 `NAME.weight_scale_inv`), or as packed
// FP4. A family walks its names twice: kCheck notes everything that does not fit and binds nothing,
// kBind binds in the same order. Lives on the loading thread; checkpoint and backend outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "models/checkpoint.h"
#include "models/registry.h"
#include "models/tensor_census.h"

namespace deepinfer {

enum class BindPass { kCheck, kBind };

class FamilyBinder {
 public:
  FamilyBinder(const Checkpoint& checkpoint, Backend* backend, const LoadProgress& progress,
               BindPass pass);

  bool Has(const std::string& name) const { return census_.Has(name); }
  // A norm or bias, the whole name. nullptr in kCheck and after a problem, as for all below.
  std::unique_ptr<Weight> Vector(const std::string& name, int64_t size);
  // `base` + ".weight", [rows, cols].
  std::unique_ptr<Weight> Matrix(const std::string& base, int64_t rows, int64_t cols,
                                 WeightRole role = WeightRole::kLinear);
  // `name` is the whole name; bound as float32 whatever its type, for products that must not round.
  std::unique_ptr<Weight> Float32Matrix(const std::string& name, int64_t rows, int64_t cols);
  // Numbers of any shape, kept as a vector.
  std::unique_ptr<Weight> Table(const std::string& name, const std::vector<int64_t>& shape);
  // One [rows, cols] matrix per base.
  std::unique_ptr<Weight> Experts(std::span<const std::string> bases, int64_t rows, int64_t cols);
  // The logical matrix itself; a view into memory of the binder lives until the next Matrix,
  // Experts or Keep.
  std::optional<TensorView> View(const std::string& base, int64_t rows, int64_t cols);
  // Binds views that a family derived from View, as experts; kKept: others of them follow.
  enum class Derived { kDropped, kKept };
  std::unique_ptr<Weight> Keep(std::span<const TensorView> experts,
                               Derived derived = Derived::kDropped);
  // The rows of a matrix as `count` experts of `rows` each.
  std::unique_ptr<Weight> KeepRows(const TensorView& whole, int64_t count, int64_t rows);
  // Memory for a derived view, with the same life.
  std::byte* Derive(size_t bytes);
  // A host copy of a small tensor.
  std::vector<int64_t> Ints(const std::string& name, const std::vector<int64_t>& shape);

  void Ignore(std::string_view prefix) { census_.Ignore(prefix); }
  void Problem(std::string problem);
  // In kCheck also whether every tensor was taken or ignored.
  Status Finish(std::string_view architecture);
  size_t packed_bytes() const { return packed_bytes_; }
  BindPass pass() const { return pass_; }

 private:
  bool binding() const { return pass_ == BindPass::kBind && status_.ok() && !failed_; }
  std::unique_ptr<Weight> Count(Result<std::unique_ptr<Weight>> weight, size_t source_bytes);
  std::optional<TensorView> Float32Scaled(const TensorView& weight, const std::string& base);
  std::optional<TensorView> PowersOfTwo(const TensorView& weight, const TensorView& scale,
                                        const std::vector<float>& values);

  const Checkpoint& checkpoint_;
  Backend* backend_;
  const LoadProgress& progress_;
  BindPass pass_;
  TensorCensus census_;
  bool failed_ = false;
  Status status_;
  std::deque<std::vector<std::byte>> derived_;
  int64_t bytes_total_ = 0;
  int64_t bytes_done_ = 0;
  size_t packed_bytes_ = 0;
};

}  // namespace deepinfer
