#include "apps/request_builder.h"

#include "api/chat_prompt.h"
#include "api/error.h"
#include "api/output_grammar.h"

namespace deepinfer {

RequestBuilder::RequestBuilder(const LoadedModel* model, Json params, int max_logprobs)
    : model_(model),
      params_(std::move(params)),
      style_(ProbeOutputStyle(model->tokenizer.get(), model->chat_template.get(),
                              model->prompt_profile)) {
  const GenerationDefaults& g = model->generation;
  defaults_ = {.temperature = g.temperature,
               .top_p = g.top_p,
               .min_p = g.min_p,
               .repetition_penalty = g.repetition_penalty,
               .top_k = g.top_k,
               .max_tokens = 16,  // vLLM's SamplingParams
               .top_logprobs_max = max_logprobs};
}

Result<Request> RequestBuilder::WithSampling(std::vector<TokenId> ids,
                                             const Json& line_params) const {
  Json merged = params_;
  for (const auto& [key, value] : line_params.members()) merged.Set(key, value);
  Request request;
  request.prompt = std::move(ids);
  DI_ASSIGN(request.sampling, ParseSampling(merged, defaults_));
  DI_ASSIGN(request.sampling.logprobs,
            ReadLogprobCount(merged, "logprobs", defaults_.top_logprobs_max));
  DI_ASSIGN(request.sampling.prompt_logprobs,
            ReadLogprobCount(merged, "prompt_logprobs", defaults_.top_logprobs_max));
  DI_ASSIGN(request.cache_salt, merged.GetString("cache_salt", ""));
  DI_ASSIGN(const int64_t priority, merged.GetInt("priority", 0));
  if (priority < INT32_MIN || priority > INT32_MAX) {
    return Invalid(Format("\"priority\" is {}, allowed is {}..{}", priority, INT32_MIN, INT32_MAX))
        .WithParam("priority");
  }
  request.priority = static_cast<int>(priority);
  const std::string_view known[] = {"logprobs", "prompt_logprobs", "cache_salt", "priority"};
  // Offline nobody reads a warning of line 812,345: a misspelt parameter is an error here.
  const std::vector<std::string> unknown = UnknownFieldWarnings(merged, known);
  if (!unknown.empty()) return Invalid(unknown.front() + "; see docs/cli.md").WithParam("params");
  return request;
}

Result<Request> RequestBuilder::FromText(const std::string& text, const Json& line_params) const {
  if (model_->tokenizer == nullptr) {
    return Invalid("the model has no tokenizer: give token ids").WithParam("prompt");
  }
  std::vector<TokenId> ids = model_->tokenizer->Encode(text);
  if (ids.empty()) return Invalid("the prompt is empty").WithParam("prompt");
  return WithSampling(std::move(ids), line_params);
}

Result<Request> RequestBuilder::FromIds(std::vector<TokenId> ids, const Json& line_params) const {
  return WithSampling(std::move(ids), line_params);
}

Result<Request> RequestBuilder::FromMessages(const Json& messages, const Json& line_params) const {
  ChatPromptOptions options;
  options.profile = model_->prompt_profile;
  DI_ASSIGN(const RenderedPrompt prompt,
            RenderChat(model_->chat_template.get(), model_->tokenizer.get(), messages, options));
  DI_ASSIGN(std::vector<TokenId> ids, EncodeRendered(prompt, *model_->tokenizer, options));
  DI_ASSIGN(Request request, WithSampling(std::move(ids), line_params));
  // What a grammar says is said of the answer, after the reasoning.
  DI_ASSIGN(const OutputPlan plan, PlanOutput(style_, prompt, {}));
  DI_TRY(ConstrainOutput(plan, {}, &request.sampling.grammar));
  return request;
}

Json ErrorField(const Status& status) {
  const Json body = ErrorBody(status);
  return *body.Find("error");
}

Json UserMessage(const std::string& text) {
  Json message = Json::Object();
  message.Set("role", Json::String("user"));
  message.Set("content", Json::String(text));
  return message;
}

}  // namespace deepinfer
