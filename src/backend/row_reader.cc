#include "backend/row_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "base/logging.h"

namespace deepinfer {
namespace {

constexpr unsigned kInFlightMax = 256;

}  // namespace

RowReader::RowReader(const TensorView& view, size_t code_bytes, size_t scale_bytes)
    : view_(view), code_bytes_(code_bytes), scale_bytes_(scale_bytes) {}

RowReader::~RowReader() {
  if (codes_.fd >= 0) close(codes_.fd);
  if (scales_.fd >= 0) close(scales_.fd);
}

Result<std::unique_ptr<RowReader>> RowReader::Open(const TensorFile& file, const TensorView& view,
                                                   RowIo io) {
  const DTypeInfo& info = Info(view.dtype);
  const auto code_bytes =
      static_cast<size_t>(view.shape[1] / info.block_elements * info.block_bytes);
  const auto scale_bytes = static_cast<size_t>(view.scale == nullptr ? 0 : view.scale_cols);
  std::unique_ptr<RowReader> reader(new RowReader(view, code_bytes, scale_bytes));
  DI_TRY(reader->OpenSource(file, view.data, code_bytes, &reader->codes_));
  if (scale_bytes > 0) {
    DI_TRY(reader->OpenSource(file, view.scale, scale_bytes, &reader->scales_));
  }
  if (reader->in_memory() || io == RowIo::kPread) return reader;
  Result<std::unique_ptr<IoRing>> ring = IoRing::Create(kInFlightMax);
  if (ring.ok()) {
    reader->ring_ = std::move(ring).value();
  } else if (io == RowIo::kIoUring) {
    return Unavailable(Format("tensor {}: {}; allow io_uring here, or read its rows with pread",
                              view.name, ring.status().message()))
        .WithParam("engram_io");
  }
  return reader;
}

Status RowReader::OpenSource(const TensorFile& file, const std::byte* data, size_t bytes,
                             Source* source) {
  const FilePlace place = file.PlaceOf(data);
  source->bytes = bytes;
  if (place.file == nullptr) return {};
  source->offset = place.offset;
  DI_ASSIGN(source->fd, place.file->OpenAgain());
  // Neighbours of a row are no likelier to be asked for than others.
  posix_fadvise(source->fd, 0, 0, POSIX_FADV_RANDOM);
  return {};
}

std::string_view RowReader::io() const {
  if (in_memory()) return "memory";
  return ring_ != nullptr ? "io_uring" : "pread";
}

void RowReader::Copy(Row* row) const {
  const auto id = static_cast<size_t>(row->id);
  memcpy(row->to, view_.data + id * code_bytes_, code_bytes_);
  if (scale_bytes_ == 0) return;
  memcpy(row->to + code_bytes_, view_.scale + id * scale_bytes_, scale_bytes_);
}

void RowReader::ListReads(const Row& row, std::vector<FileRead>* reads) const {
  std::byte* to = row.to;
  for (const Source* source : {&codes_, &scales_}) {
    if (source->bytes == 0) continue;
    reads->push_back({.fd = source->fd,
                      .offset = source->offset + static_cast<uint64_t>(row.id) * source->bytes,
                      .to = to,
                      .bytes = static_cast<uint32_t>(source->bytes)});
    to += source->bytes;
  }
}

void RowReader::Report(const Row& row, const FileRead& read) const {
  if (reported_.exchange(true)) return;
  LogError("tensor {}: row {} of {} cannot be read: {}; requests that need such rows fail",
           view_.name, row.id, view_.shape[0], FileReadError(read));
}

void RowReader::Read(std::span<Row> rows) {
  if (in_memory()) {
    for (Row& row : rows) Copy(&row);
    return;
  }
  reads_.clear();
  for (const Row& row : rows) ListReads(row, &reads_);
  if (ring_ != nullptr) {
    ring_->Read(reads_);
  } else {
    // The device works on all of them while the first is waited for.
    for (const FileRead& read : reads_) {
      posix_fadvise(read.fd, static_cast<off_t>(read.offset), read.bytes, POSIX_FADV_WILLNEED);
    }
    ReadWithPread(reads_);
  }
  const size_t parts = reads_.size() / std::max<size_t>(rows.size(), 1);
  for (size_t i = 0; i < reads_.size(); ++i) {
    Row& row = rows[i / parts];
    if (i % parts == 0) row.failed = false;
    if (reads_[i].error == 0) continue;
    row.failed = true;
    Report(row, reads_[i]);
  }
}

void RowReader::ReadOne(Row* row) const {
  row->failed = false;
  if (in_memory()) return Copy(row);
  std::vector<FileRead> reads;
  ListReads(*row, &reads);
  ReadWithPread(reads);
  for (const FileRead& read : reads) {
    if (read.error == 0) continue;
    row->failed = true;
    Report(*row, read);
  }
}

}  // namespace deepinfer
