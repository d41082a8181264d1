// Packed matrices and their products on the CPU: the kernel family behind Linear, Head and Moe.
// One packed layout and one kernel family from one row to hundreds; per output element the
// reduction is ascending in K with the same accumulators and fold for every row count, so results
// are bit-equal for any batch, chunk and thread split within an ISA.
// A PackedMatrix is immutable after Pack: any thread. An ActRows has one writer per row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/compute_pool.h"
#include "deepinfer/status.h"
#include "tensor/tensor_file.h"
#include "tensor/tensor_view.h"

namespace deepinfer::cpu {

enum class Isa { kScalar, kAvx2, kAvx512, kAmx };

std::string_view IsaName(Isa isa);
// The best ISA of this machine, or the forced one; an error when it is not available.
Result<Isa> DetectIsa(std::string_view forced);

// What a weight reads. Bits of a mask: one activation buffer may be prepared in several forms.
enum ActFormat : uint32_t { kActF32 = 1, kActBF16 = 2, kActQ8 = 4 };

// Activation rows in the forms asked for. Q8: per 32 elements one float scale and the int sum.
// Buffers are grown by Reserve, 64-byte aligned, rows padded with zeros to 32 columns.
class ActRows {
 public:
  ActRows(int64_t cols, uint32_t formats);
  ~ActRows();
  ActRows(const ActRows&) = delete;
  ActRows& operator=(const ActRows&) = delete;
  // Rows written before are lost when the buffers have to grow.
  void Reserve(int64_t rows);
  int64_t cols() const { return cols_; }
  int64_t rows() const { return rows_; }
  uint32_t formats() const { return formats_; }
  // Converts one row of `cols` floats into every format; `row` < reserved rows. Different rows may
  // be set by different threads. A block that holds an infinity or NaN yields NaN products.
  void SetRow(Isa isa, int64_t row, const float* x);

  struct Storage;
  const Storage& storage() const { return *storage_; }

 private:
  int64_t cols_;
  int64_t rows_ = 0;
  uint32_t formats_;
  std::unique_ptr<Storage> storage_;
};

// Huge-page memory for the packed matrices of one model, laid out in the order of the Pack calls
// (bind in execution order: decode then walks memory forward). Address space is reserved in
// large pieces; a page costs memory only once it is packed into. The memory lives until the arena
// and every matrix packed into it are gone. One thread packs at a time.
class PackedArena {
 public:
  PackedArena();
  ~PackedArena();
  PackedArena(const PackedArena&) = delete;
  PackedArena& operator=(const PackedArena&) = delete;
  size_t used_bytes() const;

  struct Piece;  // one mapping

 private:
  friend class PackedMatrix;
  std::shared_ptr<Piece> piece_;
  size_t used_bytes_ = 0;
};

class PackedMatrix {
 public:
  // Packs [rows, cols] (or [experts, rows, cols]) of any float or block DType of tensor/dtype.h
  // into anonymous huge-page memory (of `arena`, or of its own). `float32`: decode to float32
  // (reference arithmetic). Errors name the tensor: type or shape without a product, a scale that
  // is not finite, no memory. Pages of `file`, when given, are dropped piece by piece behind the
  // packing, so that a large tensor is never in memory twice.
  static Result<std::unique_ptr<PackedMatrix>> Pack(Isa isa, const TensorView& view, bool float32,
                                                    ComputePool* pool, PackedArena* arena = nullptr,
                                                    const TensorFile* file = nullptr);
  // The same without packing: a matrix that knows its shape and format and gets its bytes by Load.
  // Errors as Pack, but values are not looked at.
  static Result<std::unique_ptr<PackedMatrix>> Plan(Isa isa, const TensorView& view, bool float32);
  // Loading a planned matrix: Place gives it memory (bytes() of them on a 64-byte boundary, which
  // stay the caller's), then PackPanels fills [begin, end) of panels() from the view of Plan,
  // different panels on any threads. False: a scale or element is not finite; the caller then
  // calls Fail, after which (and without memory) every product gives NaN.
  virtual void Place(uint8_t* memory) = 0;
  virtual int64_t panels() const = 0;
  virtual bool PackPanels(const TensorView& view, int64_t begin, int64_t end) = 0;
  virtual Status Fail(const TensorView& view) = 0;
  virtual void Unload() = 0;
  virtual bool loaded() const = 0;
  // Without memory of its own: until Stream(nullptr), products pack the panels that they need of
  // the view of Plan into a scratch and forget them, to the same bits. False when its panels are
  // too large for that.
  virtual bool Stream(const TensorView* view) = 0;
  // Values that are not finite were met since Place or Stream.
  virtual bool damaged() const = 0;

  // Bytes that Pack will use for `view`, 0 when it has no packed form.
  static size_t PackedBytes(const TensorView& view, bool float32);

  virtual ~PackedMatrix() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t experts() const { return experts_; }
  size_t bytes() const { return bytes_; }
  uint32_t act_format() const { return act_format_; }
  // Columns of output that one work item covers; work is split only here, never in K.
  int64_t tile_rows() const { return tile_rows_; }

  // How to split: chunks of this many weight rows (a multiple of tile_rows) for a product with m
  // input rows on `threads` threads. Few rows: sequential runs of memory, short enough to even out.
  // Many rows: groups of tiles that amortise the staging of the input. When that gives fewer
  // chunks than threads, split the input rows as well, in multiples of row_block().
  int64_t ChunkRows(int64_t m, int threads) const;
  static constexpr int64_t row_block() { return 48; }

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

 private:
  friend class WeightCache;
  int32_t cache_entry_ = -1;  // of the cache that loads it
};

}  // namespace deepinfer::cpu
