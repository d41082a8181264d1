#include "server/batch_service.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "api/batch.h"
#include "api/call_options.h"
#include "api/json_fields.h"
#include "api/list_page.h"
#include "base/format.h"
#include "base/logging.h"
#include "server/state_file.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr char kState[] = ".json";
constexpr char kOutput[] = ".output";
constexpr char kErrors[] = ".errors";
constexpr std::string_view kIdPrefix = "batch_";
constexpr size_t kMetadataMax = 16;
constexpr size_t kMetadataBytesMax = 512;
constexpr int64_t kWindowHoursMax = 168;
constexpr auto kExpiryPeriod = std::chrono::seconds(30);

// As in OpenAI's object: all are there from the start.
constexpr const char* kTimes[] = {"in_progress_at", "finalizing_at", "completed_at", "failed_at",
                                  "expired_at",     "cancelling_at", "cancelled_at"};

bool IsOver(std::string_view status) {
  return status == "completed" || status == "failed" || status == "expired" ||
         status == "cancelled";
}

const std::string& StatusOf(const Json& object) { return object.Find("status")->string(); }

// "24h" in seconds.
Result<int64_t> WindowSeconds(const Json& body) {
  std::string text = "24h";
  DI_TRY(ReadString(body, "completion_window", 16, &text));
  int64_t hours = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, hours);
  if (read.ec != std::errc() ||
      std::string_view(read.ptr, static_cast<size_t>(end - read.ptr)) != "h" || hours < 1 ||
      hours > kWindowHoursMax) {
    return WrongKind("completion_window",
                     Format("hours as \"24h\", allowed are 1h..{}h", kWindowHoursMax));
  }
  return hours * 3600;
}

Result<Json> ReadMetadata(const Json& body) {
  const Json* metadata = FindField(body, "metadata");
  if (metadata == nullptr) return Json();
  bool good = metadata->is_object() && metadata->members().size() <= kMetadataMax;
  for (const auto& [key, value] : metadata->members()) {
    good = good && value.is_string() && key.size() + value.string().size() <= kMetadataBytesMax;
  }
  if (good) return *metadata;
  return WrongKind("metadata", Format("an object of at most {} texts of at most {} bytes",
                                      kMetadataMax, kMetadataBytesMax));
}

void SetCounts(Json* object, const BatchCounts& counts) {
  Json& out = object->Set("request_counts", Json::Object());
  out.Set("total", Json::Int(counts.total));
  out.Set("completed", Json::Int(counts.completed));
  out.Set("failed", Json::Int(counts.failed));
}

BatchCounts CountsOf(const Json& object) {
  BatchCounts counts;
  const Json* from = object.Find("request_counts");
  const std::pair<const char*, int64_t*> fields[] = {
      {"total", &counts.total}, {"completed", &counts.completed}, {"failed", &counts.failed}};
  for (const auto& [key, to] : fields) {
    const Result<int64_t> value = from->GetInt(key, 0);
    if (value.ok()) *to = *value;
  }
  return counts;
}

}  // namespace

Result<std::unique_ptr<BatchService>> BatchService::Open(const Options& options) {
  std::unique_ptr<BatchService> service(new BatchService(options));
  DI_ASSIGN(service->files_,
            FileStore::Open(options.directory + "/files", options.files, options.now));
  DI_TRY(service->Load());
  return service;
}

BatchService::~BatchService() { Stop(); }

Status BatchService::Load() {
  const std::string directory = options_.directory + "/batches";
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Invalid(Format("cannot create {}: {}", directory, error.message()));
  std::vector<Json> found;
  for (const fs::directory_entry& file : fs::directory_iterator(directory, error)) {
    const std::string name = file.path().filename().string();
    if (!name.starts_with(kIdPrefix) || !name.ends_with(kState)) continue;
    Result<Json> object = ReadStateFile(file.path().string());
    const Json* id = object.ok() ? object->Find("id") : nullptr;
    if (id == nullptr || id->string() + kState != name) {
      LogWarning("passing over {}: {}", file.path().string(), object.status().message());
      continue;
    }
    found.push_back(*std::move(object));
  }
  if (error) return Invalid(Format("cannot read {}: {}", directory, error.message()));
  const auto created = [](const Json& object) {
    const Result<int64_t> at = object.GetInt("created_at", 0);
    return at.ok() ? *at : 0;
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const Json& a, const Json& b) { return created(a) < created(b); });
  for (Json& object : found) {
    Entry entry{.object = {}, .created_at = created(object), .order = next_order_++};
    entry.over = IsOver(StatusOf(object));
    // Its input must stay; when it is gone already, running it says so.
    if (!entry.over) (void)files_->Hold(object.Find("input_file_id")->string()).ok();
    const std::string id = object.Find("id")->string();
    entry.object = std::move(object);
    entries_.emplace(id, std::move(entry));
  }
  return {};
}

std::string BatchService::PathOf(const std::string& id, const char* suffix) const {
  return Format("{}/batches/{}{}", options_.directory, id, suffix);
}

void BatchService::Start(const ServedModel& served, TaskPool* prep) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  served_ = &served;
  prep_ = prep;
  thread_ = std::thread([this] { Loop(); });
}

void BatchService::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (running_ != nullptr) running_->Stop(BatchStop::kPause);
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<BatchService::Entry*> BatchService::Find(std::string_view id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) return &found->second;
  return NotFound(Format("no batch {:?} is kept here", std::string(id.substr(0, 128))))
      .WithParam("batch_id");
}

// Under the lock.
Status BatchService::MakeRoom() {
  if (static_cast<int64_t>(entries_.size()) < options_.batches_max) return {};
  auto oldest = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!entry->second.over) continue;
    if (oldest == entries_.end() || entry->second.order < oldest->second.order) oldest = entry;
  }
  if (oldest == entries_.end()) {
    return Exhausted(Format("{} batches wait or run and max_batches is {}; try again later",
                            entries_.size(), options_.batches_max));
  }
  std::error_code error;
  fs::remove(PathOf(oldest->first, kState), error);
  entries_.erase(oldest);
  return {};
}

// Under the lock.
Status BatchService::Save(const std::string& id) {
  return WriteStateFile(PathOf(id, kState), entries_.at(id).object);
}

// Under the lock.
void BatchService::SetStatus(const std::string& id, const char* status, const char* when) {
  Entry& entry = entries_.at(id);
  entry.object.Set("status", Json::String(status));
  if (when != nullptr) entry.object.Set(when, Json::Int(options_.now()));
  if (!entry.over && IsOver(status)) {
    entry.over = true;
    files_->LetGo(entry.object.Find("input_file_id")->string());
  }
  if (const Status saved = Save(id); !saved.ok()) {
    LogError("batch {} is {}, which could not be written down: {}", id, status, saved.message());
  }
}

Result<Json> BatchService::Create(const Json& body) {
  if (!body.is_object()) return Invalid("the request body must be a JSON object");
  std::string input, endpoint;
  DI_TRY(ReadString(body, "input_file_id", 256, &input));
  if (input.empty()) return WrongKind("input_file_id", "the id of a file");
  DI_TRY(ReadString(body, "endpoint", 256, &endpoint));
  if (FindBatchEndpoint(endpoint) == nullptr) {
    return Invalid(Format("\"endpoint\" is {:?}, allowed are {}", endpoint, BatchEndpoints()))
        .WithParam("endpoint");
  }
  DI_ASSIGN(const int64_t seconds, WindowSeconds(body));
  DI_ASSIGN(const Json metadata, ReadMetadata(body));
  DI_ASSIGN(const Json file, files_->Get(input));
  if (file.Find("purpose")->string() != "batch") {
    return Invalid(Format("the file {:?} was uploaded for {:?}, a batch needs \"batch\"", input,
                          file.Find("purpose")->string()))
        .WithParam("input_file_id");
  }
  const std::string id = ResponseId(kIdPrefix.substr(0, 5), {}, '_');
  const int64_t now = options_.now();
  Json object = Json::Object();
  object.Set("id", Json::String(id));
  object.Set("object", Json::String("batch"));
  object.Set("endpoint", Json::String(endpoint));
  object.Set("errors", Json());
  object.Set("input_file_id", Json::String(input));
  object.Set("completion_window", Json::String(Format("{}h", seconds / 3600)));
  object.Set("status", Json::String("validating"));
  object.Set("output_file_id", Json());
  object.Set("error_file_id", Json());
  object.Set("created_at", Json::Int(now));
  object.Set("expires_at", Json::Int(now + seconds));
  for (const char* time : kTimes) object.Set(time, Json());
  SetCounts(&object, {});
  object.Set("metadata", metadata);

  const std::lock_guard lock(mutex_);
  if (stopping_) return Unavailable("the server is shutting down");
  DI_TRY(MakeRoom());
  DI_TRY(files_->Hold(input).status());
  Entry entry{.object = object, .created_at = now, .order = next_order_++};
  entries_.emplace(id, std::move(entry));
  if (Status saved = Save(id); !saved.ok()) {
    files_->LetGo(input);
    entries_.erase(id);
    return saved;
  }
  changed_.notify_all();
  return object;
}

Result<Json> BatchService::Get(std::string_view id) {
  const std::lock_guard lock(mutex_);
  DI_ASSIGN(const Entry* entry, Find(id));
  return entry->object;
}

Result<Json> BatchService::List(std::string_view query) {
  DI_ASSIGN(const ListPage page, ReadListPage(query));
  const std::lock_guard lock(mutex_);
  std::vector<const Entry*> entries;
  for (const auto& [id, entry] : entries_) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(),
            [](const Entry* a, const Entry* b) { return a->order < b->order; });
  std::vector<const Json*> objects;
  for (const Entry* entry : entries) objects.push_back(&entry->object);
  return ListPageJson(std::move(objects), page);
}

Result<Json> BatchService::Cancel(std::string_view id) {
  const std::lock_guard lock(mutex_);
  DI_ASSIGN(const Entry* entry, Find(id));
  const std::string status = StatusOf(entry->object);
  if (entry->over || status == "finalizing") {
    return Invalid(Format("the batch {:?} is {}: there is nothing to cancel",
                          std::string(id.substr(0, 128)), status))
        .WithParam("batch_id");
  }
  const std::string name(id);
  if (status != "cancelling") SetStatus(name, "cancelling", "cancelling_at");
  if (running_id_ == name) {
    if (running_ != nullptr) running_->Stop(BatchStop::kCancel);
  } else if (status == "validating") {
    SetStatus(name, "cancelled", "cancelled_at");  // nothing of it ever ran
  }
  changed_.notify_all();
  return entry->object;
}

// Under the lock: the oldest that is not over.
BatchService::Entries::iterator BatchService::NextToRun() {
  auto next = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->second.over) continue;
    if (next == entries_.end() || entry->second.order < next->second.order) next = entry;
  }
  return next;
}

void BatchService::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto next = NextToRun();
    if (next == entries_.end()) {
      changed_.wait_for(lock, kExpiryPeriod);
      files_->Expire();
      continue;
    }
    running_id_ = next->first;
    const std::string id = running_id_;
    lock.unlock();
    RunOne(id);
    lock.lock();
    running_id_.clear();
  }
}

void BatchService::RunOne(const std::string& id) {
  std::string input_id;
  std::optional<BatchCounts> counted;  // it ran, and its results were being made files
  BatchStop stopped = BatchStop::kNone;
  {
    const std::lock_guard lock(mutex_);
    const Json& object = entries_.at(id).object;
    if (StatusOf(object) == "validating") SetStatus(id, "in_progress", "in_progress_at");
    if (StatusOf(object) == "cancelling") stopped = BatchStop::kCancel;
    if (!object.Find("finalizing_at")->is_null()) counted = CountsOf(object);
    input_id = object.Find("input_file_id")->string();
  }
  if (counted.has_value()) {
    FinishOne(id, *counted, stopped);
    return;
  }
  const Result<std::string> input = files_->Hold(input_id);
  if (!input.ok()) {
    Fail(id, input.status());
    return;
  }
  const Result<BatchCounts> counts = RunJob(id, *input, &stopped);
  files_->LetGo(input_id);
  if (stopped != BatchStop::kPause) FinishOne(id, counts, stopped);
}

Result<BatchCounts> BatchService::RunJob(const std::string& id, const std::string& input,
                                         BatchStop* stopped) {
  BatchJobOptions options;
  options.input = input;
  options.output = PathOf(id, kOutput);
  options.errors = PathOf(id, kErrors);
  options.existing = BatchJobOptions::Existing::kResume;
  options.id = id.substr(kIdPrefix.size());
  options.window = options_.window > 0 ? options_.window
                                       : std::max(1, served_->engine->limits().max_num_seqs / 2);
  options.lines_max = options_.lines_max;
  options.prep = prep_;
  options.counters = &counters_;
  options.progress = [this, id](const BatchCounts& counts) { OnProgress(id, counts); };
  {
    const std::lock_guard lock(mutex_);
    options.endpoint = entries_.at(id).object.Find("endpoint")->string();
  }
  BatchJob job(std::move(options), *served_);
  {
    const std::lock_guard lock(mutex_);
    running_ = &job;
    if (StatusOf(entries_.at(id).object) == "cancelling") job.Stop(BatchStop::kCancel);
    if (stopping_) job.Stop(BatchStop::kPause);
  }
  Result<BatchCounts> counts = job.Run();
  const std::lock_guard lock(mutex_);
  running_ = nullptr;
  *stopped = job.stopped();
  return counts;
}

void BatchService::OnProgress(const std::string& id, const BatchCounts& counts) {
  const std::lock_guard lock(mutex_);
  Json& object = entries_.at(id).object;
  SetCounts(&object, counts);
  const Result<int64_t> expires = object.GetInt("expires_at", 0);
  if (running_ != nullptr && expires.ok() && options_.now() >= *expires) {
    running_->Stop(BatchStop::kExpire);
  }
  // The outputs count against the files' limit before they are files.
  if (running_ != nullptr && files_->bytes() + counts.bytes > options_.files.bytes_max) {
    running_->Stop(BatchStop::kFull);
  }
}

// Files get ids that follow from the batch's, so that doing it again makes no second ones.
Status BatchService::PublishResults(const std::string& id, const BatchCounts& counts) {
  struct Part {
    int64_t lines;
    const char *suffix, *key, *name;
  };
  const Part parts[] = {{counts.completed, kOutput, "output_file_id", "output"},
                        {counts.failed, kErrors, "error_file_id", "errors"}};
  for (const Part& part : parts) {
    const std::string path = PathOf(id, part.suffix);
    if (part.lines == 0) {
      std::error_code error;
      fs::remove(path, error);
      continue;
    }
    const std::string file = Format("file-{}-{}", id.substr(kIdPrefix.size()), part.name);
    DI_TRY(files_->Adopt(file, Format("{}_{}.jsonl", id, part.name), "batch_output", path));
    const std::lock_guard lock(mutex_);
    entries_.at(id).object.Set(part.key, Json::String(file));
  }
  return {};
}

void BatchService::FinishOne(const std::string& id, const Result<BatchCounts>& counts,
                             BatchStop stopped) {
  if (!counts.ok()) {
    Fail(id, counts.status());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    SetCounts(&entries_.at(id).object, *counts);
    SetStatus(id, stopped == BatchStop::kCancel ? "cancelling" : "finalizing", "finalizing_at");
  }
  if (const Status status = PublishResults(id, *counts); !status.ok()) {
    Fail(id, status);
    return;
  }
  if (stopped == BatchStop::kFull) {
    Fail(id, Exhausted(Format("the files have reached max_stored_file_bytes {}: what was answered "
                              "until then is kept",
                              options_.files.bytes_max)));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (stopped == BatchStop::kCancel) {
    SetStatus(id, "cancelled", "cancelled_at");
  } else if (stopped == BatchStop::kExpire) {
    SetStatus(id, "expired", "expired_at");
  } else {
    SetStatus(id, "completed", "completed_at");
  }
}

void BatchService::Fail(const std::string& id, const Status& status) {
  LogError("batch {} failed: {}", id, status.message());
  const std::lock_guard lock(mutex_);
  Json error = Json::Object();
  error.Set("code", *ErrorBody(status).Find("error")->Find("code"));
  error.Set("line", Json());
  error.Set("message", Json::String(status.message()));
  error.Set("param", status.param().empty() ? Json() : Json::String(status.param()));
  Json& errors = entries_.at(id).object.Set("errors", Json::Object());
  errors.Set("object", Json::String("list"));
  errors.Set("data", Json::Array()).Push(std::move(error));
  SetStatus(id, "failed", "failed_at");
}

}  // namespace deepinfer
