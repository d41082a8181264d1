#include "models/hub_download.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "base/format.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)), error_(errno) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }
  int error() const { return error_; }

 private:
  int fd_;
  int error_;
};

Status FileError(const std::string& path, const char* what, int error) {
  return Internal(Format("{}: {} failed: {}", path, what, std::strerror(error))).WithParam(path);
}

uint64_t SizeOf(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

struct DigestContext {
  DigestContext() : context(EVP_MD_CTX_new()) {}
  ~DigestContext() { EVP_MD_CTX_free(context); }
  DigestContext(const DigestContext&) = delete;
  DigestContext& operator=(const DigestContext&) = delete;
  EVP_MD_CTX* context;
};

Status CheckComplete(const FileDownload& download, const std::string& partial) {
  const uint64_t size = SizeOf(partial);
  if (download.bytes != 0 && size != download.bytes) {
    return Invalid(
        Format("{}: {} bytes arrived, {} are expected", download.shown, size, download.bytes));
  }
  if (download.digest.kind == FileDigest::Kind::kNone) return {};
  DI_ASSIGN(const std::string digest, DigestOfFile(download.digest.kind, partial));
  if (digest != download.digest.hex) {
    return Invalid(Format("{}: the checksum is {}, expected {}; the file was removed, pull again",
                          download.shown, digest, download.digest.hex));
  }
  return {};
}

// Appends to the partial file from where it ends.
class Transfer {
 public:
  Transfer(const FileDownload& download, const PullProgress& progress, const std::string& partial)
      : download_(download), progress_(progress), partial_(partial) {}

  Status Run(HttpClient* client) {
    HttpClientRequest request;
    request.url = download_.url;
    if (!download_.token.empty()) request.headers.Add("Authorization", "Bearer " + download_.token);
    const uint64_t have = SizeOf(partial_);
    request.range_begin = static_cast<int64_t>(have);
    OpenFile file(partial_, O_CREAT | O_WRONLY);
    if (file.fd() < 0) return FileError(partial_, "open", file.error());
    fd_ = file.fd();
    HttpBodySink sink;
    sink.on_head = [this](const HttpClientResponse& head) { return Begin(head); };
    sink.on_piece = [this](std::string_view piece) { return Write(piece); };
    DI_ASSIGN(const HttpClientResponse response, client->Stream(request, sink));
    if (response.status == 416 && have > 0) {  // the partial file is longer than the resource
      if (::ftruncate(fd_, 0) != 0) return FileError(partial_, "truncate", errno);
      return Unavailable(
          Format("{}: the server refused to continue at byte {}", download_.shown, have));
    }
    if (response.status < 200 || response.status > 299) return StatusError(response.status);
    if (::fsync(fd_) != 0) return FileError(partial_, "fsync", errno);
    return {};
  }

 private:
  // Only what may pass by itself is worth another attempt (kUnavailable).
  Status StatusError(int status) const {
    const std::string text =
        Format("{}: {} answered with status {}", download_.shown, download_.url, status);
    if (status == 401 || status == 403) {
      return Status(StatusCode::kDenied, text + "; set HF_TOKEN to a token that may read it");
    }
    if (status == 404) return NotFound(text);
    if (status == 429 || status >= 500) return Unavailable(text);
    return Invalid(text);
  }

  Status Begin(const HttpClientResponse& head) {
    done_ = static_cast<uint64_t>(std::max<int64_t>(head.body_offset, 0));
    total_ = download_.bytes;
    if (total_ == 0 && head.content_length >= 0) {
      total_ = done_ + static_cast<uint64_t>(head.content_length);
    }
    if (::ftruncate(fd_, static_cast<off_t>(done_)) != 0) {
      return FileError(partial_, "truncate", errno);
    }
    if (::lseek(fd_, static_cast<off_t>(done_), SEEK_SET) < 0) {
      return FileError(partial_, "seek", errno);
    }
    Report();
    return {};
  }

  Status Write(std::string_view piece) {
    if (download_.bytes != 0 && piece.size() > download_.bytes - std::min(done_, download_.bytes)) {
      return Invalid(Format("{}: the server sends more than the {} bytes expected", download_.shown,
                            download_.bytes));
    }
    while (!piece.empty()) {
      const ssize_t written = ::write(fd_, piece.data(), piece.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        return FileError(partial_, "write", errno);
      }
      piece.remove_prefix(static_cast<size_t>(written));
      done_ += static_cast<uint64_t>(written);
    }
    Report();
    return {};
  }

  void Report() const {
    if (progress_.report != nullptr) {
      progress_.report(progress_.context, download_.shown, done_, total_);
    }
  }

  const FileDownload& download_;
  const PullProgress& progress_;
  const std::string& partial_;
  int fd_ = -1;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

Result<std::string> DigestOfFile(FileDigest::Kind kind, const std::string& path) {
  OpenFile file(path, O_RDONLY);
  if (file.fd() < 0) return FileError(path, "open", file.error());
  const DigestContext digest;
  const EVP_MD* algorithm = kind == FileDigest::Kind::kGitBlob ? EVP_sha1() : EVP_sha256();
  if (EVP_DigestInit_ex(digest.context, algorithm, nullptr) != 1) {
    return Internal("the checksum algorithm is not available");
  }
  if (kind == FileDigest::Kind::kGitBlob) {
    const std::string header = Format("blob {}", SizeOf(path));
    EVP_DigestUpdate(digest.context, header.c_str(), header.size() + 1);  // with its final NUL
  }
  std::vector<char> buffer(size_t{1} << 20);
  while (true) {
    const ssize_t got = ::read(file.fd(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path, "read", errno);
    if (got == 0) break;
    EVP_DigestUpdate(digest.context, buffer.data(), static_cast<size_t>(got));
  }
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int count = 0;
  EVP_DigestFinal_ex(digest.context, bytes, &count);
  std::string hex;
  for (unsigned int i = 0; i < count; ++i) hex += Format("{:02x}", bytes[i]);
  return hex;
}

Status DownloadFile(const HubOptions& options, const FileDownload& download,
                    const PullProgress& progress) {
  const std::string partial = download.path + ".partial";
  HttpClient client(options.http);
  Status status;
  bool complete = download.bytes != 0 && SizeOf(partial) == download.bytes;
  for (int attempt = 0; !complete && attempt < std::max(options.attempts_max, 1); ++attempt) {
    if (attempt > 0) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(options.retry_wait_ms << std::min(attempt - 1, 5)));
    }
    status = Transfer(download, progress, partial).Run(&client);
    complete = status.ok();
    if (!complete && status.code() != StatusCode::kUnavailable &&
        status.code() != StatusCode::kDeadline) {
      return status;
    }
  }
  if (!complete) return status;
  if (Status checked = CheckComplete(download, partial); !checked.ok()) {
    ::unlink(partial.c_str());
    return checked;
  }
  if (std::rename(partial.c_str(), download.path.c_str()) != 0) {
    return FileError(partial, "rename", errno);
  }
  return {};
}

}  // namespace deepinfer
