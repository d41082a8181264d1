// POST /v1/chat/completions: body to a request.
#include "api/chat_plan.h"
#include "api/chat_response.h"
#include "api/dialect.h"
#include "api/error.h"
#include "api/json_fields.h"
#include "api/output_grammar.h"
#include "base/format.h"

namespace deepinfer {
namespace {

// Read here, or accepted because they ask for what holds anyway.
constexpr std::string_view kFields[] = {
    "messages",
    "top_logprobs",
    "add_generation_prompt",
    "documents",
    "continue_final_message",
    "chat_template_kwargs",
    "chat_template",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "parallel_tool_calls",
    "modalities",
    "audio",
    "web_search_options",
    "prediction",
    "mm_processor_kwargs",
    "reasoning_effort",
    "thinking",
    "thinking_token_budget",
    "include_reasoning",
};
constexpr size_t kKwargsMax = 64;

Status Unsupported(std::string_view key, std::string_view detail) {
  return Invalid(Format("\"{}\" is not supported{}", key, detail))
      .WithParam(std::string(key))
      .WithReason(kUnsupportedParameter);
}

bool IsEmpty(const Json& value) { return value.items().empty() && value.members().empty(); }

Status RefuseMedia(const Json& body) {
  if (const Json* modalities = FindField(body, "modalities")) {
    if (!modalities->is_array()) return WrongKind("modalities", "a list");
    for (const Json& kind : modalities->items()) {
      if (kind.string() != "text") return Unsupported("modalities", " other than \"text\"");
    }
  }
  for (const char* key : {"audio", "web_search_options", "prediction", "mm_processor_kwargs"}) {
    const Json* value = FindField(body, key);
    if (value != nullptr && !IsEmpty(*value)) return Unsupported(key, "; leave it out");
  }
  if (FindField(body, "chat_template") != nullptr) {
    return Unsupported("chat_template", " in a request; start the server with --chat-template");
  }
  return {};
}

Status ReadGeneration(const Json& body, ChatPromptOptions* options) {
  using Generation = ChatPromptOptions::Generation;
  bool continues = false;
  DI_TRY(ReadBool(body, "continue_final_message", &continues));
  bool adds = !continues;
  DI_TRY(ReadBool(body, "add_generation_prompt", &adds));
  if (adds && continues) {
    return Invalid(
               "\"continue_final_message\" and \"add_generation_prompt\" exclude each other: "
               "set at most one of them")
        .WithParam("continue_final_message");
  }
  options->generation = continues ? Generation::kContinueFinalMessage
                        : adds    ? Generation::kAddPrompt
                                  : Generation::kNone;
  return {};
}

Result<ChatPromptOptions> ReadPromptOptions(const Json& body, const DialectContext& context) {
  ChatPromptOptions options = DefaultPromptOptions(context);
  DI_TRY(ReadGeneration(body, &options));
  bool add_special = false;
  DI_TRY(ReadBool(body, "add_special_tokens", &add_special));
  if (add_special) options.prefix = ChatPromptOptions::Prefix::kTokenizer;
  if (const Json* kwargs = FindField(body, "chat_template_kwargs")) {
    if (!kwargs->is_object() || kwargs->members().size() > kKwargsMax) {
      return WrongKind("chat_template_kwargs",
                       Format("an object of at most {} members", kKwargsMax));
    }
    options.template_kwargs = *kwargs;
  }
  ThinkingChoice thinking;
  DI_TRY(ReadThinking(body, &thinking));
  DI_TRY(ReadEffort(body, "reasoning_effort", "reasoning_effort", &thinking));
  ApplyThinking(thinking, &options);
  if (const Json* documents = FindField(body, "documents")) {
    if (!documents->is_array()) return WrongKind("documents", "a list");
    options.documents = *documents;
  }
  return options;
}

Status ReadLogprobs(const Json& body, const DialectContext& context, const CallOptions& call,
                    SamplingParams* sampling) {
  bool wanted = false;
  DI_TRY(ReadBool(body, "logprobs", &wanted));
  const int limit = context.defaults.top_logprobs_max;
  DI_ASSIGN(const std::optional<int> top, ReadLogprobCount(body, "top_logprobs", limit));
  if (top.has_value() && *top != 0 && !wanted) {
    return Invalid("\"top_logprobs\" needs \"logprobs\": true").WithParam("top_logprobs");
  }
  if (wanted) sampling->logprobs = top.value_or(0);
  DI_ASSIGN(sampling->prompt_logprobs, ReadLogprobCount(body, "prompt_logprobs", limit));
  if (sampling->prompt_logprobs.has_value() && call.mode == DialectCall::Mode::kStream) {
    return Invalid("\"prompt_logprobs\" is not available with \"stream\": true")
        .WithParam("prompt_logprobs");
  }
  if (sampling->max_tokens == 0 && !sampling->prompt_logprobs.has_value()) {
    return Invalid("\"max_tokens\" is 0, allowed is at least 1").WithParam("max_tokens");
  }
  return {};
}

// With "echo", the answer begins with the assistant text that it continues.
Result<std::string> EchoText(const Json& body, const Json& messages) {
  bool echo = false;
  DI_TRY(ReadBool(body, "echo", &echo));
  if (!echo) return std::string();
  const Json& last = messages.items().back();
  const Json* role = last.Find("role");
  const Json* content = last.Find("content");
  if (role->string() != "assistant" || content == nullptr || content->is_null()) {
    return std::string();
  }
  return ContentText(*content, "messages");
}

}  // namespace

Result<DialectCall> ParseChatCompletion(const Json& body, const DialectContext& context) {
  ChatResponseOptions options;
  DI_ASSIGN(options.call, ReadCallOptions(body, context, kFields));
  DI_ASSIGN(const ToolSet tools, ReadChatTools(body));
  DI_TRY(RefuseMedia(body));
  DI_ASSIGN(SamplingParams sampling, ParseSampling(body, context.defaults));
  DI_TRY(ReadLogprobs(body, context, options.call, &sampling));
  const Json* messages = FindField(body, "messages");
  if (messages == nullptr) return Invalid("\"messages\" is required").WithParam("messages");
  DI_ASSIGN(ChatPromptOptions prompt, ReadPromptOptions(body, context));
  DI_ASSIGN(ChatPlan plan, PlanChat(*messages, std::move(prompt), tools, context));
  DI_TRY(ConstrainOutput(plan.output, tools, &sampling.grammar));
  options.output = std::move(plan.output);
  bool include_reasoning = true;
  DI_TRY(ReadBool(body, "include_reasoning", &include_reasoning));
  if (!include_reasoning) options.reasoning = ChatResponseOptions::Reasoning::kHidden;
  DI_ASSIGN(options.echo, EchoText(body, *messages));
  DialectCall call;
  call.mode = options.call.mode;
  sampling.thinking = plan.thinking;
  DI_ASSIGN(Request request,
            MakeRequest(std::move(plan.ids), sampling, options.call, context, "messages"));
  options.prompt_ids = request.prompt;
  call.requests.push_back(std::move(request));
  options.envelope = {ResponseId("chatcmpl", options.call.request_id), UnixSeconds(),
                      context.names.empty() ? "" : context.names.front()};
  options.names = {context.tokenizer,
                   options.call.tokens_as_ids ? TokenNaming::kTokenId : TokenNaming::kText};
  options.stop_token_ids = sampling.stop_token_ids;
  options.samples = sampling.n;
  options.logprobs = sampling.logprobs.has_value();
  call.response = std::make_unique<ChatResponse>(std::move(options));
  return call;
}

}  // namespace deepinfer
