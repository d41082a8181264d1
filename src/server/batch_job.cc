#include "server/batch_job.h"

#include <map>
#include <unordered_set>
#include <utility>

#include "api/batch.h"
#include "base/bounded_queue.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/line_file.h"
#include "server/inference_call.h"

namespace deepinfer {
namespace {

// Answers that may wait for an earlier line's before no further line is started.
constexpr size_t kWaitingBytesMax = size_t{256} << 20;
constexpr int64_t kFullWaitUs = 100'000;

struct IdHash {
  size_t operator()(const Hash128& hash) const { return hash.low; }
};

Status Ended(BatchStop why) {
  if (why == BatchStop::kExpire) {
    return Status(StatusCode::kDeadline, "the batch ended before this line was answered")
        .WithReason("batch_expired");
  }
  return Status(StatusCode::kCancelled, "the batch was cancelled while this line ran")
      .WithReason("batch_cancelled");
}

}  // namespace

struct BatchJob::Impl {
  struct Open {
    std::string custom_id;
    std::shared_ptr<ResponseWriter> writer;  // shared with the call that writes to it
    bool retry = false;                      // the engine's queue was full: this answer is none
  };

  Impl(const BatchJobOptions& job_options, const ServedModel& model,
       const std::atomic<BatchStop>& job_stop)
      : options(job_options), served(model), stop(job_stop) {}

  Status OpenFiles();
  Status PassResumed();
  Status Feed();
  Status StartLine(int64_t index, BatchItem item);
  Result<bool> TryStart(int64_t index, const BatchItem& item, DialectParser parser);
  Status TakeDone(std::optional<int64_t> index);
  Status EndAll();
  Status Rest();
  Status Write(int64_t index, std::string_view custom_id, const BatchAnswer& answer);
  Status WriteError(int64_t index, std::string_view custom_id, const Status& status);
  Status Put(int64_t index, std::string line, bool ok);

  const BatchJobOptions& options;
  const ServedModel& served;
  const std::atomic<BatchStop>& stop;
  // Shared with the wakes of answers, which may still be on their way when the job is over.
  std::shared_ptr<BoundedQueue<int64_t>> done;
  std::unique_ptr<LineReader> reader;
  std::unique_ptr<LineWriter> writer;
  std::map<int64_t, Open> open;  // lines in flight
  std::unordered_set<Hash128, IdHash> custom_ids;
  BatchCounts counts;
};

Status BatchJob::Impl::OpenFiles() {
  DI_ASSIGN(reader, LineReader::Open(options.input));
  LineWriter::Options files = {.paths = {options.output},
                               .existing = options.existing == BatchJobOptions::Existing::kResume
                                               ? LineWriter::Existing::kResume
                                               : LineWriter::Existing::kRefuse,
                               .index_of = IndexOfAnswer};
  if (!options.errors.empty()) files.paths.push_back(options.errors);
  DI_ASSIGN(writer, LineWriter::Open(files));
  if (options.input != "-") {
    DI_ASSIGN(counts.total, CountLines(options.input));
    if (options.lines_max > 0 && counts.total > options.lines_max) {
      return Invalid(
          Format("the batch has {} lines, allowed are {}", counts.total, options.lines_max));
    }
  }
  counts.resumed = writer->first_index();
  counts.completed = options.errors.empty() ? writer->first_index() : writer->kept(0);
  counts.failed = options.errors.empty() ? 0 : writer->kept(1);
  return PassResumed();
}

// Their names stay taken.
Status BatchJob::Impl::PassResumed() {
  for (int64_t i = 0; i < writer->first_index(); ++i) {
    DI_ASSIGN(const std::optional<LineRecord> line, reader->Next());
    if (!line.has_value()) {
      return Invalid(
          Format("the output holds {} answers, the input only {} lines: they do not belong "
                 "together",
                 writer->first_index(), i));
    }
    const BatchItem item = ParseBatchItem(*line, options.endpoint);
    if (item.status.ok()) {
      custom_ids.insert(HashBytes128(item.custom_id.data(), item.custom_id.size()));
    }
  }
  return {};
}

Status BatchJob::Impl::Feed() {
  while (stop == BatchStop::kNone) {
    DI_ASSIGN(const std::optional<LineRecord> line, reader->Next());
    if (!line.has_value()) break;
    while (open.size() >= static_cast<size_t>(options.window) ||
           (!open.empty() && writer->waiting_bytes() > kWaitingBytesMax)) {
      DI_TRY(TakeDone(done->Pop()));
      if (stop != BatchStop::kNone) break;
    }
    DI_TRY(StartLine(line->index, ParseBatchItem(*line, options.endpoint)));
  }
  while (!open.empty() && stop == BatchStop::kNone) DI_TRY(TakeDone(done->Pop()));
  return {};
}

Status BatchJob::Impl::StartLine(int64_t index, BatchItem item) {
  if (item.status.ok() &&
      !custom_ids.insert(HashBytes128(item.custom_id.data(), item.custom_id.size())).second) {
    item.status = Invalid(Format("\"custom_id\" {:?} belongs to an earlier line", item.custom_id))
                      .WithParam("custom_id");
  }
  if (!item.status.ok()) return WriteError(index, item.custom_id, item.status);
  const DialectParser parser = FindBatchEndpoint(item.url);
  while (true) {
    DI_ASSIGN(const bool started, TryStart(index, item, parser));
    if (started) return {};
    // The queue is full of others' requests, or of this batch's: room comes.
    DI_TRY(TakeDone(done->PopFor(kFullWaitUs)));
    if (stop != BatchStop::kNone) return WriteError(index, item.custom_id, Ended(stop));
  }
}

// False when the engine's queue is full now.
Result<bool> BatchJob::Impl::TryStart(int64_t index, const BatchItem& item, DialectParser parser) {
  BatchAnswer answer;
  answer.request_id = Format("{}_{:08}", options.id, index);
  Result<DialectCall> parsed = parser(item.body, served.dialect);
  if (!parsed.ok()) {
    answer.status_code = HttpStatus(parsed.status().code());
    answer.body = ErrorBody(parsed.status()).Dump();
    DI_TRY(Write(index, item.custom_id, answer));
    return true;
  }
  const InferenceCall::Context context = {
      .engine = served.engine.get(), .prep = options.prep, .counters = options.counters};
  Open& entry = open[index];
  entry.custom_id = item.custom_id;
  entry.writer = std::make_shared<ResponseWriter>(
      answer.request_id, 0, [queue = done, index] { (void)queue->Push(int64_t{index}); });
  const bool idle = open.size() == 1 && served.engine->Stats().waiting == 0;
  const auto call = std::make_shared<InferenceCall>(context, *std::move(parsed), entry.writer);
  call->Start();
  // What an idle engine refuses will never fit.
  entry.retry = call->refusal().code() == StatusCode::kExhausted && !idle;
  if (!entry.retry) return true;
  while (open.contains(index)) DI_TRY(TakeDone(done->Pop()));
  return false;
}

Status BatchJob::Impl::TakeDone(std::optional<int64_t> index) {
  if (!index.has_value() || *index < 0) return {};
  const auto found = open.find(*index);
  const Open entry = std::move(found->second);
  open.erase(found);
  if (entry.retry) return {};
  BatchAnswer answer;
  answer.request_id = entry.writer->request_id();
  ResponseWriter::Taken taken = entry.writer->Take();
  answer.status_code = taken.whole->status;
  answer.body = std::move(taken.whole->body);
  const BatchStop why = stop;
  if (why == BatchStop::kNone || answer.status_code == 200) {
    return Write(*index, entry.custom_id, answer);
  }
  return why == BatchStop::kPause ? Status() : WriteError(*index, entry.custom_id, Ended(why));
}

// What is in flight has to come back, whatever happened: its sinks write to us.
Status BatchJob::Impl::EndAll() {
  for (const auto& [index, entry] : open) entry.writer->Close(CloseReason::kShutdown);
  Status first;
  while (!open.empty()) {
    Status took = TakeDone(done->Pop());
    if (first.ok()) first = std::move(took);
  }
  return first;
}

// Lines that expired before they were started.
Status BatchJob::Impl::Rest() {
  while (true) {
    DI_ASSIGN(const std::optional<LineRecord> line, reader->Next());
    if (!line.has_value()) return {};
    const BatchItem item = ParseBatchItem(*line, options.endpoint);
    DI_TRY(WriteError(line->index, item.custom_id, Ended(BatchStop::kExpire)));
  }
}

Status BatchJob::Impl::Write(int64_t index, std::string_view custom_id, const BatchAnswer& answer) {
  return Put(index, AnswerLine(options.id, index, custom_id, answer), answer.status_code == 200);
}

Status BatchJob::Impl::WriteError(int64_t index, std::string_view custom_id, const Status& status) {
  if (stop == BatchStop::kPause) return {};
  return Put(index, ErrorLine(options.id, index, custom_id, status), false);
}

Status BatchJob::Impl::Put(int64_t index, std::string line, bool ok) {
  ++(ok ? counts.completed : counts.failed);
  counts.bytes += static_cast<int64_t>(line.size()) + 1;
  DI_TRY(writer->Put(index, std::move(line), ok || options.errors.empty() ? 0 : 1));
  if (options.progress) options.progress(counts);
  return {};
}

BatchJob::BatchJob(BatchJobOptions options, const ServedModel& served)
    : options_(std::move(options)),
      served_(served),
      impl_(std::make_unique<Impl>(options_, served_, stop_)) {
  impl_->done = std::make_shared<BoundedQueue<int64_t>>(static_cast<size_t>(options_.window) + 16);
}

BatchJob::~BatchJob() = default;

Result<BatchCounts> BatchJob::Run() {
  Impl& impl = *impl_;
  DI_TRY(impl.OpenFiles());
  if (options_.progress) options_.progress(impl.counts);
  Status status = impl.Feed();
  Status ended = impl.EndAll();
  if (status.ok()) status = std::move(ended);
  if (status.ok() && stop_ == BatchStop::kExpire) status = impl.Rest();
  DI_TRY(std::move(status));
  DI_TRY(impl.writer->Close());
  return impl.counts;
}

void BatchJob::Stop(BatchStop why) {
  BatchStop none = BatchStop::kNone;
  if (!stop_.compare_exchange_strong(none, why)) return;
  (void)impl_->done->TryPush(-1);  // a full queue wakes by itself
}

}  // namespace deepinfer
