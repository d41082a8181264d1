// Writes a directory of safetensors shards with their index, front to back: every tensor is
// declared, Plan puts them in order, then each one's bytes follow in that order, streamed.
// One owner, one thread. Files get their names only in Finish.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/status.h"
#include "tensor/dtype.h"

namespace deepinfer {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first
  size_t bytes = 0;
  size_t source = 0;  // number of the AddTensor call
};

class SafetensorsWriter {
 public:
  // Makes the directory when it is missing; refuses one that holds safetensors files already.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(const std::string& directory);
  // Removes partial files when Finish was not reached.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  Status AddTensor(std::string name, DType dtype, std::vector<int64_t> shape);
  // Fills shards in declared order up to `shard_bytes_max` (one larger tensor has its own shard);
  // inside a shard wider elements come first, so that every tensor is aligned to its element.
  // Returns the order in which the data must follow.
  Result<std::span<const SafetensorsEntry>> Plan(uint64_t shard_bytes_max);
  // The next bytes in planned order; one call may not cross a tensor's end.
  Status WriteData(std::span<const std::byte> bytes);
  // Fails when data is missing; renames the shards and writes model.safetensors.index.json.
  Status Finish();

  uint64_t data_bytes() const;  // of all declared tensors

 private:
  struct Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
