// The batches of /v1/batches: kept on disk, run one after the other on a thread of their own while
// the server answers others, gone on with after a restart. Safe on any thread; the files are theirs
// as well. Outlived by the model and the pool that Start names.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/json.h"
#include "base/task_pool.h"
#include "server/batch_job.h"
#include "server/file_store.h"
#include "server/metrics.h"
#include "server/served_model.h"

namespace deepinfer {

class BatchService {
 public:
  struct Options {
    std::string directory;
    FileStore::Limits files;
    int64_t batches_max = 0;  // kept; the oldest that are over make room
    int64_t lines_max = 0;    // of one batch
    int window = 0;           // lines in flight; 0: half of the engine's slots
    FileStore::NowSeconds now = nullptr;
  };

  // Reads what an earlier process left.
  static Result<std::unique_ptr<BatchService>> Open(const Options& options);
  ~BatchService();
  BatchService(const BatchService&) = delete;
  BatchService& operator=(const BatchService&) = delete;

  // From now on batches run.
  void Start(const ServedModel& served, TaskPool* prep);
  // The batch that runs is put aside: the next start goes on with it. Start has no effect after.
  void Stop();

  FileStore& files() { return *files_; }

  // {"input_file_id", "endpoint", "completion_window": "24h", "metadata"?}: a batch object.
  Result<Json> Create(const Json& body);
  Result<Json> Get(std::string_view id);
  Result<Json> List(std::string_view query);
  // Ends a batch; what was answered by then is kept.
  Result<Json> Cancel(std::string_view id);

 private:
  struct Entry {
    Json object;
    int64_t created_at = 0;
    int64_t order = 0;
    bool over = false;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  explicit BatchService(const Options& options) : options_(options) {}
  Status Load();
  std::string PathOf(const std::string& id, const char* suffix) const;
  Result<Entry*> Find(std::string_view id);
  Status MakeRoom();
  Status Save(const std::string& id);
  void SetStatus(const std::string& id, const char* status, const char* when);
  void Loop();
  Entries::iterator NextToRun();
  void RunOne(const std::string& id);
  Result<BatchCounts> RunJob(const std::string& id, const std::string& input, BatchStop* stopped);
  void OnProgress(const std::string& id, const BatchCounts& counts);
  Status PublishResults(const std::string& id, const BatchCounts& counts);
  void FinishOne(const std::string& id, const Result<BatchCounts>& counts, BatchStop stopped);
  void Fail(const std::string& id, const Status& status);

  const Options options_;
  std::unique_ptr<FileStore> files_;
  const ServedModel* served_ = nullptr;
  TaskPool* prep_ = nullptr;
  ServerCounters counters_;  // of answers that no client waits for

  std::mutex mutex_;
  std::condition_variable changed_;
  Entries entries_;
  BatchJob* running_ = nullptr;  // the job of running_id_
  std::string running_id_;
  int64_t next_order_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
