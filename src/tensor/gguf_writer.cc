#include "tensor/gguf_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr uint64_t kAlignment = 32;

uint64_t Padding(uint64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

void AppendRaw(std::string* out, const void* data, size_t bytes) {
  out->append(static_cast<const char*>(data), bytes);
}

template <typename T>
void Append(std::string* out, T value) {
  AppendRaw(out, &value, sizeof value);
}

void AppendText(std::string* out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  out->append(text);
}

}  // namespace

struct GgufWriter::Impl {
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    uint64_t bytes;
    uint64_t offset;
  };

  std::string path;
  std::string partial;
  int fd = -1;
  std::vector<std::pair<std::string, std::string>> metadata;  // key, encoded type and value
  std::vector<Tensor> tensors;
  uint64_t next_offset = 0;
  uint64_t data_bytes = 0;
  bool header_written = false;
  size_t tensor = 0;     // being written
  uint64_t written = 0;  // of that tensor
  std::string buffer;    // not yet handed to the kernel

  void SetEncoded(std::string_view key, std::string encoded) {
    for (auto& [known, value] : metadata) {
      if (known == key) {
        value = std::move(encoded);
        return;
      }
    }
    metadata.emplace_back(key, std::move(encoded));
  }

  Status Error(const char* what) const {
    return Unavailable(Format("{}: {} failed: {}", partial, what, std::strerror(errno)))
        .WithParam(path);
  }

  Status WriteAll(const char* data, size_t bytes) {
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

  // Small pieces are gathered so that block-sized writes do not become system calls.
  Status Emit(const void* data, size_t bytes) {
    constexpr size_t kBufferBytes = size_t{1} << 20;
    if (buffer.size() + bytes > kBufferBytes) DI_TRY(Flush());
    if (bytes > kBufferBytes) return WriteAll(static_cast<const char*>(data), bytes);
    AppendRaw(&buffer, data, bytes);
    return {};
  }

  Status Pad(uint64_t bytes) {
    constexpr char kZeros[kAlignment] = {};
    return Emit(kZeros, Padding(bytes));
  }
};

GgufWriter::GgufWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GgufWriter::~GgufWriter() {
  if (impl_->fd >= 0) {
    ::close(impl_->fd);
    ::unlink(impl_->partial.c_str());
  }
}

Result<std::unique_ptr<GgufWriter>> GgufWriter::Create(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->partial = path + ".partial";
  impl->fd = ::open(impl->partial.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (impl->fd < 0) {
    return Invalid(Format("{}: cannot be written: {}", impl->partial, std::strerror(errno)))
        .WithParam(path);
  }
  return std::unique_ptr<GgufWriter>(new GgufWriter(std::move(impl)));
}

void GgufWriter::SetU32(std::string_view key, uint32_t value) {
  std::string out;
  Append(&out, GgufType::kU32);
  Append(&out, value);
  impl_->SetEncoded(key, std::move(out));
}

void GgufWriter::SetF32(std::string_view key, float value) {
  std::string out;
  Append(&out, GgufType::kF32);
  Append(&out, value);
  impl_->SetEncoded(key, std::move(out));
}

void GgufWriter::SetBool(std::string_view key, bool value) {
  std::string out;
  Append(&out, GgufType::kBool);
  Append<uint8_t>(&out, value ? 1 : 0);
  impl_->SetEncoded(key, std::move(out));
}

void GgufWriter::SetString(std::string_view key, std::string_view value) {
  std::string out;
  Append(&out, GgufType::kString);
  AppendText(&out, value);
  impl_->SetEncoded(key, std::move(out));
}

void GgufWriter::SetStrings(std::string_view key, std::span<const std::string_view> values) {
  std::string out;
  Append(&out, GgufType::kArray);
  Append(&out, GgufType::kString);
  Append<uint64_t>(&out, values.size());
  for (const std::string_view value : values) AppendText(&out, value);
  impl_->SetEncoded(key, std::move(out));
}

void GgufWriter::SetI32s(std::string_view key, std::span<const int32_t> values) {
  std::string out;
  Append(&out, GgufType::kArray);
  Append(&out, GgufType::kI32);
  Append<uint64_t>(&out, values.size());
  AppendRaw(&out, values.data(), values.size_bytes());
  impl_->SetEncoded(key, std::move(out));
}

void GgufWriter::SetF32s(std::string_view key, std::span<const float> values) {
  std::string out;
  Append(&out, GgufType::kArray);
  Append(&out, GgufType::kF32);
  Append<uint64_t>(&out, values.size());
  AppendRaw(&out, values.data(), values.size_bytes());
  impl_->SetEncoded(key, std::move(out));
}

void GgufWriter::Set(std::string_view key, const GgufValue& value) {
  std::string out;
  Append(&out, value.type);
  if (value.type == GgufType::kArray) {
    Append(&out, value.element);
    Append(&out, value.count);
  } else if (value.type == GgufType::kString) {
    Append<uint64_t>(&out, value.raw.size());
  }
  AppendRaw(&out, value.raw.data(), value.raw.size());
  impl_->SetEncoded(key, std::move(out));
}

Status GgufWriter::AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape) {
  DI_CHECK(!impl_->header_written);
  constexpr size_t kNameBytesMax = 63;  // readers in the field keep names in 64 bytes
  if (name.empty() || name.size() > kNameBytesMax) {
    return Invalid(Format("tensor name \"{}\" has {} bytes; 1 to {} are allowed", name, name.size(),
                          kNameBytesMax));
  }
  if (shape.empty() || shape.size() > 4) {
    return Invalid(Format("tensor {}: {} dimensions; GGUF holds 1 to 4", name, shape.size()));
  }
  if (shape.back() % Info(dtype).block_elements != 0) {
    return Invalid(Format("tensor {}: rows of {} elements are not a multiple of a {} block", name,
                          shape.back(), Info(dtype).name));
  }
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  DI_ASSIGN(const size_t bytes, ByteSize(dtype, elements));
  impl_->tensors.push_back(
      {std::string(name), dtype, {shape.begin(), shape.end()}, bytes, impl_->next_offset});
  impl_->next_offset += bytes + Padding(bytes);
  impl_->data_bytes += bytes;
  return {};
}

Status GgufWriter::WriteHeader() {
  DI_CHECK(!impl_->header_written);
  std::string out = "GGUF";
  Append<uint32_t>(&out, 3);
  Append<uint64_t>(&out, impl_->tensors.size());
  Append<uint64_t>(&out, impl_->metadata.size());
  for (const auto& [key, encoded] : impl_->metadata) {
    AppendText(&out, key);
    out += encoded;
  }
  for (const Impl::Tensor& tensor : impl_->tensors) {
    AppendText(&out, tensor.name);
    Append<uint32_t>(&out, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d > 0; --d) {
      Append<uint64_t>(&out, static_cast<uint64_t>(tensor.shape[d - 1]));
    }
    Append<uint32_t>(&out, GgufTensorType(tensor.dtype));
    Append<uint64_t>(&out, tensor.offset);
  }
  impl_->header_written = true;
  DI_TRY(impl_->Emit(out.data(), out.size()));
  return impl_->Pad(out.size());
}

Status GgufWriter::WriteData(std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  DI_CHECK(impl.header_written && impl.tensor < impl.tensors.size());
  const Impl::Tensor& tensor = impl.tensors[impl.tensor];
  DI_CHECK(bytes.size() <= tensor.bytes - impl.written, "tensor {}: {} + {} of {} bytes",
           tensor.name, impl.written, bytes.size(), tensor.bytes);
  DI_TRY(impl.Emit(bytes.data(), bytes.size()));
  impl.written += bytes.size();
  if (impl.written == tensor.bytes) {
    DI_TRY(impl.Pad(tensor.bytes));
    ++impl.tensor;
    impl.written = 0;
  }
  return {};
}

Status GgufWriter::Finish() {
  Impl& impl = *impl_;
  DI_CHECK(impl.header_written && impl.tensor == impl.tensors.size(), "{} of {} tensors written",
           impl.tensor, impl.tensors.size());
  DI_TRY(impl.Flush());
  if (::fsync(impl.fd) != 0) return impl.Error("fsync");
  if (::close(std::exchange(impl.fd, -1)) != 0) return impl.Error("close");
  if (std::rename(impl.partial.c_str(), impl.path.c_str()) != 0) return impl.Error("rename");
  return {};
}

uint64_t GgufWriter::data_bytes() const { return impl_->data_bytes; }

}  // namespace deepinfer
