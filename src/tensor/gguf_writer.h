// Writes a GGUF v3 file front to back: metadata, tensor descriptions, then each tensor's bytes in
// the order declared, streamed. The file appears under its name only when Finish succeeds.
// One owner, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "tensor/gguf.h"

namespace deepinfer {

class GgufWriter {
 public:
  // Writes `path`.partial until Finish.
  static Result<std::unique_ptr<GgufWriter>> Create(const std::string& path);
  // Removes the partial file when Finish was not reached.
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // Metadata; a key set twice keeps its place and takes the later value.
  void SetU32(std::string_view key, uint32_t value);
  void SetF32(std::string_view key, float value);
  void SetBool(std::string_view key, bool value);
  void SetString(std::string_view key, std::string_view value);
  void SetStrings(std::string_view key, std::span<const std::string_view> values);
  void SetI32s(std::string_view key, std::span<const int32_t> values);
  void SetF32s(std::string_view key, std::span<const float> values);
  // A value of another file, as it is.
  void Set(std::string_view key, const GgufValue& value);

  // Declares a tensor; shape outermost first as in TensorView.
  Status AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape);
  // Writes everything before the data. No metadata or tensor may be added after it.
  Status WriteHeader();
  // The next bytes of the tensors in declared order; one call may not cross a tensor's end.
  Status WriteData(std::span<const std::byte> bytes);
  // Fails when data is missing; syncs and renames.
  Status Finish();

  uint64_t data_bytes() const;  // of all declared tensors, without padding

 private:
  struct Impl;
  explicit GgufWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
