#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/format.h"

namespace deepinfer {
namespace {

Status FileError(const std::string& path, const char* action, int error) {
  const std::string message = Format("cannot {} {}: {}", action, path, std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return NotFound(message);
    case EACCES:
    case EPERM:
      return {StatusCode::kDenied, message};
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Exhausted(message);
    default:
      return Invalid(message);
  }
}

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// O_NONBLOCK: opening a named pipe must not wait for a writer.
Result<int> OpenPlain(const std::string& path, struct stat* info) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(path, "open", errno);
  if (fstat(fd, info) != 0) {
    const int error = errno;
    close(fd);
    return FileError(path, "inspect", error);
  }
  if (!S_ISREG(info->st_mode)) {
    close(fd);
    return Invalid(Format("{} is not a plain file", path));
  }
  return fd;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  struct stat info = {};
  DI_ASSIGN(const int fd, OpenPlain(path, &info));
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  file.device_ = info.st_dev;
  file.inode_ = info.st_ino;
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return FileError(path, "map", error);
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  close(fd);
  return file;
}

Result<int> MappedFile::OpenAgain() const {
  struct stat info = {};
  DI_ASSIGN(const int fd, OpenPlain(path_, &info));
  if (info.st_dev == device_ && info.st_ino == inode_) return fd;
  close(fd);
  return Unavailable(Format("{} was replaced since it was opened; start again", path_))
      .WithParam(path_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Drop(size_t offset, size_t count) const {
  if (offset >= size_) return;
  // The kernel maps pages of the file in windows of this size, aligned in memory.
  constexpr uintptr_t kWindow = uintptr_t{64} << 10;
  const auto base = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t end = base + offset + std::min(count, size_ - offset);
  const uintptr_t first = std::max(base, (base + offset) / kWindow * kWindow);
  const uintptr_t last = std::min((end + kWindow - 1) / kWindow * kWindow,
                                  base + (size_ + PageBytes() - 1) / PageBytes() * PageBytes());
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void MappedFile::Prefetch(size_t offset, size_t count) const {
  if (offset >= size_) return;
  const size_t page = PageBytes();
  const size_t first = offset / page * page;
  const size_t end = offset + std::min(count, size_ - offset);
  madvise(const_cast<std::byte*>(data_) + first, end - first, MADV_WILLNEED);
}

}  // namespace deepinfer
