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

struct ThroughputFlags {
  std::string model;
  int num_prompts = 256;
  int input_len = 256;
  int output_len = 64;
  int prefix_len = 0;
  int64_t seed = 0;
  bool as_json = false;
};

Request MakeRequest(const ThroughputFlags& flags, int index, const EngineLimits& limits) {
  Request request;
  const auto seed = static_cast<uint64_t>(flags.seed);
  request.prompt = SyntheticPrompt(seed, -1, flags.prefix_len, limits);  // shared by all
  const std::vector<TokenId> own = SyntheticPrompt(seed, index, flags.input_len, limits);
  request.prompt.insert(request.prompt.end(), own.begin(), own.end());
  request.sampling.temperature = 1.0F;
  request.sampling.seed = flags.seed + index;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = flags.output_len;
  request.sampling.detokenize = false;
  return request;
}

int Report(const ThroughputFlags& flags, const TimingBoard& board, double seconds,
           const EngineStats& stats) {
  int64_t output = 0;
  int64_t failed = 0;
  for (const RequestTimes& times : board.times()) {
    output += times.tokens;
    failed += times.failed ? 1 : 0;
  }
  const double input =
      static_cast<double>(flags.num_prompts) * (flags.prefix_len + flags.input_len);
  Json out = Json::Object();
  out.Set("num_prompts", Json::Int(flags.num_prompts));
  out.Set("failed", Json::Int(failed));
  out.Set("elapsed_s", Json::Double(seconds));
  out.Set("requests_per_s", Json::Double(flags.num_prompts / seconds));
  out.Set("total_tokens_per_s", Json::Double((input + static_cast<double>(output)) / seconds));
  out.Set("output_tokens_per_s", Json::Double(static_cast<double>(output) / seconds));
  out.Set("prefix_cache_hit_tokens", Json::Int(stats.prefix_cache_hits));
  out.Set("preemptions", Json::Int(stats.preemptions));
  if (flags.as_json) {
    std::printf("%s\n", out.Dump().c_str());
  } else {
    for (const auto& [key, value] : out.members()) {
      std::printf("%-24s %s\n", key.c_str(), value.Dump().c_str());
    }
  }
  return failed == 0 ? kExitOk : kExitInput;
}

}  // namespace

int RunBenchThroughput(int argc, char** argv) {
  ThroughputFlags flags;
  LlmOptions options;
  CommandLine line("deepinfer bench throughput", "tokens per second of many requests at once");
  line.Add("--model,-m,model", &flags.model, "model name, directory or file");
  line.Add("--num-prompts", &flags.num_prompts, "requests");
  line.Add("--input-len", &flags.input_len, "own prompt tokens of a request");
  line.Add("--prefix-len", &flags.prefix_len, "prompt tokens that all requests share");
  line.Add("--output-len", &flags.output_len, "tokens generated for a request");
  line.Add("--seed", &flags.seed, "of prompts and sampling");
  line.AddSwitch("--json", &flags.as_json, "print one JSON object");
  AddEngineFlags(&line, &options.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (const Status status = Engine::CheckConfig(options.engine); !status.ok()) {
    return FailUsage("bench throughput", status);
  }
  if (flags.num_prompts < 1 || flags.input_len < 1 || flags.output_len < 1 ||
      flags.prefix_len < 0) {
    return FailUsage("bench throughput",
                     Invalid("--num-prompts, --input-len and --output-len must be "
                             "1 or more, --prefix-len 0 or more"));
  }
  Result<std::string> path = ResolveModelPath(flags.model);
  if (!path.ok()) return Fail("bench throughput", path.status());
  options.model = *path;
  Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
  if (!llm.ok()) return Fail("bench throughput", llm.status());
  Engine* engine = &(*llm)->engine();
  TimingBoard board(static_cast<size_t>(flags.num_prompts));
  const double begin = NowSeconds();
  for (int i = 0; i < flags.num_prompts; ++i) {
    board.Submit(engine, static_cast<size_t>(i), MakeRequest(flags, i, engine->limits()));
  }
  board.WaitAll();
  return Report(flags, board, NowSeconds() - begin, engine->Stats());
}

}  // namespace deepinfer
