#include "tensor/tensor_index.h"

#include <algorithm>
#include <functional>

#include "base/format.h"

namespace deepinfer {

Status TensorIndex::Seal() {
  by_name_.clear();
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!by_name_.emplace(tensors_[i].name, i).second) {
      return Invalid(Format("tensor {} occurs twice", tensors_[i].name));
    }
  }
  return {};
}

const TensorView* TensorIndex::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

FilePlace TensorIndex::PlaceOf(const std::byte* data) const {
  // std::less orders pointers of different mappings.
  const std::less<const std::byte*> before;
  for (const MappedFile& file : files_) {
    const std::byte* begin = file.bytes().data();
    if (before(data, begin) || !before(data, begin + file.size())) continue;
    return {&file, static_cast<size_t>(data - begin)};
  }
  return {};
}

void TensorIndex::Drop(const TensorView& view) const {
  const FilePlace codes = PlaceOf(view.data);
  if (codes.file != nullptr) codes.file->Drop(codes.offset, view.bytes);
  if (view.scale == nullptr) return;
  const FilePlace scales = PlaceOf(view.scale);
  const auto bytes = static_cast<size_t>(view.scale_rows * view.scale_cols);
  if (scales.file != nullptr) scales.file->Drop(scales.offset, bytes);
}

bool TensorIndex::Holds(const TensorView& view) const {
  return PlaceOf(view.data).file != nullptr &&
         (view.scale == nullptr || PlaceOf(view.scale).file != nullptr);
}

void TensorIndex::Prefetch(const TensorView& view) const {
  const FilePlace codes = PlaceOf(view.data);
  if (codes.file != nullptr) codes.file->Prefetch(codes.offset, view.bytes);
  if (view.scale == nullptr) return;
  const FilePlace scales = PlaceOf(view.scale);
  const auto bytes = static_cast<size_t>(view.scale_rows * view.scale_cols);
  if (scales.file != nullptr) scales.file->Prefetch(scales.offset, bytes);
}

size_t TensorIndex::file_bytes() const {
  size_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.size();
  return bytes;
}

std::optional<ExtentClash> FindOverlap(std::vector<TensorExtent>* extents) {
  std::erase_if(*extents, [](const TensorExtent& e) { return e.begin == e.end; });
  std::sort(extents->begin(), extents->end(), [](const TensorExtent& a, const TensorExtent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.tensor < b.tensor;
  });
  for (size_t i = 1; i < extents->size(); ++i) {
    const TensorExtent& previous = (*extents)[i - 1];
    if (previous.end > (*extents)[i].begin) {
      return ExtentClash{previous.tensor, (*extents)[i].tensor};
    }
  }
  return std::nullopt;
}

}  // namespace deepinfer
