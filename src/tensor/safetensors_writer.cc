#include "tensor/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

constexpr size_t kHeaderAlignment = 64;  // data begins on a cache line
constexpr size_t kNameBytesMax = 1024;
constexpr size_t kDimensionsMax = 8;
constexpr size_t kBufferBytes = size_t{1} << 20;

// "I8", "F8_E4M3": the types that the format knows and this project writes.
bool IsPlain(DType dtype) { return Info(dtype).block_elements == 1 && !HasScaleTensor(dtype); }

}  // namespace

struct SafetensorsWriter::Impl {
  struct Shard {
    size_t begin = 0, end = 0;  // entries
    uint64_t bytes = 0;
  };

  std::string directory;
  std::vector<SafetensorsEntry> entries;
  std::unordered_set<std::string> names;
  std::vector<Shard> shards;
  uint64_t data_bytes = 0;
  size_t entry = 0;      // being written
  uint64_t written = 0;  // of that entry
  size_t shard = 0;
  int fd = -1;
  std::vector<std::byte> buffer;
  bool finished = false;

  std::string FinalName(size_t index) const {
    return Format("model-{:05}-of-{:05}.safetensors", index + 1, shards.size());
  }
  std::string PathOf(const std::string& name) const { return directory + "/" + name; }
  std::string PartialPath(size_t index) const { return PathOf(FinalName(index)) + ".partial"; }

  Status Error(const char* what) const {
    return Unavailable(Format("{}: {} failed: {}", directory, what, std::strerror(errno)))
        .WithParam(directory);
  }

  Status WriteAll(const std::byte* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t done = ::write(fd, data, bytes);
      if (done < 0) {
        if (errno == EINTR) continue;
        return Error("write");
      }
      data += done;
      bytes -= static_cast<size_t>(done);
    }
    return {};
  }

  Status Flush() {
    DI_TRY(WriteAll(buffer.data(), buffer.size()));
    buffer.clear();
    return {};
  }

  Status Emit(std::span<const std::byte> bytes) {
    if (buffer.size() + bytes.size() > kBufferBytes) DI_TRY(Flush());
    if (bytes.size() > kBufferBytes) return WriteAll(bytes.data(), bytes.size());
    buffer.insert(buffer.end(), bytes.begin(), bytes.end());
    return {};
  }

  std::string Header(const Shard& planned) const {
    Json json = Json::Object();
    Json& metadata = json.Set("__metadata__", Json::Object());
    metadata.Set("format", Json::String("pt"));
    uint64_t offset = 0;
    for (size_t i = planned.begin; i < planned.end; ++i) {
      Json tensor = Json::Object();
      tensor.Set("dtype", Json::String(std::string(Info(entries[i].dtype).name)));
      Json& shape = tensor.Set("shape", Json::Array());
      for (const int64_t extent : entries[i].shape) shape.Push(Json::Int(extent));
      Json& range = tensor.Set("data_offsets", Json::Array());
      range.Push(Json::Int(static_cast<int64_t>(offset)));
      offset += entries[i].bytes;
      range.Push(Json::Int(static_cast<int64_t>(offset)));
      json.Set(entries[i].name, std::move(tensor));
    }
    std::string text = json.Dump();
    text.resize((text.size() + 8 + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment - 8,
                ' ');
    return text;
  }

  Status OpenShard() {
    fd = ::open(PartialPath(shard).c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) return Error("open");
    const std::string header = Header(shards[shard]);
    const uint64_t size = header.size();
    DI_TRY(Emit(std::as_bytes(std::span(&size, 1))));
    return Emit(std::as_bytes(std::span(header)));
  }

  Status CloseShard() {
    DI_TRY(Flush());
    if (::close(std::exchange(fd, -1)) != 0) return Error("close");
    ++shard;
    return {};
  }

  // Opens the next shard where one is due and passes over tensors and shards without bytes.
  Status Advance() {
    for (;;) {
      if (fd < 0) {
        if (shard == shards.size()) return {};
        DI_TRY(OpenShard());
      }
      while (entry < shards[shard].end && written == entries[entry].bytes) {
        ++entry;
        written = 0;
      }
      if (entry < shards[shard].end) return {};
      DI_TRY(CloseShard());
    }
  }

  Status WriteIndex() const {
    Json json = Json::Object();
    Json& metadata = json.Set("metadata", Json::Object());
    metadata.Set("total_size", Json::Int(static_cast<int64_t>(data_bytes)));
    Json& map = json.Set("weight_map", Json::Object());
    for (size_t s = 0; s < shards.size(); ++s) {
      for (size_t i = shards[s].begin; i < shards[s].end; ++i) {
        map.Set(entries[i].name, Json::String(FinalName(s)));
      }
    }
    const std::string text = json.Dump(1) + "\n";
    std::FILE* file = std::fopen(PathOf("model.safetensors.index.json").c_str(), "wb");
    if (file == nullptr) return Error("open");
    const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) != 0 || !whole) return Error("write");
    return {};
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SafetensorsWriter::~SafetensorsWriter() {
  Impl& impl = *impl_;
  if (impl.fd >= 0) ::close(impl.fd);
  if (impl.finished) return;
  for (size_t s = 0; s < impl.shards.size(); ++s) ::unlink(impl.PartialPath(s).c_str());
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!std::filesystem::is_directory(directory, error)) {
    return Invalid(Format("{}: cannot be made a directory", directory)).WithParam(directory);
  }
  for (const auto& file : std::filesystem::directory_iterator(directory, error)) {
    if (file.path().extension() != ".safetensors") continue;
    return Invalid(Format("{} exists already; choose another directory", file.path().string()))
        .WithParam(directory);
  }
  if (error) return Invalid(Format("{}: {}", directory, error.message())).WithParam(directory);
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  return std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter(std::move(impl)));
}

Status SafetensorsWriter::AddTensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  Impl& impl = *impl_;
  DI_CHECK(impl.shards.empty(), "AddTensor after Plan");
  if (name.empty() || name.size() > kNameBytesMax || name == "__metadata__") {
    return Invalid(
        Format("tensor name {:?}: 1 to {} bytes are allowed", name.substr(0, 64), kNameBytesMax));
  }
  if (!IsPlain(dtype)) {
    return Invalid(Format("tensor {}: safetensors has no type {}", name, Info(dtype).name));
  }
  if (shape.size() > kDimensionsMax) {
    return Invalid(Format("tensor {}: {} dimensions, at most {} are allowed", name, shape.size(),
                          kDimensionsMax));
  }
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) {
      return Invalid(Format("tensor {}: its shape is out of range", name));
    }
  }
  if (!impl.names.insert(name).second) return Invalid(Format("tensor {} is declared twice", name));
  DI_ASSIGN(const size_t bytes, ByteSize(dtype, elements));
  impl.data_bytes += bytes;
  impl.entries.push_back({std::move(name), dtype, std::move(shape), bytes, impl.entries.size()});
  return {};
}

Result<std::span<const SafetensorsEntry>> SafetensorsWriter::Plan(uint64_t shard_bytes_max) {
  Impl& impl = *impl_;
  DI_CHECK(impl.shards.empty(), "Plan is called twice");
  if (impl.entries.empty()) return Invalid("there is no tensor to write");
  for (size_t i = 0; i < impl.entries.size(); ++i) {
    const uint64_t bytes = impl.entries[i].bytes;
    if (impl.shards.empty() || impl.shards.back().bytes + bytes > shard_bytes_max) {
      impl.shards.push_back({i, i, 0});
    }
    impl.shards.back().end = i + 1;
    impl.shards.back().bytes += bytes;
  }
  for (const Impl::Shard& shard : impl.shards) {
    const auto first = impl.entries.begin();
    std::stable_sort(first + static_cast<ptrdiff_t>(shard.begin),
                     first + static_cast<ptrdiff_t>(shard.end),
                     [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                       return Info(a.dtype).block_bytes > Info(b.dtype).block_bytes;
                     });
  }
  DI_TRY(impl.Advance());
  return std::span<const SafetensorsEntry>(impl.entries);
}

Status SafetensorsWriter::WriteData(std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  DI_CHECK(impl.entry < impl.entries.size() && impl.fd >= 0, "no tensor is left to write");
  const SafetensorsEntry& entry = impl.entries[impl.entry];
  DI_CHECK(bytes.size() <= entry.bytes - impl.written, "tensor {}: {} + {} of {} bytes", entry.name,
           impl.written, bytes.size(), entry.bytes);
  DI_TRY(impl.Emit(bytes));
  impl.written += bytes.size();
  return impl.Advance();
}

Status SafetensorsWriter::Finish() {
  Impl& impl = *impl_;
  DI_CHECK(!impl.shards.empty() && impl.shard == impl.shards.size(), "{} of {} tensors written",
           impl.entry, impl.entries.size());
  for (size_t s = 0; s < impl.shards.size(); ++s) {
    const std::string path = impl.PathOf(impl.FinalName(s));
    if (std::rename(impl.PartialPath(s).c_str(), path.c_str()) != 0) return impl.Error("rename");
  }
  impl.finished = true;
  return impl.WriteIndex();
}

uint64_t SafetensorsWriter::data_bytes() const { return impl_->data_bytes; }

}  // namespace deepinfer
