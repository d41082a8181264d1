// The tensors of one or more mapped files, found by name: the shared part of the readers.
// Filled by a reader during Open, then read-only on any thread. Views point into the files.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "deepinfer/status.h"
#include "tensor/tensor_file.h"
#include "tensor/tensor_view.h"

namespace deepinfer {

class TensorIndex {
 public:
  void AddFile(MappedFile file) { files_.push_back(std::move(file)); }
  void Add(TensorView view) { tensors_.push_back(std::move(view)); }
  // Builds the name table; an error names a tensor that occurs twice.
  Status Seal();

  const TensorView* Find(std::string_view name) const;
  const std::vector<TensorView>& tensors() const { return tensors_; }
  void Drop(const TensorView& view) const;  // and its scales
  bool Holds(const TensorView& view) const;
  void Prefetch(const TensorView& view) const;  // and its scales
  FilePlace PlaceOf(const std::byte* data) const;
  size_t file_bytes() const;

 private:
  std::vector<MappedFile> files_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys live in tensors_
};

// Half-open byte range of a tensor, for overlap checks.
struct TensorExtent {
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t tensor = 0;  // caller's index
};
// Sorts by begin; returns the first overlapping pair (earlier, later) of caller's indices, or
// nothing. Empty extents overlap nothing.
struct ExtentClash {
  size_t first = 0;
  size_t second = 0;
};
std::optional<ExtentClash> FindOverlap(std::vector<TensorExtent>* extents);

}  // namespace deepinfer
