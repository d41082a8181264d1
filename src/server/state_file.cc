#include "server/state_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/format.h"
#include "base/hash.h"
#include "base/mapped_file.h"

namespace deepinfer {
namespace {

constexpr size_t kHashDigits = 32;

std::string HashOf(std::string_view text) { return HexOf(HashBytes128(text.data(), text.size())); }

Status Errno(const char* what, const std::string& path) {
  const std::string message = Format("cannot {} {}: {}", what, path, std::strerror(errno));
  return errno == ENOSPC || errno == EDQUOT ? Exhausted(message) : Internal(message);
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return ::fsync(fd) == 0 ? Status() : Errno("sync", path);
}

// So that a rename within it survives a loss of power.
void SyncFolder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

}  // namespace

Status WriteWholeFile(const std::string& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return Errno("create", path);
  Status status = WriteAll(fd, bytes, path);
  if (::close(fd) != 0 && status.ok()) status = Errno("close", path);
  if (!status.ok()) (void)::unlink(path.c_str());
  return status;
}

Status WriteStateFile(const std::string& path, const Json& value) {
  const std::string text = value.Dump();
  const std::string next = path + ".new";
  DI_TRY(WriteWholeFile(next, HashOf(text) + " " + text + "\n"));
  if (::rename(next.c_str(), path.c_str()) != 0) return Errno("replace", path);
  SyncFolder(path);
  return {};
}

Result<Json> ReadStateFile(const std::string& path) {
  DI_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  if (all.size() < kHashDigits + 2 || all[kHashDigits] != ' ' || all.back() != '\n') {
    return Invalid(Format("{} is no state file, or cut", path));
  }
  const std::string_view text = all.substr(kHashDigits + 1, all.size() - kHashDigits - 2);
  if (HashOf(text) != all.substr(0, kHashDigits)) {
    return Invalid(Format("{} is damaged: its checksum is another", path));
  }
  return Json::Parse(text);
}

}  // namespace deepinfer
