// The tensors of a checkpoint, whatever its format: a set of memory-mapped files.
// Every view is checked (range, shape, overflow, overlap) before the file is handed out.
// Views live as long as the TensorFile. Read-only after Open; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "deepinfer/status.h"
#include "tensor/tensor_view.h"

namespace deepinfer {

// Where bytes of a tensor are stored. Lives as long as the TensorFile.
struct FilePlace {
  const MappedFile* file = nullptr;  // nullptr: in memory alone
  size_t offset = 0;
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  // nullptr when absent. GGUF dimensions are reversed into [out, in] order.
  virtual const TensorView* Find(std::string_view name) const = 0;
  virtual const std::vector<TensorView>& tensors() const = 0;
  // Tells the kernel that the pages of `view` are not needed any more (madvise DONTNEED).
  virtual void Drop(const TensorView& view) const = 0;
  // True when the bytes of `view` are those of the files, as long as the TensorFile lives.
  virtual bool Holds(const TensorView&) const { return false; }
  virtual FilePlace PlaceOf(const std::byte*) const { return {}; }
  // Starts reading `view` ahead of use; a hint.
  virtual void Prefetch(const TensorView&) const {}
  // Total bytes of the files.
  virtual size_t file_bytes() const = 0;
};

}  // namespace deepinfer
