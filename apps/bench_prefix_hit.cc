#include <cinttypes>
#include <cstdio>

#include "apps/bench.h"
#include "apps/bench_stats.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/model_path.h"
#include "backend/sparse_ops.h"
#include "base/format.h"
#include "deepinfer/llm.h"
#include "models/loaded_model.h"

namespace deepinfer {
namespace {

struct PrefixHitFlags {
  std::string model;
  int context_len = 4096;
  int context_len_long = 65536;
  int input_len = 256;
  int repeat = 7;
  bool as_json = false;
};

// One request that generates a single token.
struct Shot {
  Status status;
  double ttft_s = 0;
  double index_scan_s = 0;  // of it, in the stages that score index keys and choose among them
  int64_t tokens = 0;       // computed in its steps, replayed ones included
  int64_t cached_tokens = 0;
};

// The figures of one context length: medians of the hits.
struct Measured {
  int context_len = 0;
  double cold_s = 0;
  std::vector<double> ttft_s, index_scan_s, rest_s;
  int64_t computed = -1;  // tokens computed by a hit; the same each time
  int64_t cached = 0;
  bool steady = true;  // every hit computed the same number
};

class HitBench {
 public:
  HitBench(LLM* llm, const PrefixHitFlags& flags) : llm_(llm), flags_(flags) {}

  // Puts the context into the cache.
  Status Fill(Measured* measured) {
    const Shot shot = Run(Context(measured->context_len));
    DI_TRY(shot.status);
    measured->cold_s = shot.ttft_s;
    return {};
  }

  // A request that goes on where the context ends, with tokens of its own.
  Status Hit(int index, bool counted, Measured* measured) {
    std::vector<TokenId> prompt = Context(measured->context_len);
    const std::vector<TokenId> own =
        SyntheticPrompt(2, index, flags_.input_len, llm_->engine().limits());
    prompt.insert(prompt.end(), own.begin(), own.end());
    const Shot shot = Run(std::move(prompt));
    DI_TRY(shot.status);
    if (shot.cached_tokens == 0) {
      return Invalid(
          Format("no hit at {} tokens; a larger --kv-cache-memory-bytes or "
                 "--state-cache-memory-bytes may keep the prefix",
                 measured->context_len));
    }
    if (!counted) return {};
    measured->steady &= measured->computed < 0 || measured->computed == shot.tokens;
    measured->computed = shot.tokens;
    measured->cached = shot.cached_tokens;
    measured->ttft_s.push_back(shot.ttft_s);
    measured->index_scan_s.push_back(shot.index_scan_s);
    measured->rest_s.push_back(shot.ttft_s - shot.index_scan_s);
    return {};
  }

 private:
  std::vector<TokenId> Context(int length) const {
    return SyntheticPrompt(1, 0, length, llm_->engine().limits());
  }

  int64_t IndexScanUs() const {
    const SparseOps* ops = llm_->model().backend->sparse_ops();
    return ops == nullptr ? 0 : ops->index_scan_us();
  }

  // Tokens of all steps so far.
  static int64_t StepTokens(const EngineStats& stats) {
    for (const HistogramSnapshot& histogram : stats.histograms) {
      if (histogram.name == "iteration_tokens_total") return static_cast<int64_t>(histogram.sum);
    }
    return 0;
  }

  Shot Run(std::vector<TokenId> prompt) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0.0F;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = 1;
    request.sampling.detokenize = false;
    const EngineStats before = llm_->engine().Stats();
    const int64_t scan_before = IndexScanUs();
    TimingBoard board(1);
    board.Submit(&llm_->engine(), 0, std::move(request));
    board.WaitAll();
    const RequestTimes& times = board.times()[0];
    const EngineStats after = llm_->engine().Stats();
    Shot shot;
    if (times.failed) shot.status = Invalid("a request failed: " + times.error);
    shot.ttft_s = times.first - times.submitted;
    shot.index_scan_s = static_cast<double>(IndexScanUs() - scan_before) * 1e-6;
    shot.tokens = StepTokens(after) - StepTokens(before);
    shot.cached_tokens = after.prefix_cache_hits - before.prefix_cache_hits;
    return shot;
  }

  LLM* const llm_;
  const PrefixHitFlags& flags_;
};

Json ToJson(const Measured& measured) {
  Json out = Json::Object();
  out.Set("context_len", Json::Int(measured.context_len));
  out.Set("cold_ttft_s", Json::Double(measured.cold_s));
  out.Set("cached_tokens", Json::Int(measured.cached));
  out.Set("computed_tokens", Json::Int(measured.computed));
  out.Set("ttft_s", Json::Double(Summarize(measured.ttft_s).median));
  out.Set("index_scan_s", Json::Double(Summarize(measured.index_scan_s).median));
  out.Set("ttft_without_index_scan_s", Json::Double(Summarize(measured.rest_s).median));
  return out;
}

void Report(const PrefixHitFlags& flags, const std::vector<Measured>& measured) {
  std::vector<double> ratios;  // of neighbouring hits, which saw the same machine
  for (size_t i = 0; i < measured[0].rest_s.size(); ++i) {
    ratios.push_back(measured[1].rest_s[i] / measured[0].rest_s[i]);
  }
  const bool same =
      measured[0].computed == measured[1].computed && measured[0].steady && measured[1].steady;
  Json out = Json::Object();
  out.Set("input_len", Json::Int(flags.input_len));
  out.Set("short", ToJson(measured[0]));
  out.Set("long", ToJson(measured[1]));
  out.Set("same_computed_tokens", Json::Bool(same));
  out.Set("ratio_without_index_scan", Json::Double(Summarize(ratios).median));
  if (flags.as_json) {
    std::printf("%s\n", out.Dump().c_str());
    return;
  }
  std::printf("%d tokens after a cached context, medians of %d hits\n", flags.input_len,
              flags.repeat);
  for (const Measured& m : measured) {
    std::printf("context %-8d computed %" PRId64
                " tokens, first token after %.4f s, of it index "
                "scan %.4f s, rest %.4f s (cold %.2f s)\n",
                m.context_len, m.computed, Summarize(m.ttft_s).median,
                Summarize(m.index_scan_s).median, Summarize(m.rest_s).median, m.cold_s);
  }
  std::printf("same number of tokens %s, rest long / short %.3f\n", same ? "yes" : "no",
              Summarize(ratios).median);
}

Status Measure(LLM* llm, const PrefixHitFlags& flags, std::vector<Measured>* measured) {
  HitBench bench(llm, flags);
  for (const int length : {flags.context_len, flags.context_len_long}) {
    measured->push_back({.context_len = length});
    DI_TRY(bench.Fill(&measured->back()));
  }
  for (int i = 0; i <= flags.repeat; ++i) {
    for (Measured& m : *measured) DI_TRY(bench.Hit(i, i > 0, &m));
  }
  return {};
}

}  // namespace

int RunBenchPrefixHit(int argc, char** argv) {
  PrefixHitFlags flags;
  LlmOptions options;
  options.engine.enable_prefix_caching = true;
  CommandLine line("deepinfer bench prefix-hit",
                   "first token after a cached context, short and long, in turn");
  line.Add("--model,-m,model", &flags.model, "model name, directory or file");
  line.Add("--context-len", &flags.context_len, "tokens of the short context");
  line.Add("--context-len-long", &flags.context_len_long, "tokens of the long one");
  line.Add("--input-len", &flags.input_len, "new tokens after the context");
  line.Add("--repeat", &flags.repeat, "hits that are counted, after one that is not");
  line.AddSwitch("--json", &flags.as_json, "print one JSON object");
  AddEngineFlags(&line, &options.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (const Status status = Engine::CheckConfig(options.engine); !status.ok()) {
    return FailUsage("bench prefix-hit", status);
  }
  if (flags.context_len < 1 || flags.context_len_long < 1 || flags.input_len < 1 ||
      flags.repeat < 1) {
    return FailUsage("bench prefix-hit", Invalid("lengths and --repeat must be 1 or more"));
  }
  Result<std::string> path = ResolveModelPath(flags.model);
  if (!path.ok()) return Fail("bench prefix-hit", path.status());
  options.model = *path;
  Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
  if (!llm.ok()) return Fail("bench prefix-hit", llm.status());
  std::vector<Measured> measured;
  if (const Status status = Measure(llm->get(), flags, &measured); !status.ok()) {
    return Fail("bench prefix-hit", status);
  }
  Report(flags, measured);
  return kExitOk;
}

}  // namespace deepinfer
