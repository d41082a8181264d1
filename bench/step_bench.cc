// Times steps straight on a model, without an engine: prefill of one prompt, decode of one stream,
// decode of many streams; and, for each, how the time divides over the stages of the backend.
//   step_bench MODEL [--threads N] [--isa NAME] [--dtype auto|float32] [--prompt N] [--tokens N]
//              [--streams N] [--context N] [--repeat N] [--clock wall|cpu]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "models/checkpoint.h"
#include "models/registry.h"
#include "tests/harness/host_rows.h"

namespace deepinfer {
namespace {

// Wall time, or the time of the calling thread alone (with one thread: free of noisy neighbours).
clockid_t bench_clock = CLOCK_MONOTONIC;

double Now() {
  timespec ts;
  clock_gettime(bench_clock, &ts);
  return static_cast<double>(ts.tv_sec) + 1e-9 * static_cast<double>(ts.tv_nsec);
}
double SecondsSince(double begin) { return Now() - begin; }

// Forwards to a backend and adds up the time of each stage.
class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}
  std::map<std::string, double> seconds;

  const BackendInfo& info() const override { return inner_->info(); }
  Result<Buffer> Allocate(size_t bytes) override { return inner_->Allocate(bytes); }
  Result<std::unique_ptr<Weight>> Bind(const TensorFile& file, const TensorView& view,
                                       WeightRole role) override {
    return inner_->Bind(file, view, role);
  }
  Result<std::unique_ptr<Weight>> BindExperts(const TensorFile& file,
                                              std::span<const TensorView> experts) override {
    return inner_->BindExperts(file, experts);
  }
  int kv_element_bytes() const override { return inner_->kv_element_bytes(); }
  std::unique_ptr<Activation> CreateActivation(int64_t cols,
                                               std::span<const Weight* const> readers) override {
    return inner_->CreateActivation(cols, readers);
  }
  void Embed(const Weight& embedding, const int32_t* token, int tokens, float* out) override {
    Time("embed", [&] { inner_->Embed(embedding, token, tokens, out); });
  }
  void NormQuantize(const float* x, const int32_t* row_index, int rows, const Weight* norm,
                    float eps, Activation* out) override {
    Time("norm", [&] { inner_->NormQuantize(x, row_index, rows, norm, eps, out); });
  }
  void Linear(const LinearArgs& args) override {
    Time(Format("linear {}x{}", args.weights[0]->rows, args.weights[0]->cols),
         [&] { inner_->Linear(args); });
  }
  void RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q, float* k,
                    const float* v) override {
    Time("rope", [&] { inner_->RopeAndCache(step, spec, q, k, v); });
  }
  void Attention(const StepInput& step, const AttentionSpec& spec, const float* q,
                 float* out) override {
    Time("attention", [&] { inner_->Attention(step, spec, q, out); });
  }
  void Moe(const MoeArgs& args) override {
    Time("moe", [&] { inner_->Moe(args); });
  }
  void CopyBlocks(const StepInput& step,
                  std::span<const std::pair<int32_t, int32_t>> pairs) override {
    inner_->CopyBlocks(step, pairs);
  }
  void ParallelRows(int count, void (*body)(void* context, int i), void* context) override {
    inner_->ParallelRows(count, body, context);
  }

 private:
  template <typename Body>
  void Time(const std::string& name, Body&& body) {
    const auto begin = Now();
    body();
    seconds[name] += SecondsSince(begin);
  }
  std::unique_ptr<Backend> inner_;
};

struct Options {
  std::string model, isa, dtype = "auto", clock = "wall";
  int threads = 0, prompt = 512, tokens = 128, streams = 32, context = 64, repeat = 3;
};

class Bench {
 public:
  Bench(TimedBackend* backend, Model* model, const Options& options)
      : backend_(backend), model_(model), options_(options) {}

  void Prefill() {
    HostRows rows(backend_, model_->cache_layout(), 1, options_.prompt);
    double best = 1e30;
    Reset();
    for (int i = 0; i < options_.repeat; ++i) {
      best = std::min(best, Step(&rows, {{0, 0, Tokens(options_.prompt)}}));
    }
    Report(Format("prefill {}", options_.prompt), options_.prompt / best, options_.repeat);
  }

  void Decode(int streams, int context, int tokens) {
    HostRows rows(backend_, model_->cache_layout(), streams, context + tokens);
    for (int s = 0; s < streams; ++s) Step(&rows, {{s, 0, Tokens(context)}});
    Reset();
    double total = 0.0;
    for (int i = 0; i < tokens; ++i) {
      std::vector<HostRows::Query> queries;
      for (int s = 0; s < streams; ++s) queries.push_back({s, context + i, Tokens(1)});
      total += Step(&rows, queries);
    }
    Report(Format("decode {} stream(s) after {}", streams, context), streams * tokens / total,
           tokens);
  }

 private:
  // A forward and the head of each row's last token; returns seconds.
  double Step(HostRows* rows, const std::vector<HostRows::Query>& queries) {
    const StepInput step = rows->Step(queries);
    std::vector<int32_t> last;
    for (int r = 0; r < step.shape.num_rows; ++r) last.push_back(step.query_start[r + 1] - 1);
    logits_.resize(last.size() * static_cast<size_t>(model_->info().vocab));
    const auto begin = Now();
    const float* hidden = model_->Forward(step);
    model_->Head(hidden, last.data(), step.shape.num_rows, logits_.data());
    const double seconds = SecondsSince(begin);
    total_ += seconds;
    return seconds;
  }

  std::vector<int32_t> Tokens(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
      tokens.push_back(
          static_cast<int32_t>((random_ >> 33) % static_cast<uint64_t>(model_->info().vocab)));
    }
    return tokens;
  }

  void Reset() {
    backend_->seconds.clear();
    total_ = 0.0;
  }

  void Report(const std::string& name, double rate, int steps) {
    printf("%-32s %9.1f tok/s  %8.3f ms a step\n", name.c_str(), rate, 1e3 * total_ / steps);
    for (const auto& [stage, seconds] : backend_->seconds) {
      printf("    %-24s %8.3f ms  %5.1f %%\n", stage.c_str(), 1e3 * seconds / steps,
             100.0 * seconds / total_);
    }
  }

  TimedBackend* backend_;
  Model* model_;
  Options options_;
  std::vector<float> logits_;
  uint64_t random_ = 1;
  double total_ = 0.0;
};

bool ParseOptions(int argc, char** argv, Options* options) {
  if (argc < 2) return false;
  options->model = argv[1];
  const std::pair<const char*, int*> numbers[] = {
      {"--threads", &options->threads}, {"--prompt", &options->prompt},
      {"--tokens", &options->tokens},   {"--streams", &options->streams},
      {"--context", &options->context}, {"--repeat", &options->repeat}};
  const std::pair<const char*, std::string*> texts[] = {
      {"--isa", &options->isa}, {"--dtype", &options->dtype}, {"--clock", &options->clock}};
  for (int i = 2; i + 1 < argc; i += 2) {
    bool known = false;
    for (const auto& [name, value] : numbers) {
      if (strcmp(argv[i], name) == 0) *value = atoi(argv[i + 1]), known = true;
    }
    for (const auto& [name, value] : texts) {
      if (strcmp(argv[i], name) == 0) *value = argv[i + 1], known = true;
    }
    if (!known) return false;
  }
  return argc % 2 == 0;
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    fprintf(
        stderr,
        "usage: step_bench MODEL [--threads N] [--isa NAME] [--dtype auto|float32] "
        "[--prompt N] [--tokens N] [--streams N] [--context N] [--repeat N] [--clock wall|cpu]\n");
    return 2;
  }
  if (options.clock == "cpu") bench_clock = CLOCK_THREAD_CPUTIME_ID;
  auto device = CreateBackend(
      {.threads = options.threads,
       .dtype = options.dtype == "float32" ? ComputeDtype::kFloat32 : ComputeDtype::kAuto,
       .cpu_isa = options.isa});
  if (!device.ok()) {
    fprintf(stderr, "%s\n", device.status().message().c_str());
    return 1;
  }
  TimedBackend backend(std::move(device).value());
  const auto begin = Now();
  auto checkpoint = Checkpoint::Open(options.model);
  if (!checkpoint.ok()) {
    fprintf(stderr, "%s\n", checkpoint.status().message().c_str());
    return 1;
  }
  auto model = LoadModel(**checkpoint, &backend);
  if (!model.ok()) {
    fprintf(stderr, "%s\n", model.status().message().c_str());
    return 1;
  }
  const ModelInfo& info = (*model)->info();
  printf("%s %s, %.1f M weights, %.1f MB packed, loaded in %.0f ms; %s, %d threads\n",
         info.name.c_str(), info.dtype.c_str(), 1e-6 * static_cast<double>(info.parameters),
         1e-6 * static_cast<double>(info.weight_bytes), 1e3 * SecondsSince(begin),
         backend.info().isa.c_str(), backend.info().threads);
  Bench bench(&backend, model->get(), options);
  if (options.prompt > 0) bench.Prefill();
  if (options.tokens > 0) bench.Decode(1, options.context, options.tokens);
  if (options.tokens > 0 && options.streams > 1) {
    bench.Decode(options.streams, options.context, options.tokens);
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Main(argc, argv); }
