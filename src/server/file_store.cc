#include "server/file_store.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "api/call_options.h"
#include "api/list_page.h"
#include "base/format.h"
#include "base/logging.h"
#include "base/mapped_file.h"
#include "net/http_target.h"
#include "server/state_file.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr char kState[] = ".json";
constexpr int64_t kPageMax = 10'000;

int64_t IntOf(const Json& object, std::string_view key) {
  const Result<int64_t> value = object.GetInt(key, 0);
  return value.ok() ? *value : 0;
}

}  // namespace

Result<std::unique_ptr<FileStore>> FileStore::Open(const std::string& directory,
                                                   const Limits& limits, NowSeconds now) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Invalid(Format("cannot create {}: {}", directory, error.message()));
  std::unique_ptr<FileStore> store(new FileStore(directory, limits, now));
  DI_TRY(store->Load());
  store->Expire();
  return store;
}

Status FileStore::Load() {
  std::error_code error;
  std::vector<Json> found;
  std::vector<std::string> contents;
  for (const fs::directory_entry& file : fs::directory_iterator(directory_, error)) {
    const std::string name = file.path().filename().string();
    if (!name.starts_with("file-")) continue;
    if (!name.ends_with(kState)) {
      contents.push_back(name);
      continue;
    }
    Result<Json> object = ReadStateFile(file.path().string());
    const std::string id =
        object.ok() && object->Find("id") != nullptr ? object->Find("id")->string() : std::string();
    if (id + kState != name) {
      LogWarning("passing over {}: {}", file.path().string(), object.status().message());
    } else if (std::error_code gone; fs::exists(PathOf(id), gone)) {
      found.push_back(*std::move(object));
    }
  }
  if (error) return Invalid(Format("cannot read {}: {}", directory_, error.message()));
  for (const std::string& name : contents) {
    if (!fs::exists(PathOf(name) + kState, error)) fs::remove(PathOf(name), error);
  }
  std::stable_sort(found.begin(), found.end(), [](const Json& a, const Json& b) {
    return IntOf(a, "created_at") < IntOf(b, "created_at");
  });
  for (Json& object : found) {
    const std::string id = object.Find("id")->string();
    Insert(id, std::move(object));
  }
  return {};
}

std::string FileStore::PathOf(const std::string& id) const { return directory_ + "/" + id; }

Json FileStore::Describe(const std::string& id, std::string_view filename, std::string_view purpose,
                         int64_t bytes) const {
  const int64_t now = now_();
  Json object = Json::Object();
  object.Set("id", Json::String(id));
  object.Set("object", Json::String("file"));
  object.Set("bytes", Json::Int(bytes));
  object.Set("created_at", Json::Int(now));
  object.Set("expires_at", Json::Int(now + limits_.ttl_s));
  object.Set("filename", Json::String(std::string(filename)));
  object.Set("purpose", Json::String(std::string(purpose)));
  object.Set("status", Json::String("processed"));
  return object;
}

void FileStore::Insert(const std::string& id, Json object) {
  Entry& entry = entries_[id];
  bytes_ -= entry.bytes;
  entry.bytes = IntOf(object, "bytes");
  entry.expires_at = IntOf(object, "expires_at");
  entry.order = next_order_++;
  entry.object = std::move(object);
  bytes_ += entry.bytes;
}

void FileStore::Remove(Entries::iterator entry) {
  std::error_code error;
  // The description first: a content alone is removed by the next start.
  fs::remove(PathOf(entry->first) + kState, error);
  fs::remove(PathOf(entry->first), error);
  bytes_ -= entry->second.bytes;
  entries_.erase(entry);
}

void FileStore::ExpireLocked() {
  const int64_t now = now_();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->second.expires_at <= now && entry->second.holds == 0) Remove(entry);
    entry = next;
  }
}

void FileStore::Expire() {
  const std::lock_guard lock(mutex_);
  ExpireLocked();
}

Result<FileStore::Entries::iterator> FileStore::Find(std::string_view id) {
  ExpireLocked();
  const auto found = entries_.find(id);
  if (found != entries_.end()) return found;
  return NotFound(Format("no file {:?} is kept here: it may have expired or been deleted",
                         std::string(id.substr(0, 128))))
      .WithParam("file_id");
}

Result<Json> FileStore::Add(std::string_view filename, std::string_view purpose,
                            std::string_view content) {
  const auto bytes = static_cast<int64_t>(content.size());
  {
    const std::lock_guard lock(mutex_);
    ExpireLocked();
    if (static_cast<int64_t>(entries_.size()) + adding_ >= limits_.files_max) {
      return Exhausted(Format("{} files are kept and max_stored_files is {}; delete some",
                              entries_.size(), limits_.files_max));
    }
    if (bytes_ + adding_bytes_ + bytes > limits_.bytes_max) {
      return Exhausted(
          Format("the files have {} bytes, this one {}, and max_stored_file_bytes is "
                 "{}; delete some",
                 bytes_, bytes, limits_.bytes_max));
    }
    ++adding_;
    adding_bytes_ += bytes;
  }
  const std::string id = ResponseId("file", {});
  Json object = Describe(id, filename, purpose, bytes);
  Status status = WriteWholeFile(PathOf(id), content);
  if (status.ok()) status = WriteStateFile(PathOf(id) + kState, object);
  const std::lock_guard lock(mutex_);
  --adding_;
  adding_bytes_ -= bytes;
  DI_TRY(std::move(status));
  Insert(id, object);
  return object;
}

Status FileStore::Adopt(const std::string& id, std::string_view filename, std::string_view purpose,
                        const std::string& path) {
  std::error_code error;
  const bool moved = !fs::exists(path, error) && fs::exists(PathOf(id), error);
  const auto bytes = static_cast<int64_t>(fs::file_size(moved ? PathOf(id) : path, error));
  if (error) return Internal(Format("cannot look at {}: {}", path, error.message()));
  Json object = Describe(id, filename, purpose, bytes);
  // The description first, so that the content has one when a start finds it.
  DI_TRY(WriteStateFile(PathOf(id) + kState, object));
  if (!moved) fs::rename(path, PathOf(id), error);
  if (error) return Internal(Format("cannot move {}: {}", path, error.message()));
  const std::lock_guard lock(mutex_);
  Insert(id, std::move(object));
  return {};
}

Result<Json> FileStore::Get(std::string_view id) {
  const std::lock_guard lock(mutex_);
  DI_ASSIGN(const auto entry, Find(id));
  return entry->second.object;
}

Result<Json> FileStore::List(std::string_view query) {
  DI_ASSIGN(const ListPage page, ReadListPage(query, kPageMax));
  const std::optional<std::string> purpose = QueryValue(query, "purpose");
  const std::lock_guard lock(mutex_);
  ExpireLocked();
  std::vector<const Entry*> entries;
  for (const auto& [id, entry] : entries_) {
    if (!purpose.has_value() || entry.object.Find("purpose")->string() == *purpose) {
      entries.push_back(&entry);
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry* a, const Entry* b) { return a->order < b->order; });
  std::vector<const Json*> objects;
  for (const Entry* entry : entries) objects.push_back(&entry->object);
  return ListPageJson(std::move(objects), page);
}

Result<Json> FileStore::Delete(std::string_view id) {
  const std::lock_guard lock(mutex_);
  DI_ASSIGN(const auto entry, Find(id));
  if (entry->second.holds > 0) {
    return Invalid(Format("the file {:?} is the input of a batch that runs or waits: cancel that "
                          "first",
                          entry->first))
        .WithParam("file_id");
  }
  Json answer = Json::Object();
  answer.Set("id", Json::String(entry->first));
  answer.Set("object", Json::String("file"));
  answer.Set("deleted", Json::Bool(true));
  Remove(entry);
  return answer;
}

Result<std::string> FileStore::Content(std::string_view id) {
  DI_ASSIGN(const std::string path, Hold(id));
  const Result<MappedFile> file = MappedFile::Open(path);
  LetGo(id);
  DI_TRY(Status(file.status()));
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->size());
}

Result<std::string> FileStore::Hold(std::string_view id) {
  const std::lock_guard lock(mutex_);
  DI_ASSIGN(const auto entry, Find(id));
  ++entry->second.holds;
  return PathOf(entry->first);
}

void FileStore::LetGo(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry != entries_.end()) --entry->second.holds;
}

int64_t FileStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace deepinfer
