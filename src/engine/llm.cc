#include "deepinfer/llm.h"

#include <algorithm>
#include <utility>

#include "base/bounded_queue.h"
#include "base/task_pool.h"
#include "engine/create_engine.h"
#include "models/loaded_model.h"

namespace deepinfer {
namespace {

// Prompts of one Generate call that are in the engine at once; the rest is sent as these end, so
// that a million prompts need no million queue entries.
constexpr size_t kOpenMax = 1024;

// Folds the deltas of one prompt into its output, on the engine thread. The caller looks at the
// output only after its index came out of `finished`.
class FoldSink final : public OutputSink {
 public:
  FoldSink(size_t index, GenerateOutput* output, std::shared_ptr<BoundedQueue<size_t>> finished)
      : index_(index), output_(output), finished_(std::move(finished)) {}

  void OnOutput(OutputDelta delta) override {
    Completion& to = output_->completions[static_cast<size_t>(delta.sample)];
    to.text += delta.text;
    to.token_ids.insert(to.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(to.logprobs));
    if (!delta.prompt_logprobs.empty()) output_->prompt_logprobs = std::move(delta.prompt_logprobs);
    if (delta.finish != FinishReason::kNone) {
      to.finish = delta.finish;
      to.stop_text = std::move(delta.stop_text);
      to.stop_token = delta.stop_token;
      output_->usage.prompt_tokens = delta.usage.prompt_tokens;
      output_->usage.cached_tokens = delta.usage.cached_tokens;
      output_->usage.completion_tokens += delta.usage.completion_tokens;
      if (delta.finish == FinishReason::kError) {
        output_->status = {static_cast<StatusCode>(delta.error_code), std::move(delta.error)};
      } else if (delta.finish == FinishReason::kCancelled) {
        output_->status = {StatusCode::kCancelled, "the request was cancelled"};
      }
    }
    if (!delta.last) return;
    // This object may be gone as soon as the index is out, the queue only when Push returned.
    const std::shared_ptr<BoundedQueue<size_t>> finished = finished_;
    finished->TryPush(size_t{index_});
  }

 private:
  const size_t index_;
  GenerateOutput* const output_;
  // shared: Generate and the engine thread inside the last OnOutput.
  const std::shared_ptr<BoundedQueue<size_t>> finished_;
};

Status ParseDtype(const std::string& dtype, ComputeDtype* out) {
  if (dtype == "auto") {
    *out = ComputeDtype::kAuto;
  } else if (dtype == "float32") {
    *out = ComputeDtype::kFloat32;
  } else {
    return Invalid(Format("dtype is '{}'; it must be auto or float32", dtype)).WithParam("dtype");
  }
  return {};
}

}  // namespace

struct LLM::Impl {
  std::unique_ptr<LoadedModel> loaded;  // before the engine that uses it
  std::unique_ptr<Engine> engine;

  Result<Request> ToRequest(const Prompt& prompt, const SamplingParams& sampling) const;
  std::string EchoText(const Prompt& prompt, const Request& request) const;
};

Result<Request> LLM::Impl::ToRequest(const Prompt& prompt, const SamplingParams& sampling) const {
  Request request;
  request.sampling = sampling;
  if (!prompt.token_ids.empty()) {
    request.prompt = prompt.token_ids;
  } else if (loaded->tokenizer == nullptr) {
    return Invalid("this model has no tokenizer; give token ids instead of text")
        .WithParam("prompt");
  } else {
    request.prompt = loaded->tokenizer->Encode(prompt.text);
  }
  return request;
}

// What stands before the completion when sampling.echo asks for the prompt.
std::string LLM::Impl::EchoText(const Prompt& prompt, const Request& request) const {
  if (!request.sampling.echo || !request.sampling.detokenize) return {};
  if (prompt.token_ids.empty() || loaded->tokenizer == nullptr) return prompt.text;
  return loaded->tokenizer->Decode(request.prompt, request.sampling.skip_special_tokens);
}

LLM::LLM(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LLM::~LLM() = default;

Result<std::unique_ptr<LLM>> LLM::Create(const LlmOptions& options) {
  DI_TRY(Engine::CheckConfig(options.engine));
  LoadOptions load;
  load.path = options.model;
  load.backend.device = options.engine.device;
  load.backend.threads = options.engine.threads;
  load.backend.cpu_isa = options.engine.cpu_isa;
  load.backend.weight_cache_bytes =
      options.engine.weight_cache_bytes == 0 ? kWeightCacheAuto : options.engine.weight_cache_bytes;
  DI_ASSIGN(load.backend.row_io, ParseRowIo(options.engine.engram_io));
  DI_TRY(ParseDtype(options.engine.dtype, &load.backend.dtype));
  TaskPool tasks(1);
  load.tasks = &tasks;
  auto impl = std::make_unique<Impl>();
  DI_ASSIGN(impl->loaded, OpenModel(load));
  DI_ASSIGN(impl->engine, CreateEngine(options.engine, impl->loaded.get()));
  return std::unique_ptr<LLM>(new LLM(std::move(impl)));
}

std::vector<GenerateOutput> LLM::Generate(std::span<const Prompt> prompts,
                                          const SamplingParams& sampling) {
  std::vector<GenerateOutput> outputs(prompts.size());
  std::vector<std::unique_ptr<FoldSink>> sinks(prompts.size());
  const auto finished = std::make_shared<BoundedQueue<size_t>>(kOpenMax);
  size_t open = 0;
  const auto wait_for_one = [&] {
    const size_t index = *finished->Pop();
    sinks[index].reset();
    GenerateOutput& output = outputs[index];
    if (!output.status.ok()) output.completions.clear();
    --open;
  };
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateOutput& output = outputs[i];
    Result<Request> request = impl_->ToRequest(prompts[i], sampling);
    if (!request.ok()) {
      output.status = request.status();
      continue;
    }
    output.prompt_token_ids = request->prompt;
    const int n = std::clamp(sampling.n, 1, 128);
    output.completions.resize(static_cast<size_t>(n));
    const std::string echo = impl_->EchoText(prompts[i], *request);
    for (int s = 0; s < n; ++s) {
      output.completions[static_cast<size_t>(s)].index = s;
      output.completions[static_cast<size_t>(s)].text = echo;
    }
    if (open == kOpenMax) wait_for_one();
    sinks[i] = std::make_unique<FoldSink>(i, &output, finished);
    Result<RequestId> id = impl_->engine->Submit(*request, sinks[i].get());
    while (!id.ok() && id.status().code() == StatusCode::kExhausted && open > 0) {
      wait_for_one();  // another caller fills the queue; ours move on
      id = impl_->engine->Submit(*request, sinks[i].get());
    }
    if (id.ok()) {
      ++open;
    } else {
      output.status = id.status();
      output.completions.clear();
    }
  }
  while (open > 0) wait_for_one();
  return outputs;
}

std::vector<GenerateOutput> LLM::Generate(std::span<const std::string> prompts,
                                          const SamplingParams& sampling) {
  std::vector<Prompt> texts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) texts[i].text = prompts[i];
  return Generate(texts, sampling);
}

Engine& LLM::engine() { return *impl_->engine; }
const LoadedModel& LLM::model() const { return *impl_->loaded; }

}  // namespace deepinfer
