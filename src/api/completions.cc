// POST /v1/completions: body to requests.
#include "api/completion_response.h"
#include "api/dialect.h"
#include "api/error.h"
#include "api/json_fields.h"
#include "api/prompt_list.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr std::string_view kFields[] = {"prompt", "suffix"};
constexpr size_t kChoicesMax = 4096;
constexpr int kMaxTokensDefault = 16;

Status RefuseRest(const Json& body, const SamplingParams& sampling) {
  std::string suffix;
  DI_TRY(ReadString(body, "suffix", size_t{64} << 20, &suffix));
  if (!suffix.empty()) {
    return Invalid("\"suffix\" is not supported: this model has no fill-in-the-middle tokens")
        .WithParam("suffix")
        .WithReason(kUnsupportedParameter);
  }
  std::optional<int64_t> best_of;
  DI_TRY(ReadInt(body, "best_of", 0, 128, &best_of));
  if (best_of.has_value() && *best_of != 0 && *best_of != sampling.n) {
    return Invalid(Format("\"best_of\" is {} and n is {}; only best_of = n is supported", *best_of,
                          sampling.n))
        .WithParam("best_of")
        .WithReason(kUnsupportedParameter);
  }
  return {};
}

Status ReadLogprobs(const Json& body, const DialectContext& context, const CallOptions& call,
                    SamplingParams* sampling, CompletionResponseOptions* options) {
  const int limit = context.defaults.top_logprobs_max;
  DI_ASSIGN(sampling->logprobs, ReadLogprobCount(body, "logprobs", limit));
  DI_ASSIGN(sampling->prompt_logprobs, ReadLogprobCount(body, "prompt_logprobs", limit));
  options->logprobs = sampling->logprobs.has_value();
  options->prompt_logprobs = sampling->prompt_logprobs.has_value();
  if (options->prompt_logprobs && call.mode == DialectCall::Mode::kStream) {
    return Invalid("\"prompt_logprobs\" is not available with \"stream\": true")
        .WithParam("prompt_logprobs");
  }
  DI_TRY(ReadBool(body, "echo", &options->echo));
  sampling->echo = options->echo;
  if (options->echo && options->logprobs && !options->prompt_logprobs) {
    sampling->prompt_logprobs = sampling->logprobs;
  }
  if (sampling->max_tokens == 0 && !options->echo && !options->prompt_logprobs) {
    return Invalid(
               "\"max_tokens\" is 0, allowed is at least 1 (0 with \"echo\": true scores the "
               "prompt)")
        .WithParam("max_tokens");
  }
  return {};
}

}  // namespace

Result<DialectCall> ParseCompletion(const Json& body, const DialectContext& context) {
  CompletionResponseOptions options;
  DI_ASSIGN(options.call, ReadCallOptions(body, context, kFields));
  SamplingDefaults defaults = context.defaults;
  if (!defaults.max_tokens.has_value()) defaults.max_tokens = kMaxTokensDefault;
  DI_ASSIGN(SamplingParams sampling, ParseSampling(body, defaults));
  DI_TRY(RefuseRest(body, sampling));
  DI_TRY(ReadLogprobs(body, context, options.call, &sampling, &options));
  DI_ASSIGN(options.prompts, ReadPrompts(body, "prompt", context));
  if (options.prompts.size() * static_cast<size_t>(sampling.n) > kChoicesMax) {
    return Invalid(Format("{} prompts with n = {} are more than {} choices", options.prompts.size(),
                          sampling.n, kChoicesMax))
        .WithParam("n");
  }
  DialectCall call;
  call.mode = options.call.mode;
  for (CompletionResponseOptions::Prompt& prompt : options.prompts) {
    const size_t given = prompt.ids.size();
    DI_ASSIGN(Request request,
              MakeRequest(std::move(prompt.ids), sampling, options.call, context, "prompt"));
    prompt.ids = request.prompt;
    if (prompt.ids.size() != given && context.tokenizer != nullptr) {
      prompt.echo = context.tokenizer->Decode(prompt.ids, false);
    }
    if (!options.echo) prompt.echo.clear();
    call.requests.push_back(std::move(request));
  }
  options.envelope = {ResponseId("cmpl", options.call.request_id), UnixSeconds(),
                      context.names.empty() ? "" : context.names.front()};
  options.names = {context.tokenizer,
                   options.call.tokens_as_ids ? TokenNaming::kTokenId : TokenNaming::kText};
  options.special = sampling.skip_special_tokens ? SpecialTokens::kHidden : SpecialTokens::kShown;
  options.stop_token_ids = sampling.stop_token_ids;
  options.samples = sampling.n;
  call.response = std::make_unique<CompletionResponse>(std::move(options));
  return call;
}

}  // namespace deepinfer
