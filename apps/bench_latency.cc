#include <algorithm>
#include <cstdio>

#include "apps/bench.h"
#include "apps/bench_stats.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/model_path.h"
#include "deepinfer/llm.h"

namespace deepinfer {
namespace {

struct LatencyFlags {
  std::string model;
  int input_len = 32;
  int output_len = 128;
  int batch_size = 8;
  int warmup = 1;
  int iterations = 5;
  bool as_json = false;
};

struct Iteration {
  Status status;
  double latency_s = 0;
  double prefill_tokens_per_s = 0;  // prompts of the batch until the last first token
  double decode_tokens_per_s = 0;   // all streams, from the last first token to the end
};

Iteration RunIteration(Engine* engine, const LatencyFlags& flags, int iteration) {
  TimingBoard board(static_cast<size_t>(flags.batch_size));
  const double begin = NowSeconds();
  for (int i = 0; i < flags.batch_size; ++i) {
    Request request;
    request.prompt =
        SyntheticPrompt(static_cast<uint64_t>(iteration), i, flags.input_len, engine->limits());
    request.sampling.temperature = 0.0F;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = flags.output_len;
    request.sampling.detokenize = false;
    board.Submit(engine, static_cast<size_t>(i), std::move(request));
  }
  board.WaitAll();
  Iteration out;
  const double started = board.AllStarted();
  double end = 0;
  int64_t late = 0;  // tokens that arrived after every stream had started
  for (const RequestTimes& times : board.times()) {
    if (times.failed) {
      out.status = Invalid("a request failed: " + times.error);
      return out;
    }
    end = std::max(end, times.last);
    double at = times.first;
    for (size_t i = 0; i < times.gaps.size(); ++i) {
      at += times.gaps[i];
      late += at > started ? times.gap_tokens[i] : 0;
    }
  }
  out.latency_s = end - begin;
  out.prefill_tokens_per_s =
      static_cast<double>(flags.input_len) * flags.batch_size / (started - begin);
  if (late > 0) out.decode_tokens_per_s = static_cast<double>(late) / (end - started);
  return out;
}

void Report(const LatencyFlags& flags, const std::vector<Iteration>& iterations) {
  std::vector<double> latency, prefill, decode;
  for (const Iteration& i : iterations) {
    latency.push_back(i.latency_s);
    prefill.push_back(i.prefill_tokens_per_s);
    decode.push_back(i.decode_tokens_per_s);
  }
  const Summary seconds = Summarize(latency);
  const double prefill_rate = Summarize(prefill).median;
  const double decode_rate = Summarize(decode).median;
  if (!flags.as_json) {
    std::printf("batch %d, %d prompt tokens, %d output tokens, %zu iterations\n", flags.batch_size,
                flags.input_len, flags.output_len, iterations.size());
    std::printf("latency   median %.4f s, p99 %.4f s\n", seconds.median, seconds.p99);
    std::printf("prefill   %.1f tokens/s\n", prefill_rate);
    std::printf("decode    %.1f tokens/s\n", decode_rate);
    return;
  }
  Json out = Json::Object();
  out.Set("batch_size", Json::Int(flags.batch_size));
  out.Set("input_len", Json::Int(flags.input_len));
  out.Set("output_len", Json::Int(flags.output_len));
  out.Set("latency_s", ToJson(seconds));
  out.Set("prefill_tokens_per_s", Json::Double(prefill_rate));
  out.Set("decode_tokens_per_s", Json::Double(decode_rate));
  std::printf("%s\n", out.Dump().c_str());
}

}  // namespace

int RunBenchLatency(int argc, char** argv) {
  LatencyFlags flags;
  LlmOptions options;
  CommandLine line("deepinfer bench latency", "speed of one batch of equal requests");
  line.Add("--model,-m,model", &flags.model, "model name, directory or file");
  line.Add("--input-len", &flags.input_len, "prompt tokens of a request");
  line.Add("--output-len", &flags.output_len, "tokens generated for a request");
  line.Add("--batch-size", &flags.batch_size, "requests at once");
  line.Add("--num-iters-warmup", &flags.warmup, "iterations that are not counted");
  line.Add("--num-iters", &flags.iterations, "iterations that are");
  line.AddSwitch("--json", &flags.as_json, "print one JSON object");
  AddEngineFlags(&line, &options.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (const Status status = Engine::CheckConfig(options.engine); !status.ok()) {
    return FailUsage("bench latency", status);
  }
  if (flags.input_len < 1 || flags.output_len < 1 || flags.batch_size < 1 || flags.iterations < 1 ||
      flags.warmup < 0) {
    return FailUsage("bench latency",
                     Invalid("lengths, batch size and iterations must be 1 or more"));
  }
  Result<std::string> path = ResolveModelPath(flags.model);
  if (!path.ok()) return Fail("bench latency", path.status());
  options.model = *path;
  Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
  if (!llm.ok()) return Fail("bench latency", llm.status());
  std::vector<Iteration> counted;
  for (int i = 0; i < flags.warmup + flags.iterations; ++i) {
    Iteration iteration = RunIteration(&(*llm)->engine(), flags, i);
    if (!iteration.status.ok()) return Fail("bench latency", iteration.status);
    if (i >= flags.warmup) counted.push_back(std::move(iteration));
  }
  Report(flags, counted);
  return kExitOk;
}

}  // namespace deepinfer
