#include "apps/prompt_run.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "apps/bench_stats.h"
#include "apps/progress.h"
#include "apps/prompt_file.h"
#include "base/bounded_queue.h"

namespace deepinfer {
namespace {

// Requests in flight: enough to keep every slot of the engine busy while lines are prepared.
constexpr int kWindowPerSlot = 4;
// Answers that may wait for an earlier line's before no further line is started.
constexpr size_t kWaitingBytesMax = size_t{256} << 20;

const char* FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "";
}

struct Sample {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish = FinishReason::kNone;
};

Json LogprobJson(const TokenLogprob& logprob) {
  Json out = Json::Object();
  out.Set("token_id", Json::Int(logprob.id));
  out.Set("logprob", Json::Double(static_cast<double>(logprob.logprob)));
  out.Set("rank", Json::Int(logprob.rank));
  Json& top = out.Set("top", Json::Array());
  for (const auto& [id, value] : logprob.top) {
    Json& pair = top.Push(Json::Array());
    pair.Push(Json::Int(id));
    pair.Push(Json::Double(static_cast<double>(value)));
  }
  return out;
}

void SetSample(Json* out, const Sample& sample) {
  out->Set("text", Json::String(sample.text));
  Json& ids = out->Set("token_ids", Json::Array());
  for (TokenId id : sample.ids) ids.Push(Json::Int(id));
  out->Set("finish_reason", Json::String(FinishName(sample.finish)));
  if (!sample.logprobs.empty()) {
    Json& list = out->Set("logprobs", Json::Array());
    for (const TokenLogprob& logprob : sample.logprobs) list.Push(LogprobJson(logprob));
  }
}

// Everything about one line in flight. Filled on the engine thread, handed over once it is done.
class LineSink final : public OutputSink {
 public:
  LineSink(PromptLine line, BoundedQueue<LineSink*>* done) : line_(std::move(line)), done_(done) {}

  void OnOutput(OutputDelta delta) override {
    const auto i = static_cast<size_t>(delta.sample);
    if (samples_.size() <= i) samples_.resize(i + 1);
    Sample& sample = samples_[i];
    sample.text += delta.text;
    sample.ids.insert(sample.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (TokenLogprob& logprob : delta.logprobs) sample.logprobs.push_back(std::move(logprob));
    for (auto& logprob : delta.prompt_logprobs) prompt_logprobs_.push_back(std::move(logprob));
    if (delta.finish != FinishReason::kNone) {
      sample.finish = delta.finish;
      usage.prompt_tokens = delta.usage.prompt_tokens;
      usage.cached_tokens = delta.usage.cached_tokens;
      usage.completion_tokens += delta.usage.completion_tokens;
    }
    if (delta.finish == FinishReason::kError) {
      status = Status(static_cast<StatusCode>(delta.error_code), delta.error);
    }
    if (delta.last) (void)done_->Push(this);
  }

  int64_t index() const { return line_.index; }
  PromptLine& line() { return line_; }
  std::string Format() const;

  Usage usage;
  Status status;

 private:
  PromptLine line_;
  BoundedQueue<LineSink*>* done_;
  std::vector<Sample> samples_;
  std::vector<std::optional<TokenLogprob>> prompt_logprobs_;
};

std::string LineSink::Format() const {
  Json out = Json::Object();
  out.Set("index", Json::Int(line_.index));
  out.Set("id", line_.id);
  if (!status.ok()) {
    out.Set("text", Json());
    out.Set("token_ids", Json::Array());
    out.Set("finish_reason", Json::String("error"));
    out.Set("error", ErrorField(status));
    return out.Dump();
  }
  SetSample(&out, samples_.front());
  Json& use = out.Set("usage", Json::Object());
  use.Set("prompt_tokens", Json::Int(usage.prompt_tokens));
  use.Set("completion_tokens", Json::Int(usage.completion_tokens));
  use.Set("cached_tokens", Json::Int(usage.cached_tokens));
  if (samples_.size() > 1) {
    Json& list = out.Set("samples", Json::Array());
    for (const Sample& sample : samples_) SetSample(&list.Push(Json::Object()), sample);
  }
  if (!prompt_logprobs_.empty()) {
    Json& list = out.Set("prompt_logprobs", Json::Array());
    for (const auto& logprob : prompt_logprobs_) {
      list.Push(logprob.has_value() ? LogprobJson(*logprob) : Json());
    }
  }
  return out.Dump();
}

Result<Request> BuildLine(const RequestBuilder& builder, const PromptLine& line) {
  if (!line.status.ok()) return line.status;
  if (line.text.has_value()) return builder.FromText(*line.text, line.params);
  if (!line.ids.empty()) return builder.FromIds(line.ids, line.params);
  return builder.FromMessages(line.messages, line.params);
}

// For the progress bar; 0 when it cannot be told.
int64_t TotalLines(const std::string& path) {
  struct stat info {};
  if (path == "-" || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  const Result<int64_t> lines = CountLines(path);
  return lines.ok() ? *lines : 0;
}

class Job {
 public:
  Job(Engine* engine, const RequestBuilder& builder, LineWriter* writer, Progress* progress)
      : engine_(engine),
        builder_(builder),
        writer_(writer),
        progress_(progress),
        window_(static_cast<size_t>(engine->limits().max_num_seqs) * kWindowPerSlot),
        done_(window_ + 1) {}

  Status Run(LineReader* reader) {
    Status status = Feed(reader);
    if (!status.ok()) CancelAll();
    while (!open_.empty()) {  // also after an error: the sinks must outlive their requests
      Status took = TakeDone();
      if (!status.ok() || took.ok()) continue;
      status = std::move(took);
      CancelAll();
    }
    return status;
  }
  PromptFileTotals totals;

 private:
  Status Feed(LineReader* reader) {
    while (true) {
      DI_ASSIGN(const std::optional<LineRecord> line, reader->Next());
      if (!line.has_value()) return {};
      while (open_.size() >= window_ ||
             (!open_.empty() && writer_->waiting_bytes() > kWaitingBytesMax)) {
        DI_TRY(TakeDone());
      }
      DI_TRY(Start(ParsePromptLine(*line)));
    }
  }

  Status Start(PromptLine line) {
    auto sink = std::make_unique<LineSink>(std::move(line), &done_);
    Result<Request> request = BuildLine(builder_, sink->line());
    if (request.ok()) {
      Result<RequestId> id = engine_->Submit(std::move(request).value(), sink.get());
      if (id.ok()) {
        open_.emplace(sink->index(), *id);
        (void)sink.release();  // comes back through done_
        return {};
      }
      sink->status = id.status();
    } else {
      sink->status = request.status();
    }
    return Write(*sink);
  }

  Status TakeDone() {
    const std::unique_ptr<LineSink> sink(*done_.Pop());
    open_.erase(sink->index());
    return Write(*sink);
  }

  void CancelAll() {
    for (const auto& [index, id] : open_) engine_->Cancel(id);
  }

  Status Write(const LineSink& sink) {
    ++totals.lines;
    totals.failed += sink.status.ok() ? 0 : 1;
    totals.prompt_tokens += sink.usage.prompt_tokens;
    totals.completion_tokens += sink.usage.completion_tokens;
    DI_TRY(writer_->Put(sink.index(), sink.Format()));
    progress_->Update(totals.resumed + totals.lines,
                      totals.prompt_tokens + totals.completion_tokens);
    return {};
  }

  Engine* engine_;
  const RequestBuilder& builder_;
  LineWriter* writer_;
  Progress* progress_;
  const size_t window_;
  BoundedQueue<LineSink*> done_;
  std::map<int64_t, RequestId> open_;  // lines in flight
};

}  // namespace

Result<PromptFileTotals> RunPromptFile(const PromptFileJob& job, Engine* engine,
                                       const RequestBuilder& builder) {
  const double begin = NowSeconds();
  DI_ASSIGN(const std::unique_ptr<LineReader> reader, LineReader::Open(job.input));
  const LineWriter::Options options = {.paths = {job.output},
                                       .existing = job.existing == PromptFileJob::Existing::kResume
                                                       ? LineWriter::Existing::kResume
                                                       : LineWriter::Existing::kRefuse,
                                       .index_of = IndexOfResult};
  DI_ASSIGN(const std::unique_ptr<LineWriter> writer, LineWriter::Open(options));
  DI_TRY(reader->Skip(writer->first_index()));
  Progress progress("lines", TotalLines(job.input));
  Job run(engine, builder, writer.get(), &progress);
  run.totals.resumed = writer->first_index();
  progress.Update(run.totals.resumed, 0);
  DI_TRY(run.Run(reader.get()));
  DI_TRY(writer->Close());
  run.totals.seconds = NowSeconds() - begin;
  return run.totals;
}

}  // namespace deepinfer
