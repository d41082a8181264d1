#include "api/messages.h"

#include "api/call_options.h"
#include "api/chat_plan.h"
#include "api/error.h"
#include "api/grammar_json.h"
#include "api/json_fields.h"
#include "api/messages_response.h"
#include "api/output_grammar.h"
#include "base/format.h"

namespace deepinfer {
namespace {

// Read here, or accepted because they only inform.
constexpr std::string_view kFields[] = {
    "messages",      "system",      "stop_sequences",     "thinking",  "output_config",
    "output_format", "tools",       "tool_choice",        "container", "inference_geo",
    "cache_control", "mcp_servers", "context_management", "speed",     "chat_template_kwargs",
};
constexpr size_t kStopsMax = 16;
constexpr size_t kStopBytesMax = 256;
constexpr size_t kToolsMax = 1024;

Status Unsupported(std::string_view key) {
  return Invalid(Format("\"{}\" is not supported; leave it out", key))
      .WithParam(std::string(key))
      .WithReason(kUnsupportedParameter);
}

Status RefuseRest(const Json& body, const SamplingParams& sampling) {
  for (const char* key : {"container", "mcp_servers", "context_management"}) {
    const Json* value = FindField(body, key);
    if (value == nullptr) continue;
    const bool empty = (value->is_array() && value->items().empty()) ||
                       (value->is_object() && value->members().empty());
    if (!empty) return Unsupported(key);
  }
  if (sampling.n != 1) return Unsupported("n");
  if (sampling.max_tokens == 0) {
    return Invalid("\"max_tokens\" is 0, allowed is at least 1").WithParam("max_tokens");
  }
  return {};
}

Result<SamplingParams> ReadSampling(const Json& body, const DialectContext& context) {
  DI_ASSIGN(SamplingParams sampling, ParseSampling(body, context.defaults));
  DI_TRY(ReadTexts(body, "stop_sequences", kStopsMax, kStopBytesMax, &sampling.stop));
  if (const Json* format = FindField(body, "output_format")) {
    DI_TRY(AddFormat(*format, "output_format", &sampling.grammar));
  }
  const Json* config = FindField(body, "output_config");
  if (config != nullptr && FindField(*config, "format") != nullptr) {
    DI_TRY(AddFormat(*FindField(*config, "format"), "output_config.format", &sampling.grammar));
  }
  DI_TRY(RefuseRest(body, sampling));
  return sampling;
}

Status ReadChoice(const Json& body, ToolSet* out) {
  const Json* choice = FindField(body, "tool_choice");
  if (choice == nullptr) return {};
  const Json* type = choice->Find("type");
  const std::string name = type != nullptr && type->is_string() ? type->string() : "";
  if (name == "any" && out->names.empty()) {
    return Invalid("\"tool_choice\" wants any of the tools and there are none")
        .WithParam("tool_choice");
  }
  if (name == "any") out->choice = ToolSet::Choice::kRequired;
  if (name == "tool") DI_TRY(RequireTool(choice->Find("name"), "tool_choice", out));
  if (name != "auto" && name != "none" && name != "any" && name != "tool") {
    return WrongKind("tool_choice",
                     "an object with a \"type\" of \"auto\", \"any\", \"tool\" or \"none\"");
  }
  if (name == "none") out->choice = ToolSet::Choice::kNone;
  bool single = false;
  if (!ReadBool(*choice, "disable_parallel_tool_use", &single).ok()) {
    return Invalid("\"disable_parallel_tool_use\" must be true or false")
        .WithParam("tool_choice.disable_parallel_tool_use");
  }
  if (single) out->calls_max = 1;
  return {};
}

Result<ToolSet> ReadTools(const Json& body) {
  ToolSet out;
  const Json* tools = FindField(body, "tools");
  if (tools != nullptr && (!tools->is_array() || tools->items().size() > kToolsMax)) {
    return WrongKind("tools", Format("a list of at most {} tools", kToolsMax));
  }
  for (size_t i = 0; tools != nullptr && i < tools->items().size(); ++i) {
    const Json& tool = tools->items()[i];
    const std::string param = Format("tools[{}]", i);
    if (!tool.is_object()) return Invalid("a tool must be an object").WithParam(param);
    const Json* type = FindField(tool, "type");
    if (type != nullptr && type->string() != "custom") {
      return Invalid(Format("a tool of type {} is not supported: this server runs none itself",
                            type->Dump().substr(0, 64)))
          .WithParam(param)
          .WithReason(kUnsupportedParameter);
    }
    DI_TRY(AddTool({tool.Find("name"), tool.Find("description"), tool.Find("input_schema"),
                    tool.Find("strict"), "input_schema"},
                   param, &out));
  }
  DI_TRY(ReadChoice(body, &out));
  return out;
}

Status ReadPromptOptions(const Json& body, ChatPromptOptions* options) {
  if (const Json* kwargs = FindField(body, "chat_template_kwargs")) {
    if (!kwargs->is_object()) return WrongKind("chat_template_kwargs", "an object");
    options->template_kwargs = *kwargs;
  }
  ThinkingChoice thinking;
  DI_TRY(ReadThinking(body, &thinking));
  if (const Json* config = FindField(body, "output_config")) {
    if (!config->is_object()) return WrongKind("output_config", "an object");
    DI_TRY(ReadEffort(*config, "effort", "output_config.effort", &thinking));
  }
  ApplyThinking(thinking, options);
  return {};
}

Result<ChatPlan> Plan(const Json& body, const DialectContext& context,
                      std::optional<GrammarSource>* grammar) {
  DI_ASSIGN(const ToolSet tools, ReadTools(body));
  DI_ASSIGN(const Json messages, ChatMessagesOf(body));
  ChatPromptOptions options = DefaultPromptOptions(context);
  DI_TRY(ReadPromptOptions(body, &options));
  // An assistant's last message is the beginning of the answer.
  const Json& last = messages.items().back();
  if (last.Find("role")->string() == "assistant") {
    options.generation = ChatPromptOptions::Generation::kContinueFinalMessage;
  }
  DI_ASSIGN(ChatPlan plan, PlanChat(messages, std::move(options), tools, context));
  DI_TRY(ConstrainOutput(plan.output, tools, grammar));
  return plan;
}

}  // namespace

Result<DialectCall> ParseMessages(const Json& body, const DialectContext& context) {
  MessagesResponseOptions options;
  DI_ASSIGN(options.call, ReadCallOptions(body, context, kFields));
  DI_ASSIGN(SamplingParams sampling, ReadSampling(body, context));
  DI_ASSIGN(ChatPlan plan, Plan(body, context, &sampling.grammar));
  DialectCall call;
  call.mode = options.call.mode;
  call.errors = ErrorShape::kAnthropic;
  sampling.thinking = plan.thinking;
  DI_ASSIGN(Request request,
            MakeRequest(std::move(plan.ids), sampling, options.call, context, "messages"));
  options.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  call.requests.push_back(std::move(request));
  options.envelope = {ResponseId("msg", options.call.request_id, '_'), UnixSeconds(),
                      context.names.empty() ? "" : context.names.front()};
  options.output = std::move(plan.output);
  call.response = std::make_unique<MessagesResponse>(std::move(options));
  return call;
}

Result<Json> CountMessageTokens(const Json& body, const DialectContext& context) {
  DI_TRY(ReadCallOptions(body, context, kFields).status());
  std::optional<GrammarSource> grammar;
  DI_ASSIGN(const ChatPlan plan, Plan(body, context, &grammar));
  Json answer = Json::Object();
  answer.Set("input_tokens", Json::Int(static_cast<int64_t>(plan.ids.size())));
  return answer;
}

}  // namespace deepinfer
