// `deepinfer generate`: answers to prompts on the command line, or a JSONL file of them.
#include <cstdio>
#include <vector>

#include "apps/bench_stats.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/model_path.h"
#include "apps/prompt_run.h"
#include "apps/sampling_flags.h"
#include "apps/stream_sink.h"
#include "deepinfer/llm.h"

namespace deepinfer {
namespace {

struct GenerateFlags {
  std::string model;
  std::vector<std::string> prompts;
  std::string input, output;
  bool resume = false;
  bool raw = false;
};

Result<Request> BuildPrompt(const GenerateFlags& flags, const RequestBuilder& builder,
                            const std::string& prompt) {
  if (!builder.has_chat_format() || flags.raw) return builder.FromText(prompt, Json());
  Json messages = Json::Array();
  messages.Push(UserMessage(prompt));
  return builder.FromMessages(messages, Json());
}

// All prompts run at once; they are printed one after the other.
int RunPrompts(const GenerateFlags& flags, Engine* engine, const RequestBuilder& builder) {
  std::vector<Request> requests;
  for (const std::string& prompt : flags.prompts) {
    Result<Request> request = BuildPrompt(flags, builder, prompt);
    if (!request.ok()) return Fail("generate", request.status());
    requests.push_back(*std::move(request));
  }
  std::vector<StreamSink> sinks(requests.size());  // each outlives its request
  std::vector<RequestId> ids(requests.size());
  std::vector<Status> refused(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Result<RequestId> id = engine->Submit(std::move(requests[i]), &sinks[i]);
    refused[i] = id.status();
    if (id.ok()) ids[i] = *id;
  }
  int code = kExitOk;
  for (size_t i = 0; i < sinks.size(); ++i) {
    if (sinks.size() > 1) std::printf("%s>>> %s\n", i == 0 ? "" : "\n", flags.prompts[i].c_str());
    const StreamResult result = refused[i].ok() ? sinks[i].Print(stdout) : StreamResult{refused[i]};
    if (!result.status.ok()) {
      code = Fail("generate", result.status);
      if (std::ferror(stdout) != 0) break;
      continue;
    }
    std::fprintf(stderr, "%s\n", result.SpeedLine().c_str());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    if (!refused[i].ok()) continue;
    engine->Cancel(ids[i]);  // over already, unless the output broke
    sinks[i].AwaitLast();
  }
  return code;
}

int RunFile(const GenerateFlags& flags, Engine* engine, const RequestBuilder& builder) {
  const PromptFileJob job = {.input = flags.input,
                             .output = flags.output.empty() ? "-" : flags.output,
                             .existing = flags.resume ? PromptFileJob::Existing::kResume
                                                      : PromptFileJob::Existing::kRefuse};
  const Result<PromptFileTotals> totals = RunPromptFile(job, engine, builder);
  if (!totals.ok()) return Fail("generate", totals.status());
  const auto tokens = static_cast<double>(totals->completion_tokens);
  std::fprintf(stderr,
               "%lld lines in %.1f s (%lld kept from before, %lld failed), %lld prompt tokens, "
               "%lld generated, %.0f generated tokens/s\n",
               static_cast<long long>(totals->lines), totals->seconds,
               static_cast<long long>(totals->resumed), static_cast<long long>(totals->failed),
               static_cast<long long>(totals->prompt_tokens),
               static_cast<long long>(totals->completion_tokens),
               totals->seconds > 0 ? tokens / totals->seconds : 0.0);
  return totals->failed == 0 ? kExitOk : kExitInput;
}

Status CheckFlags(const GenerateFlags& flags, const CommandLine& line) {
  if (flags.prompts.empty() == flags.input.empty()) {
    return Invalid("give either --prompt (may be repeated) or --input FILE");
  }
  if (flags.input.empty() && (!flags.output.empty() || flags.resume)) {
    return Invalid("--output and --resume belong to --input");
  }
  if (flags.input.empty() && (line.Given("logprobs") || line.Given("prompt-logprobs"))) {
    return Invalid("--logprobs and --prompt-logprobs belong to --input: only a file shows them");
  }
  if (!flags.input.empty() && flags.raw) return Invalid("--raw belongs to --prompt");
  if (flags.resume && (flags.output.empty() || flags.output == "-")) {
    return Invalid("--resume needs --output FILE");
  }
  return {};
}

}  // namespace

int RunGenerate(int argc, char** argv) {
  GenerateFlags flags;
  LlmOptions options;
  SamplingFlags sampling;
  CommandLine line("deepinfer generate", "generate text offline");
  line.Add("--model,-m", &flags.model, "model name, directory or file; empty: the default model");
  line.Add("--prompt,-p", &flags.prompts,
           "a prompt (may be repeated); a chat turn when the model "
           "has a chat template");
  line.AddSwitch("--raw", &flags.raw, "no chat template: continue the prompt as it is");
  line.Add("--input,-i", &flags.input,
           "JSONL: {\"id\"?, \"prompt\": text or [ids] | \"messages\": [...], \"params\"?: {}}");
  line.Add("--output,-o", &flags.output, "JSONL of results, in input order");
  line.AddSwitch("--resume", &flags.resume, "go on with an --output that a stopped run left");
  sampling.AddTo(&line);
  sampling.AddReportsTo(&line);
  AddEngineFlags(&line, &options.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (const Status status = CheckFlags(flags, line); !status.ok()) {
    return FailUsage("generate", status);
  }
  if (const Status status = Engine::CheckConfig(options.engine); !status.ok()) {
    return FailUsage("generate", status);
  }
  Result<Json> params = sampling.ToParams();
  if (!params.ok()) return FailUsage("generate", params.status());
  // A person who asks a question wants the whole answer; a batch keeps the documented default.
  if (!flags.prompts.empty() && params->Find("max_tokens") == nullptr) {
    params->Set("max_tokens", Json::Int(512));
  }
  Result<std::string> path = ResolveModelPath(flags.model);
  if (!path.ok()) return Fail("generate", path.status());
  options.model = *path;
  Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
  if (!llm.ok()) return Fail("generate", llm.status());
  Engine* engine = &(*llm)->engine();
  const RequestBuilder builder(&(*llm)->model(), *std::move(params), options.engine.max_logprobs);
  return flags.prompts.empty() ? RunFile(flags, engine, builder)
                               : RunPrompts(flags, engine, builder);
}

}  // namespace deepinfer
