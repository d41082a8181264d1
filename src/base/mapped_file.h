// A file mapped read-only into memory. Move-only; the bytes live as long as the object.
// Any thread may read. A file that is cut while it is mapped ends the process (SIGBUS), as with
// every mapping: checkpoints are replaced by rename, never rewritten in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "deepinfer/status.h"

namespace deepinfer {

class MappedFile {
 public:
  // Errors: kNotFound when absent, kDenied when not readable, kInvalid for what is no plain file.
  // An empty file gives an empty span.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // A descriptor of this very file for reads, which the caller closes. An error when another file
  // has taken its name.
  Result<int> OpenAgain() const;

  // Gives back the pages of [offset, offset + count), and neighbours that came with them. They are
  // mapped again when touched. Bytes outside the file are ignored.
  void Drop(size_t offset, size_t count) const;
  // Starts reading [offset, offset + count) ahead of use.
  void Prefetch(size_t offset, size_t count) const;

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;  // the file's identity
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace deepinfer
