// A table far larger than memory whose rows are fetched by id (Engram): a scaled view [rows, cols]
// left in its file, never packed. Owned by a model, used on the runner thread alone, but for stats;
// views and file must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "deepinfer/status.h"
#include "tensor/tensor_file.h"

namespace deepinfer {

// How rows come from the file: kAuto takes pread where the system allows no io_uring.
enum class RowIo : uint8_t { kAuto, kIoUring, kPread };

// "auto", "io_uring" or "pread".
Result<RowIo> ParseRowIo(std::string_view name);

struct RowTableOptions {
  RowIo io = RowIo::kAuto;
  size_t cache_bytes = size_t{256} << 20;  // of rows kept in memory; at least one step's rows
};

struct RowTableStats {
  uint64_t rows = 0;   // gathered, repeated ids of one call counted once
  uint64_t hits = 0;   // of these, in memory when they were asked for (prefetched or hot)
  uint64_t reads = 0;  // rows read from the file
  uint64_t read_bytes = 0;
  uint64_t errors = 0;    // of these, failed
  uint64_t stall_us = 0;  // time that Gather waited for reads
};

class RowTable {
 public:
  // `view` is two-dimensional, of any type with scales per row or none. Errors name the tensor, or
  // the file if another one has taken its name.
  static Result<std::unique_ptr<RowTable>> Open(const TensorFile& file, const TensorView& view,
                                                const RowTableOptions& options);
  virtual ~RowTable() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  // Starts fetching these rows; ids out of range and repeated ones are ignored. Returns at once.
  virtual void Prefetch(std::span<const int64_t> ids) = 0;
  // out [n, cols]: the rows as float32, prefetched or not. A row whose id is out of range, whose
  // scale or element is NaN, or which could not be read is NaN: it fails the sequence that asked.
  virtual void Gather(const int64_t* ids, int64_t n, float* out) = 0;
  virtual RowTableStats stats() const = 0;  // any thread
  virtual std::string_view io() const = 0;  // "io_uring", "pread", "memory": in no file

 protected:
  RowTable(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}

 private:
  int64_t rows_, cols_;
};

}  // namespace deepinfer
