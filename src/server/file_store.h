// The files of /v1/files: contents and their descriptions in one directory, bounded in number,
// bytes and age, there again after a restart. Safe on any thread; methods touch the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

class FileStore {
 public:
  struct Limits {
    int64_t files_max = 0;
    int64_t bytes_max = 0;  // all files together
    int64_t ttl_s = 0;
  };
  using NowSeconds = int64_t (*)();  // Unix time

  // Reads what an earlier process left; a damaged description is logged and passed over, a content
  // without one was never acknowledged and is removed.
  static Result<std::unique_ptr<FileStore>> Open(const std::string& directory, const Limits& limits,
                                                 NowSeconds now);

  // A file object: {"id", "object": "file", "bytes", "created_at", "expires_at", "filename",
  // "purpose", "status"}. kExhausted names the limit that is full.
  Result<Json> Add(std::string_view filename, std::string_view purpose, std::string_view content);
  // Takes over a file that was written elsewhere in the same file system. Doing it again after a
  // crash in the middle ends what was begun.
  Status Adopt(const std::string& id, std::string_view filename, std::string_view purpose,
               const std::string& path);
  Result<Json> Get(std::string_view id);
  // `query`: limit, order, after, purpose.
  Result<Json> List(std::string_view query);
  Result<Json> Delete(std::string_view id);
  Result<std::string> Content(std::string_view id);

  // The path of a file that stays until it is let go as often as it was held.
  Result<std::string> Hold(std::string_view id);
  void LetGo(std::string_view id);

  // Removes what is too old.
  void Expire();
  int64_t bytes() const;

 private:
  struct Entry {
    Json object;
    int64_t bytes = 0;
    int64_t order = 0;  // of age
    int64_t expires_at = 0;
    int holds = 0;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  FileStore(std::string directory, const Limits& limits, NowSeconds now)
      : directory_(std::move(directory)), limits_(limits), now_(now) {}
  Status Load();
  std::string PathOf(const std::string& id) const;
  Json Describe(const std::string& id, std::string_view filename, std::string_view purpose,
                int64_t bytes) const;
  void Insert(const std::string& id, Json object);
  void Remove(Entries::iterator entry);
  void ExpireLocked();
  Result<Entries::iterator> Find(std::string_view id);

  const std::string directory_;
  const Limits limits_;
  const NowSeconds now_;
  mutable std::mutex mutex_;
  Entries entries_;
  int64_t bytes_ = 0;
  int64_t adding_ = 0;  // files, and bytes of them, that are being written
  int64_t adding_bytes_ = 0;
  int64_t next_order_ = 0;
};

}  // namespace deepinfer
