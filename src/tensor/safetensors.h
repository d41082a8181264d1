// safetensors reader: one file, or a sharded model described by model.safetensors.index.json.
// Nothing is copied: views point into the mappings. Read-only after Open; any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "tensor/tensor_file.h"
#include "tensor/tensor_index.h"

namespace deepinfer {

class SafetensorsFile final : public TensorFile {
 public:
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The index of the directory if it has one, else its model.safetensors, else its only
  // .safetensors file.
  static Result<std::unique_ptr<SafetensorsFile>> OpenDirectory(const std::string& directory);
  // A whole file in memory that outlives the result; `name` is for messages.
  static Result<std::unique_ptr<SafetensorsFile>> Parse(std::span<const std::byte> bytes,
                                                        std::string_view name);

  const TensorView* Find(std::string_view name) const override { return index_.Find(name); }
  const std::vector<TensorView>& tensors() const override { return index_.tensors(); }
  void Drop(const TensorView& view) const override { index_.Drop(view); }
  bool Holds(const TensorView& view) const override { return index_.Holds(view); }
  FilePlace PlaceOf(const std::byte* data) const override { return index_.PlaceOf(data); }
  void Prefetch(const TensorView& view) const override { index_.Prefetch(view); }
  size_t file_bytes() const override { return index_.file_bytes(); }

 private:
  SafetensorsFile() = default;
  Status OpenSharded(const std::string& directory, const std::string& index_path);
  TensorIndex index_;
};

}  // namespace deepinfer
