// `deepinfer batch`: a file of API requests (OpenAI's Batch format) answered offline, by the code
// that answers them over HTTP.
#include <cstdio>
#include <memory>

#include "apps/bench_stats.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/model_path.h"
#include "apps/progress.h"
#include "server/batch_job.h"

namespace deepinfer {
namespace {

constexpr char kCommand[] = "deepinfer batch";
// Enough to keep every slot of the engine busy while lines are prepared.
constexpr int kWindowPerSlot = 4;

struct BatchFlags {
  ServerConfig server;
  BatchJobOptions job;
  bool resume = false;
};

void AddFlags(CommandLine* line, BatchFlags* flags) {
  line->Add("--model,-m", &flags->server.model,
            "model name, directory or file; empty: the default model");
  line->Add("--input,-i", &flags->job.input,
            "JSONL: {\"custom_id\", \"method\": \"POST\", \"url\", \"body\"}; - reads stdin");
  line->Add("--output,-o", &flags->job.output, "JSONL of answers, in input order; - is stdout");
  line->Add("--errors", &flags->job.errors,
            "file for the lines that fail; without it they go to the output");
  line->AddSwitch("--resume", &flags->resume, "go on with files that a stopped run left");
  line->AddList("--served-model-name", &flags->server.served_model_names,
                "names that lines may give");
  line->Add("--chat-template", &flags->server.chat_template_file,
            "Jinja file that replaces the checkpoint's chat template");
  line->AddSwitch("--trust-user-special-tokens", &flags->server.trust_user_special_tokens,
                  "special tokens in a user's text count as such");
  line->AddSwitch("--strict-api", &flags->server.strict_api,
                  "refuse request fields that are not known");
}

Status CheckFlags(const BatchFlags& flags) {
  if (flags.job.input.empty()) return Invalid("--input FILE is required");
  const bool piped = flags.job.output == "-";
  if (flags.resume && piped) return Invalid("--resume needs --output FILE");
  if (piped && !flags.job.errors.empty()) return Invalid("--errors needs --output FILE");
  if (!flags.job.errors.empty() && flags.job.errors == flags.job.output) {
    return Invalid("--errors and --output must be different files");
  }
  return {};
}

void PrintSummary(const BatchCounts& counts, double seconds) {
  const int64_t ran = counts.completed + counts.failed - counts.resumed;
  std::fprintf(stderr,
               "%lld lines in %.1f s (%lld kept from before), %lld answered, %lld failed, "
               "%.1f lines/s\n",
               static_cast<long long>(ran), seconds, static_cast<long long>(counts.resumed),
               static_cast<long long>(counts.completed), static_cast<long long>(counts.failed),
               seconds > 0 ? static_cast<double>(ran) / seconds : 0.0);
}

int RunJob(BatchFlags flags, const ServedModel& served) {
  TaskPool prep(1);
  ServerCounters counters;
  std::unique_ptr<Progress> progress;
  flags.job.existing =
      flags.resume ? BatchJobOptions::Existing::kResume : BatchJobOptions::Existing::kRefuse;
  flags.job.id = "offline";
  flags.job.window = served.engine->limits().max_num_seqs * kWindowPerSlot;
  flags.job.prep = &prep;
  flags.job.counters = &counters;
  flags.job.progress = [&progress](const BatchCounts& counts) {
    if (progress == nullptr) progress = std::make_unique<Progress>("lines", counts.total);
    progress->Update(counts.completed + counts.failed, 0);
  };
  const double begin = NowSeconds();
  BatchJob job(std::move(flags.job), served);
  const Result<BatchCounts> counts = job.Run();
  // Calls that were answered may still be on the engine's thread, and they use the pool.
  Status drained = served.engine->Drain(0);
  progress.reset();
  if (!counts.ok()) return Fail(kCommand, counts.status());
  if (!drained.ok()) return Fail(kCommand, drained);
  PrintSummary(*counts, NowSeconds() - begin);
  return kExitOk;
}

}  // namespace

int RunBatch(int argc, char** argv) {
  BatchFlags flags;
  flags.job.output = "-";
  CommandLine line(kCommand, "Answers a file of API requests offline.");
  AddFlags(&line, &flags);
  AddEngineFlags(&line, &flags.server.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (Status status = CheckFlags(flags); !status.ok()) return FailUsage(kCommand, status);
  if (Status status = Engine::CheckConfig(flags.server.engine); !status.ok()) {
    return FailUsage(kCommand, status);
  }
  Result<std::string> path = ResolveModelPath(flags.server.model);
  if (!path.ok()) return Fail(kCommand, path.status());
  if (flags.server.served_model_names.empty() && !flags.server.model.empty() &&
      *path != flags.server.model) {
    flags.server.served_model_names = {flags.server.model};
  }
  flags.server.model = *std::move(path);
  // Nobody could read what a line stores.
  flags.server.max_stored_responses = 0;
  const Result<std::unique_ptr<ServedModel>> served = LoadServedModel(flags.server);
  if (!served.ok()) return Fail(kCommand, served.status());
  return RunJob(std::move(flags), **served);
}

}  // namespace deepinfer
