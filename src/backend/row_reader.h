// Fetches the stored rows (codes, then scales) of a table by id, many at once: from its file with
// io_uring or pread, or from memory when the table is in no file. Reads, other than pages of a
// mapping, turn a file that is cut or a disk that fails into an error. Owned by a RowTable.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/row_table.h"
#include "base/io_ring.h"
#include "deepinfer/status.h"
#include "tensor/tensor_file.h"

namespace deepinfer {

class RowReader {
 public:
  struct Row {
    int64_t id = 0;           // in range
    std::byte* to = nullptr;  // row_bytes()
    bool failed = false;      // afterwards
  };

  // `file` and `view` outlive it. Errors: the file was replaced; io_uring was demanded and is not
  // to be had.
  static Result<std::unique_ptr<RowReader>> Open(const TensorFile& file, const TensorView& view,
                                                 RowIo io);
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  size_t code_bytes() const { return code_bytes_; }
  size_t row_bytes() const { return code_bytes_ + scale_bytes_; }
  std::string_view io() const;  // "io_uring", "pread", "memory"

  // Returns when all are there or failed; the log names the first failure. One thread at a time.
  void Read(std::span<Row> rows);
  // The same for one row, on another thread.
  void ReadOne(Row* row) const;

 private:
  struct Source {
    int fd = -1;
    uint64_t offset = 0;  // of row 0
    size_t bytes = 0;     // of a row; 0: no such part
  };

  RowReader(const TensorView& view, size_t code_bytes, size_t scale_bytes);
  Status OpenSource(const TensorFile& file, const std::byte* data, size_t bytes, Source* source);
  bool in_memory() const { return codes_.fd < 0; }
  void Copy(Row* row) const;
  void ListReads(const Row& row, std::vector<FileRead>* reads) const;
  void Report(const Row& row, const FileRead& read) const;

  const TensorView& view_;
  const size_t code_bytes_, scale_bytes_;
  Source codes_, scales_;
  std::unique_ptr<IoRing> ring_;  // nullptr: pread
  std::vector<FileRead> reads_;
  mutable std::atomic<bool> reported_{false};
};

}  // namespace deepinfer
