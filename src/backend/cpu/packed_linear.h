// Packed matrices and their products on the CPU: the kernel family behind Linear, Head and Moe.
// One packed layout and one kernel family from one row to hundreds; per output element the
// reduction is ascending in K with the same accumulators and fold for every row count, so results
// are bit-equal for any batch, chunk and thread split within an ISA.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/compute_pool.h"
#include "deepinfer/status.h"
#include "tensor/tensor_view.h"

namespace deepinfer::cpu {

enum class Isa { kScalar, kAvx2, kAvx512, kAmx };

std::string_view IsaName(Isa isa);
// The best ISA of this machine, or the forced one; an error when it is not available.
Result<Isa> DetectIsa(std::string_view forced);

// What a weight reads. Bits of a mask: one activation buffer may be prepared in several forms.
enum ActFormat : uint32_t { kActF32 = 1, kActBF16 = 2, kActQ8 = 4 };

// Activation rows in the forms asked for. Q8: per 32 elements one float scale and the int sum.
// Buffers are grown by Reserve, 64-byte aligned, rows padded to `padded_cols`.
class ActRows {
 public:
  ActRows(int64_t cols, uint32_t formats);
  ~ActRows();
  ActRows(const ActRows&) = delete;
  ActRows& operator=(const ActRows&) = delete;
  void Reserve(int64_t rows);
  int64_t cols() const { return cols_; }
  uint32_t formats() const { return formats_; }
  // Converts one row of float32 into every format; `row` < reserved rows.
  void SetRow(Isa isa, int64_t row, const float* x);

  struct Storage;
  const Storage& storage() const { return *storage_; }

 private:
  int64_t cols_;
  uint32_t formats_;
  std::unique_ptr<Storage> storage_;
};

class PackedMatrix {
 public:
  // Packs [rows, cols] (or one expert of [experts, rows, cols]) from any DType of tensor/dtype.h
  // into anonymous huge-page memory. `float32`: decode to float32 (reference arithmetic).
  static Result<std::unique_ptr<PackedMatrix>> Pack(Isa isa, const TensorView& view, bool float32,
                                                    ComputePool* pool);
  virtual ~PackedMatrix() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t experts() const { return experts_; }
  size_t bytes() const { return bytes_; }
  uint32_t act_format() const { return act_format_; }
  // Columns of output that one work item covers; work is split only here, never in K.
  int64_t tile_rows() const { return tile_rows_; }

  // y[i, n] = dot(input row input_rows[i] (nullptr: i), weight row n) for i in [0, m) and weight
  // rows n in [n_begin, n_end) (multiples of tile_rows, n_end may be rows()); y has `stride`
  // floats a row and is addressed by i and n. Single-threaded: the caller splits.
  virtual void Multiply(const ActRows& input, const int32_t* input_rows, int64_t m, int64_t expert,
                        int64_t n_begin, int64_t n_end, float* y, int64_t stride) const = 0;

  // Row `row` of expert 0 as float32, the values that Multiply works with; out [cols]. A tied
  // embedding reads its rows from the packed head with this.
  virtual void DecodeRow(int64_t row, float* out) const = 0;

 protected:
  int64_t rows_ = 0, cols_ = 0, experts_ = 1, tile_rows_ = 1;
  size_t bytes_ = 0;
  uint32_t act_format_ = 0;
};

}  // namespace deepinfer::cpu
