// Decode speed of a model with asynchronous scheduling on and off, one stream and many: pairs of
// runs in changing order, after one pair that is not counted. Prints medians of tokens per second,
// and median and quartiles of the ratios of the pairs.
//   scheduler_overlap_bench MODEL [--threads N] [--streams N] [--tokens N] [--repeat N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/create_engine.h"
#include "models/loaded_model.h"

namespace deepinfer {
namespace {

struct Options {
  std::string model;
  int threads = 0;
  int streams = 32;
  int tokens = 128;
  int repeat = 7;
};

// Tells when all streams have their first token and when all have ended.
class TimingSink final : public OutputSink {
 public:
  explicit TimingSink(int streams) : streams_(streams), done_(1) {}
  void OnOutput(OutputDelta delta) override {
    if (delta.usage.completion_tokens == 1 && ++started_ == streams_) begin_ = Now();
    if (started_ >= streams_) tokens_ += static_cast<int64_t>(delta.token_ids.size());
    if (delta.last && ++ended_ == streams_) done_.TryPush((tokens_ - 1) / (Now() - begin_));
  }
  double TokensPerSecond() { return *done_.Pop(); }

 private:
  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  const int streams_;
  int started_ = 0;
  int ended_ = 0;
  double tokens_ = 0;
  double begin_ = 0;
  BoundedQueue<double> done_;
};

double Measure(LoadedModel* model, const Options& options, bool overlap, int streams) {
  EngineConfig config;
  config.async_scheduling = overlap;
  config.max_num_seqs = streams;
  config.max_model_len = options.tokens + 64;
  Result<std::unique_ptr<Engine>> engine = CreateEngine(config, model);
  if (!engine.ok()) {
    fprintf(stderr, "%s\n", engine.status().message().c_str());
    exit(1);
  }
  TimingSink sink(streams);
  for (int i = 0; i < streams; ++i) {
    Request request;
    for (int t = 0; t < 16; ++t) request.prompt.push_back(100 + i * 16 + t);
    request.sampling.temperature = 0.0F;
    request.sampling.max_tokens = options.tokens;
    request.sampling.ignore_eos = true;
    const Result<RequestId> id = (*engine)->Submit(std::move(request), &sink);
    if (!id.ok()) {
      fprintf(stderr, "%s\n", id.status().message().c_str());
      exit(1);
    }
  }
  const double speed = sink.TokensPerSecond();
  engine->reset();  // before the sink
  return speed;
}

// The value that a part of all is below.
double Quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(part * last + 0.5)];
}

int Run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const auto number = [&](const char* name, int* to) {
      if (strcmp(argv[i], name) != 0 || i + 1 >= argc) return false;
      *to = atoi(argv[++i]);
      return true;
    };
    if (number("--threads", &options.threads) || number("--streams", &options.streams) ||
        number("--tokens", &options.tokens) || number("--repeat", &options.repeat)) {
      continue;
    }
    options.model = argv[i];
  }
  if (options.model.empty() || options.streams < 1 || options.tokens < 2 || options.repeat < 1) {
    fprintf(stderr,
            "usage: scheduler_overlap_bench MODEL [--threads N] [--streams N] [--tokens N] "
            "[--repeat N]\n");
    return 2;
  }
  LoadOptions load;
  load.path = options.model;
  load.backend.threads = options.threads;
  Result<std::unique_ptr<LoadedModel>> model = OpenModel(load);
  if (!model.ok()) {
    fprintf(stderr, "%s\n", model.status().message().c_str());
    return 1;
  }
  for (const int streams : {1, options.streams}) {
    std::vector<double> on;
    std::vector<double> off;
    std::vector<double> ratio;
    for (int i = 0; i <= options.repeat; ++i) {
      double speed[2] = {};
      for (const int turn : {0, 1}) {
        const int overlap = (turn + i) % 2;
        speed[overlap] = Measure(model->get(), options, overlap == 1, streams);
      }
      if (i == 0) continue;
      off.push_back(speed[0]);
      on.push_back(speed[1]);
      ratio.push_back(speed[1] / speed[0]);
    }
    printf("%3d streams  on %8.1f tokens/s  off %8.1f tokens/s  ratio %.4f (quartiles %.4f %.4f)\n",
           streams, Quantile(on, 0.5), Quantile(off, 0.5), Quantile(ratio, 0.5),
           Quantile(ratio, 0.25), Quantile(ratio, 0.75));
    fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Run(argc, argv); }
