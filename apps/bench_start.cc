// `deepinfer bench start`: from the start of a process to its first token, and the memory that took
// beside the bytes of weights that were used. Every run is a process of its own.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "apps/bench.h"
#include "apps/bench_stats.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/memory_probe.h"
#include "apps/model_path.h"
#include "base/format.h"
#include "base/topology.h"
#include "deepinfer/llm.h"

namespace deepinfer {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr size_t kProbeBytes = size_t{512} << 20;
constexpr size_t kLineMax = 4096;

struct StartFlags {
  std::string model;
  int input_len = 21;
  int repeat = 7;
  bool once = false;
  bool as_json = false;
};

// VmHWM: unlike ru_maxrss it begins anew with the program.
int64_t PeakResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return 0;
  char line[256];
  long long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %lld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return int64_t{kib} * 1024;
}

// In the child: one token, then one line for the parent.
int RunOnce(const StartFlags& flags, const LlmOptions& options) {
  const double begin = NowSeconds();
  Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
  if (!llm.ok()) return Fail("bench start", llm.status());
  const double loaded = NowSeconds();
  SamplingParams sampling;
  sampling.temperature = 0.0F;
  sampling.ignore_eos = true;
  sampling.max_tokens = 1;
  const Prompt prompt = {.token_ids =
                             SyntheticPrompt(1, 0, flags.input_len, (*llm)->engine().limits())};
  const std::vector<GenerateOutput> outputs = (*llm)->Generate({&prompt, 1}, sampling);
  if (!outputs[0].status.ok()) return Fail("bench start", outputs[0].status);
  const double done = NowSeconds();
  const WeightStats stats = (*llm)->engine().Stats().weights;
  Json out = Json::Object();
  out.Set("load_s", Json::Double(loaded - begin));
  out.Set("forward_s", Json::Double(done - loaded));
  out.Set("pack_s", Json::Double(static_cast<double>(stats.cache_load_us) * 1e-6));
  out.Set("touched_bytes", Json::Int(stats.touched_bytes));
  out.Set("peak_bytes", Json::Int(PeakResidentBytes()));
  std::printf("%s\n", out.Dump().c_str());
  std::fflush(stdout);
  return kExitOk;
}

struct Run {
  double first_token_s = 0;  // from before the process was made until its line arrived
  Json figures;
};

// This program again with the same arguments and --once.
Result<Run> RunChild(int argc, char** argv) {
  int ends[2];
  if (pipe(ends) != 0) return Unavailable(Format("pipe: {}", std::strerror(errno)));
  // argv lacks the words before the flags (commands.h): "bench start".
  std::string words[] = {"deepinfer", "bench", "start"};
  std::string once = "--once";
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  for (int i = 1; i < argc; ++i) arguments.push_back(argv[i]);
  arguments.push_back(once.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  pid_t child = 0;
  const double begin = NowSeconds();
  const int error =
      posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  double arrived = begin;
  char buffer[kLineMax];
  for (ssize_t n = 0; error == 0 && (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    arrived = NowSeconds();
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kLineMax || text.find('\n') != std::string::npos) break;
  }
  close(ends[0]);
  if (error != 0) return Unavailable(Format("no process: {}", std::strerror(error)));
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != kExitOk) {
    return Unavailable("the process that was measured failed");
  }
  Run run{.first_token_s = arrived - begin};
  DI_ASSIGN(run.figures, Json::Parse(text));
  return run;
}

double Figure(const Run& run, const char* key) {
  const Json* value = run.figures.Find(key);
  return value == nullptr ? 0.0 : value->AsDouble().ok() ? *value->AsDouble() : 0.0;
}

void Report(const StartFlags& flags, const std::vector<Run>& runs, const MemoryRates& rates) {
  const auto median = [&runs](auto figure) {
    std::vector<double> values;
    for (const Run& run : runs) values.push_back(figure(run));
    return Summarize(values).median;
  };
  const auto of = [&median](const char* key) {
    return median([key](const Run& run) { return Figure(run, key); });
  };
  Json out = Json::Object();
  out.Set("prompt_tokens", Json::Int(flags.input_len));
  out.Set("runs", Json::Int(static_cast<int64_t>(runs.size())));
  out.Set("first_token_s", Json::Double(median([](const Run& run) { return run.first_token_s; })));
  out.Set("load_s", Json::Double(of("load_s")));
  out.Set("forward_s", Json::Double(of("forward_s")));
  out.Set("pack_s", Json::Double(of("pack_s")));
  out.Set("touched_mib", Json::Double(of("touched_bytes") / kMiB));
  out.Set("peak_mib", Json::Double(of("peak_bytes") / kMiB));
  out.Set("peak_per_touched", Json::Double(median([](const Run& run) {
            return Figure(run, "peak_bytes") / std::max(1.0, Figure(run, "touched_bytes"));
          })));
  out.Set("read_gb_per_s", Json::Double(rates.read_gb_s));
  out.Set("copy_gb_per_s", Json::Double(rates.copy_gb_s));
  if (flags.as_json) {
    std::printf("%s\n", out.Dump().c_str());
    return;
  }
  for (const auto& [key, value] : out.members()) {
    std::printf("%-18s %s\n", key.c_str(), value.Dump().c_str());
  }
}

}  // namespace

int RunBenchStart(int argc, char** argv) {
  StartFlags flags;
  LlmOptions options;
  CommandLine line("deepinfer bench start",
                   "process start to first token, and its memory; medians of fresh processes");
  line.Add("--model,-m,model", &flags.model, "model name, directory or file");
  line.Add("--input-len", &flags.input_len, "prompt tokens");
  line.Add("--repeat", &flags.repeat, "processes");
  line.AddSwitch("--once", &flags.once, "measure in this process and print its figures");
  line.AddSwitch("--json", &flags.as_json, "print one JSON object");
  AddEngineFlags(&line, &options.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (const Status status = Engine::CheckConfig(options.engine); !status.ok()) {
    return FailUsage("bench start", status);
  }
  if (flags.input_len < 1 || flags.repeat < 1) {
    return FailUsage("bench start", Invalid("--input-len and --repeat must be 1 or more"));
  }
  Result<std::string> path = ResolveModelPath(flags.model);
  if (!path.ok()) return Fail("bench start", path.status());
  options.model = *path;
  if (flags.once) return RunOnce(flags, options);
  const MemoryRates rates = MeasureMemory(ComputeThreads(ReadTopology()), kProbeBytes);
  std::vector<Run> runs;
  for (int i = 0; i < flags.repeat; ++i) {
    Result<Run> run = RunChild(argc, argv);
    if (!run.ok()) return Fail("bench start", run.status());
    runs.push_back(*std::move(run));
  }
  Report(flags, runs, rates);
  return kExitOk;
}

}  // namespace deepinfer
