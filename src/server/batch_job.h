// Runs the lines of one batch file through the engine: a bounded window in flight, answers in the
// order of the input, resumable after any kill. One thread calls Run; Stop may come from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/task_pool.h"
#include "deepinfer/status.h"
#include "server/metrics.h"
#include "server/served_model.h"

namespace deepinfer {

struct BatchCounts {
  int64_t total = 0;      // lines of the input; 0: not known
  int64_t completed = 0;  // answered with 200
  int64_t failed = 0;
  int64_t bytes = 0;    // written by this run
  int64_t resumed = 0;  // of both, those that an earlier run had written
};

enum class BatchStop : int { kNone, kPause, kCancel, kExpire, kFull };

struct BatchJobOptions {
  std::string input;   // "-": standard input
  std::string output;  // "-": standard output
  std::string errors;  // for lines that fail; empty: they go to the output as well
  enum class Existing { kRefuse, kResume } existing = Existing::kRefuse;
  std::string endpoint;                              // the one that lines may ask for; empty: any
  std::string id;                                    // part of the ids of answers
  int window = 1;                                    // lines in flight
  int64_t lines_max = 0;                             // more are an error of the input; 0: no limit
  TaskPool* prep = nullptr;                          // writes bodies; outlives the job
  ServerCounters* counters = nullptr;                // outlives the job
  std::function<void(const BatchCounts&)> progress;  // after every line
};

class BatchJob {
 public:
  // `served` outlives the job.
  BatchJob(BatchJobOptions options, const ServedModel& served);
  ~BatchJob();
  BatchJob(const BatchJob&) = delete;
  BatchJob& operator=(const BatchJob&) = delete;

  // A line that fails disturbs no other; the status is about the files alone. Ends early after
  // Stop: kPause leaves lines without an answer, kCancel and kFull those that
  // were not started, kExpire answers them all with an error.
  Result<BatchCounts> Run();
  void Stop(BatchStop why);
  BatchStop stopped() const { return stop_.load(); }

 private:
  struct Impl;
  const BatchJobOptions options_;
  const ServedModel& served_;
  std::atomic<BatchStop> stop_{BatchStop::kNone};
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
