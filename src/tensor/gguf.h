// GGUF reader (version 3, and 2 whose layout is the same): metadata as typed values, tensors as
// checked views, split models (name-00001-of-0000N.gguf) as one file. Nothing is copied: values
// and views point into the mapping. Read-only after Open; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/status.h"
#include "tensor/tensor_file.h"
#include "tensor/tensor_index.h"

namespace deepinfer {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
std::string_view GgufTypeName(GgufType type);

// One metadata value as stored. raw: the value's bytes; of a string without its length; of an
// array the elements, of a string array each with its 8-byte length.
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array
  uint64_t count = 1;                // elements of an array
  std::span<const std::byte> raw;
};

class GgufMetadata {
 public:
  struct Entry {
    std::string_view key;
    GgufValue value;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  // nullptr when absent.
  const GgufValue* Find(std::string_view key) const;

  // Scalars: any integer type converts to int64 and any number to double. Absent gives `fallback`;
  // another kind is an error naming the key and both types.
  Result<int64_t> GetInt(std::string_view key, int64_t fallback) const;
  Result<double> GetDouble(std::string_view key, double fallback) const;
  Result<bool> GetBool(std::string_view key, bool fallback) const;
  Result<std::string_view> GetString(std::string_view key, std::string_view fallback) const;
  // Arrays; absent gives an empty vector. Numbers convert as above.
  Result<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  Result<std::vector<int32_t>> GetInts(std::string_view key) const;
  Result<std::vector<float>> GetFloats(std::string_view key) const;

 private:
  friend class GgufParser;
  std::vector<Entry> entries_;
};

class GgufFile final : public TensorFile {
 public:
  // Any part of a split model opens all its parts.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // A whole file in memory that outlives the result; `name` is for messages.
  static Result<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes,
                                                 std::string_view name);

  const GgufMetadata& metadata() const { return metadata_; }
  const TensorView* Find(std::string_view name) const override { return index_.Find(name); }
  const std::vector<TensorView>& tensors() const override { return index_.tensors(); }
  void Drop(const TensorView& view) const override { index_.Drop(view); }
  bool Holds(const TensorView& view) const override { return index_.Holds(view); }
  FilePlace PlaceOf(const std::byte* data) const override { return index_.PlaceOf(data); }
  void Prefetch(const TensorView& view) const override { index_.Prefetch(view); }
  size_t file_bytes() const override { return index_.file_bytes(); }

 private:
  GgufFile() = default;
  GgufMetadata metadata_;
  TensorIndex index_;
};

// GGUF's number of a tensor type.
uint32_t GgufTensorType(DType dtype);

// "model-00002-of-00005.gguf" -> {prefix "model", part 2, parts 5}; parts 0 when not such a name.
struct GgufSplitName {
  std::string prefix;
  int part = 0;
  int parts = 0;
};
GgufSplitName ParseGgufSplitName(std::string_view path);

}  // namespace deepinfer
