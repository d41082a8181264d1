#include <cstdio>

#include "apps/bench.h"
#include "apps/bench_stats.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/model_path.h"
#include "base/format.h"
#include "deepinfer/llm.h"

namespace deepinfer {
namespace {

struct SpeculationFlags {
  std::string model;
  std::vector<std::string> prompts;
  int output_len = 128;
  int repeat = 7;
  float temperature = 0.0F;
  bool as_json = false;
};

const char* const kPrompts[] = {
    "Once upon a time there was a little girl who lived near the sea.",
    "Question: How many legs do three cats and two birds have together?\nAnswer:",
    "The rain had stopped, and the two friends went out to look for",
    "Tom has 12 apples. He gives 4 of them to his sister and buys 7 more.",
};

// One pass over all prompts, one after the other: a single stream.
struct Pass {
  Status status;
  std::vector<std::vector<TokenId>> tokens;
  double tokens_per_s = 0;
};

Pass RunPass(LLM* llm, const SpeculationFlags& flags) {
  Pass pass;
  SamplingParams sampling;
  sampling.temperature = flags.temperature;
  sampling.seed = 1;
  sampling.ignore_eos = true;
  sampling.max_tokens = flags.output_len;
  int64_t count = 0;
  const double begin = NowSeconds();
  for (const std::string& prompt : flags.prompts) {
    std::vector<GenerateOutput> outputs = llm->Generate(std::vector<std::string>{prompt}, sampling);
    if (!outputs[0].status.ok()) {
      pass.status = outputs[0].status;
      return pass;
    }
    pass.tokens.push_back(std::move(outputs[0].completions[0].token_ids));
    count += static_cast<int64_t>(pass.tokens.back().size());
  }
  pass.tokens_per_s = static_cast<double>(count) / (NowSeconds() - begin);
  return pass;
}

struct Measured {
  std::vector<double> plain, drafted;  // tokens per second of every pass
  bool equal = true;
  EngineStats stats;  // of all drafted passes
};

int Report(const SpeculationFlags& flags, const EngineConfig& config, const Measured& measured) {
  const EngineStats& stats = measured.stats;
  std::vector<double> ratios;
  for (size_t i = 0; i < measured.plain.size(); ++i) {
    ratios.push_back(measured.drafted[i] / measured.plain[i]);
  }
  // Rows that verified nothing (the first of a sample, and where no draft was found) emit one token
  // each and are steps like the others.
  const int64_t passes = flags.repeat + 1;
  const int64_t prefills = passes * static_cast<int64_t>(flags.prompts.size());
  const int64_t decodes = stats.generation_tokens - prefills - stats.spec_accepted_tokens;
  const auto ratio = [](int64_t a, int64_t b) {
    return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
  };
  Json out = Json::Object();
  out.Set("method", Json::String(config.speculative.method));
  out.Set("num_speculative_tokens", Json::Int(config.speculative.num_speculative_tokens));
  out.Set("verify", Json::String(config.speculative.verify));
  out.Set("verifications", Json::Int(stats.spec_drafts));
  out.Set("emitted_per_verification",
          Json::Double(ratio(stats.spec_accepted_tokens + stats.spec_drafts, stats.spec_drafts)));
  out.Set("emitted_per_decode_step",
          Json::Double(ratio(stats.generation_tokens - prefills, decodes)));
  out.Set("acceptance", Json::Double(ratio(stats.spec_accepted_tokens, stats.spec_draft_tokens)));
  Json positions = Json::Array();
  for (int i = 0; i < config.speculative.num_speculative_tokens; ++i) {
    positions.Push(Json::Double(
        ratio(stats.spec_accepted_per_position[static_cast<size_t>(i)], stats.spec_drafts)));
  }
  out.Set("acceptance_by_position", std::move(positions));
  out.Set("tokens_per_s_without", Json::Double(Summarize(measured.plain).median));
  out.Set("tokens_per_s_with", Json::Double(Summarize(measured.drafted).median));
  out.Set("speed_up", Json::Double(Summarize(ratios).median));
  out.Set("same_tokens", Json::Bool(measured.equal));
  if (flags.as_json) {
    std::printf("%s\n", out.Dump().c_str());
  } else {
    for (const auto& [key, value] : out.members()) {
      std::printf("%-26s %s\n", key.c_str(), value.Dump().c_str());
    }
  }
  return measured.equal || config.speculative.verify == "rejection" ? kExitOk : kExitInput;
}

// Passes without and with drafts in turn, so that both see the same machine; the first is not
// counted.
Result<Measured> Measure(LLM* plain, LLM* drafted, const SpeculationFlags& flags) {
  Measured measured;
  for (int i = 0; i <= flags.repeat; ++i) {
    const Pass without = RunPass(plain, flags);
    DI_TRY(without.status);
    const Pass with = RunPass(drafted, flags);
    DI_TRY(with.status);
    measured.equal &= without.tokens == with.tokens;
    if (i == 0) continue;
    measured.plain.push_back(without.tokens_per_s);
    measured.drafted.push_back(with.tokens_per_s);
  }
  measured.stats = drafted->engine().Stats();
  return measured;
}

Result<Measured> LoadAndMeasure(const LlmOptions& options, const SpeculationFlags& flags) {
  LlmOptions without = options;
  without.engine.speculative.method = "none";
  DI_ASSIGN(const std::unique_ptr<LLM> plain, LLM::Create(without));
  DI_ASSIGN(const std::unique_ptr<LLM> drafted, LLM::Create(options));
  return Measure(plain.get(), drafted.get(), flags);
}

}  // namespace

int RunBenchSpeculation(int argc, char** argv) {
  SpeculationFlags flags;
  LlmOptions options;
  CommandLine line("deepinfer bench speculation", "one stream with drafts and without, in turn");
  line.Add("--model,-m,model", &flags.model, "model name, directory or file");
  line.Add("--prompt", &flags.prompts, "text to continue, may be repeated; some by default");
  line.Add("--output-len", &flags.output_len, "tokens generated for a prompt");
  line.Add("--repeat", &flags.repeat, "passes that are counted, after one that is not");
  line.Add("--temperature", &flags.temperature, "0 is greedy");
  line.AddSwitch("--json", &flags.as_json, "print one JSON object");
  options.engine.speculative.method = "auto";
  AddEngineFlags(&line, &options.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (flags.output_len < 2 || flags.repeat < 1) {
    return FailUsage("bench speculation",
                     Invalid("--output-len must be 2 or more and --repeat 1 or more"));
  }
  if (const Status status = Engine::CheckConfig(options.engine); !status.ok()) {
    return FailUsage("bench speculation", status);
  }
  if (flags.prompts.empty()) flags.prompts.assign(std::begin(kPrompts), std::end(kPrompts));
  Result<std::string> path = ResolveModelPath(flags.model);
  if (!path.ok()) return Fail("bench speculation", path.status());
  options.model = *path;
  const Result<Measured> measured = LoadAndMeasure(options, flags);
  if (!measured.ok()) return Fail("bench speculation", measured.status());
  if (measured->stats.spec_drafts == 0) {
    return Fail("bench speculation",
                Invalid("nothing was drafted; this model has no draft layers, try --spec-method "
                        "ngram"));
  }
  return Report(flags, options.engine, *measured);
}

}  // namespace deepinfer
