#include "api/responses.h"

#include <algorithm>

#include "api/call_options.h"
#include "api/chat_plan.h"
#include "api/error.h"
#include "api/grammar_json.h"
#include "api/json_fields.h"
#include "api/output_grammar.h"
#include "api/responses_response.h"
#include "base/format.h"

namespace deepinfer {
namespace {

// Read here, or accepted because they only inform.
constexpr std::string_view kFields[] = {
    "input",
    "instructions",
    "max_output_tokens",
    "reasoning",
    "text",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "store",
    "previous_response_id",
    "conversation",
    "background",
    "include",
    "prompt",
    "truncation",
    "max_tool_calls",
    "top_logprobs",
    "context_management",
    "moderation",
    "chat_template_kwargs",
    "prompt_cache_options",
};
constexpr size_t kToolsMax = 1024;
constexpr size_t kIdMax = 512;
constexpr size_t kEchoMax = 64 << 10;

Status Unsupported(std::string_view key, std::string_view detail) {
  return Invalid(Format("\"{}\" is not supported{}", key, detail))
      .WithParam(std::string(key))
      .WithReason(kUnsupportedParameter);
}

struct Tools {
  ToolSet set;
  std::unordered_set<std::string> custom;
};

// The regular expression that the input of a custom tool must match; empty: any text.
Result<std::string> ReadCustomFormat(const Json& tool, const std::string& param) {
  const Json* format = FindField(tool, "format");
  if (format == nullptr) return std::string();
  const Json* type = format->Find("type");
  if (type != nullptr && type->string() == "text") return std::string();
  const Json* syntax = FindField(*format, "syntax");
  const Json* definition = FindField(*format, "definition");
  const bool regex = type != nullptr && type->string() == "grammar" && syntax != nullptr &&
                     syntax->string() == "regex" && definition != nullptr &&
                     definition->is_string() && !definition->string().empty();
  if (regex) return definition->string();
  return Invalid(
             "a custom tool's \"format\" may be of type \"text\", or \"grammar\" with the "
             "\"syntax\" \"regex\" and a \"definition\"")
      .WithParam(param + ".format")
      .WithReason(kUnsupportedParameter);
}

// A custom tool is a function of one text.
Status AddCustom(const Json& tool, const std::string& param, Tools* out) {
  Result<Json> schema = Json::Parse(
      R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"]})");
  DI_ASSIGN(const std::string pattern, ReadCustomFormat(tool, param));
  const Json strict = Json::Bool(!pattern.empty());
  if (!pattern.empty()) {
    Json input = Json::Object();
    input.Set("type", Json::String("string"));
    input.Set("pattern", Json::String("^(?:" + pattern + ")$"));
    schema->Set("properties", Json::Object()).Set("input", std::move(input));
    schema->Set("additionalProperties", Json::Bool(false));
  }
  DI_TRY(
      AddTool({tool.Find("name"), tool.Find("description"), &*schema, &strict}, param, &out->set));
  out->custom.insert(out->set.names.back());
  return {};
}

Result<Tools> ReadTools(const Json& body, std::vector<std::string>* warnings) {
  Tools out;
  const Json* tools = FindField(body, "tools");
  if (tools != nullptr && (!tools->is_array() || tools->items().size() > kToolsMax)) {
    return WrongKind("tools", Format("a list of at most {} tools", kToolsMax));
  }
  for (size_t i = 0; tools != nullptr && i < tools->items().size(); ++i) {
    const Json& tool = tools->items()[i];
    const std::string param = Format("tools[{}]", i);
    const Json* type = tool.Find("type");
    const std::string name = type != nullptr && type->is_string() ? type->string() : "";
    if (name == "function") {
      DI_TRY(AddTool({tool.Find("name"), tool.Find("description"), tool.Find("parameters"),
                      tool.Find("strict")},
                     param, &out.set));
    } else if (name == "custom") {
      DI_TRY(AddCustom(tool, param, &out));
    } else if (name.starts_with("web_search")) {
      warnings->push_back("the tool \"web_search\" has no effect: this server does not search");
    } else {
      return Invalid(Format("a tool of type {:?} is not supported; types are function and custom",
                            name.substr(0, 64)))
          .WithParam(param)
          .WithReason(kUnsupportedParameter);
    }
  }
  DI_TRY(ReadToolChoice(body, "tool_choice", &out.set));
  bool parallel = true;
  DI_TRY(ReadBool(body, "parallel_tool_calls", &parallel));
  if (!parallel) out.set.calls_max = 1;
  return out;
}

Status RefuseRest(const Json& body) {
  for (const char* key : {"conversation", "prompt", "context_management"}) {
    const Json* value = FindField(body, key);
    if (value == nullptr || (value->is_array() && value->items().empty())) continue;
    return Unsupported(key, std::string_view(key) == "conversation"
                                ? "; continue with \"previous_response_id\""
                                : "; leave it out");
  }
  std::string truncation = "disabled";
  DI_TRY(ReadString(body, "truncation", 32, &truncation));
  if (truncation != "disabled" && truncation != "auto") {
    return WrongKind("truncation", "\"disabled\" or \"auto\"");
  }
  if (const Json* text = FindField(body, "text")) {
    if (!text->is_object()) return WrongKind("text", "an object");
  }
  return {};
}

Status ReadSampling(const Json& body, const DialectContext& context, SamplingParams* sampling) {
  DI_ASSIGN(*sampling, ParseSampling(body, context.defaults));
  if (sampling->n != 1) return Unsupported("n", " in this dialect");
  const Json* text = FindField(body, "text");
  if (text != nullptr && FindField(*text, "format") != nullptr) {
    DI_TRY(AddFormat(*FindField(*text, "format"), "text.format", &sampling->grammar));
  }
  std::optional<int64_t> tokens;
  DI_TRY(ReadInt(body, "max_output_tokens", 1, INT32_MAX, &tokens));
  if (tokens.has_value()) sampling->max_tokens = static_cast<int>(*tokens);
  if (sampling->max_tokens == 0) {
    return Invalid("\"max_tokens\" is 0, allowed is at least 1").WithParam("max_tokens");
  }
  DI_ASSIGN(const std::optional<int> top,
            ReadLogprobCount(body, "top_logprobs", context.defaults.top_logprobs_max));
  const Json* include = FindField(body, "include");
  if (include != nullptr && !include->is_array()) return WrongKind("include", "a list of texts");
  for (size_t i = 0; include != nullptr && i < include->items().size(); ++i) {
    const Json& item = include->items()[i];
    if (!item.is_string()) return WrongKind("include", "a list of texts");
    if (item.string() == "message.output_text.logprobs") sampling->logprobs = top.value_or(0);
  }
  return {};
}

Status ReadPromptOptions(const Json& body, ChatPromptOptions* options) {
  if (const Json* kwargs = FindField(body, "chat_template_kwargs")) {
    if (!kwargs->is_object()) return WrongKind("chat_template_kwargs", "an object");
    options->template_kwargs = *kwargs;
  }
  const Json* reasoning = FindField(body, "reasoning");
  if (reasoning == nullptr) return {};
  if (!reasoning->is_object()) return WrongKind("reasoning", "an object");
  ThinkingChoice thinking;
  DI_TRY(ReadEffort(*reasoning, "effort", "reasoning.effort", &thinking));
  ApplyThinking(thinking, options);
  return {};
}

// What the prompt is made of.
struct Source {
  std::vector<ResponseItems> history;
  ResponseItems input;
};

Result<Source> ReadSource(const Json& body, const DialectContext& context,
                          const std::string& response_id) {
  Source source;
  DI_ASSIGN(std::vector<Json> input, ReadInputItems(body, response_id));
  source.input = std::make_shared<const std::vector<Json>>(std::move(input));
  std::string previous;
  DI_TRY(ReadString(body, "previous_response_id", kIdMax, &previous));
  if (!previous.empty()) {
    if (context.responses == nullptr) {
      return Unsupported("previous_response_id", ": this server keeps no responses");
    }
    Result<std::vector<ResponseItems>> history = context.responses->History(previous);
    if (!history.ok()) {
      return Status(history.status().code(), history.status().message())
          .WithParam("previous_response_id");
    }
    source.history = *std::move(history);
  }
  if (source.input->empty() && source.history.empty() &&
      FindField(body, "instructions") == nullptr) {
    return Invalid("\"input\" is required: a text or a list of items").WithParam("input");
  }
  return source;
}

using Items = std::vector<const Json*>;

Items ItemsOf(const Source& source) {
  Items items;
  for (const ResponseItems& part : source.history) {
    for (const Json& item : *part) items.push_back(&item);
  }
  for (const Json& item : *source.input) items.push_back(&item);
  return items;
}

// The last `input_count` of `items` are the request's own.
Result<ChatPlan> PlanItems(const Json& body, const DialectContext& context, const Items& items,
                           size_t input_count, const Tools& tools) {
  DI_ASSIGN(const Json rest, ChatMessagesOfItems(items, input_count));
  Json messages = Json::Array();
  const Json* instructions = FindField(body, "instructions");
  if (instructions != nullptr && !instructions->is_string()) {
    return WrongKind("instructions", "a text");
  }
  if (instructions != nullptr && !instructions->string().empty()) {
    Json& system = messages.Push(Json::Object());
    system.Set("role", Json::String("system"));
    system.Set("content", *instructions);
  }
  for (const Json& message : rest.items()) messages.Push(message);
  ChatPromptOptions options = DefaultPromptOptions(context);
  DI_TRY(ReadPromptOptions(body, &options));
  Result<ChatPlan> plan = PlanChat(messages, std::move(options), tools.set, context);
  if (plan.ok() || !plan.status().param().starts_with("messages")) return plan;
  return Status(plan.status().code(), plan.status().message()).WithParam("input");
}

bool HasRole(const Json& item, std::string_view role) {
  const Json* value = item.Find("role");
  return value != nullptr && value->string() == role;
}

// Without what stands before `begin`, but for what the system says.
Items CutAt(const Items& items, size_t begin) {
  Items kept;
  for (size_t i = 0; i < items.size(); ++i) {
    const bool system = HasRole(*items[i], "system") || HasRole(*items[i], "developer");
    if (i >= begin || system) kept.push_back(items[i]);
  }
  return kept;
}

// With "truncation": "auto" the oldest turns give way until the prompt fits: as few as will do. A
// turn begins with a message of the user, so no call is cut off from its result.
Result<ChatPlan> Plan(const Json& body, const DialectContext& context, const Source& source,
                      const Tools& tools) {
  const Items items = ItemsOf(source);
  const size_t input_count = source.input->size();
  Result<ChatPlan> whole = PlanItems(body, context, items, input_count, tools);
  const auto fits = [&](const ChatPlan& plan) {
    return plan.ids.size() < static_cast<size_t>(context.max_model_len);
  };
  const Json* truncation = FindField(body, "truncation");
  if (truncation == nullptr || truncation->string() != "auto" || !whole.ok() || fits(*whole)) {
    return whole;
  }
  std::vector<size_t> cuts;
  for (size_t i = 1; i < items.size(); ++i) {
    if (HasRole(*items[i], "user")) cuts.push_back(i);
  }
  size_t low = 0, high = cuts.size();  // the first cut that fits lies in [low, high]
  Result<ChatPlan> best = std::move(whole);
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const Items kept = CutAt(items, cuts[middle]);
    Result<ChatPlan> plan =
        PlanItems(body, context, kept, std::min(input_count, kept.size()), tools);
    if (!plan.ok()) return plan;
    if (fits(*plan)) {
      high = middle;
      best = std::move(plan);
    } else {
      low = middle + 1;
    }
  }
  return best;
}

// What a response repeats of its request, in every event that shows it whole; longer things are
// left out, so that no event grows with a prompt.
Json Or(const Json& body, std::string_view key, Json fallback) {
  const Json* value = FindField(body, key);
  if (value == nullptr || value->string().size() > kEchoMax) return fallback;
  const bool nested = value->is_array() || value->is_object();
  return nested && value->Dump().size() > kEchoMax ? std::move(fallback) : *value;
}

Json OrNull(const Json& body, std::string_view key) { return Or(body, key, Json()); }

Json TextSettings(const Json& body) {
  const Json* given = FindField(body, "text");
  Json text = Json::Object();
  Json plain = Json::Object();
  plain.Set("type", Json::String("text"));
  text.Set("format", given == nullptr ? std::move(plain) : Or(*given, "format", std::move(plain)));
  text.Set("verbosity", given == nullptr ? Json() : OrNull(*given, "verbosity"));
  return text;
}

Json ReasoningSettings(const Json& body) {
  const Json* given = FindField(body, "reasoning");
  Json reasoning = Json::Object();
  for (const char* key : {"effort", "summary"}) {
    reasoning.Set(key, given == nullptr ? Json() : OrNull(*given, key));
  }
  return reasoning;
}

// With the members that the request left out.
Json ToolSettings(const Json& body) {
  Json tools = Json::Array();
  const Json given = Or(body, "tools", Json::Array());
  for (const Json& tool : given.items()) {
    Json& copy = tools.Push(tool);
    if (tool.Find("type")->string() != "function") continue;
    for (const char* key : {"description", "parameters", "strict"}) {
      if (tool.Find(key) == nullptr) copy.Set(key, Json());
    }
  }
  return tools;
}

// Every member that clients of the dialect expect, whether it says something or not.
Json Snapshot(const Json& body, const SamplingParams& sampling, const std::string& id,
              const std::string& model) {
  Json out = Json::Object();
  out.Set("id", Json::String(id));
  out.Set("object", Json::String("response"));
  out.Set("created_at", Json::Int(UnixSeconds()));
  out.Set("completed_at", Json());
  out.Set("status", Json::String("in_progress"));
  out.Set("incomplete_details", Json());
  out.Set("model", Json::String(model));
  out.Set("previous_response_id", OrNull(body, "previous_response_id"));
  out.Set("instructions", OrNull(body, "instructions"));
  out.Set("output", Json::Array());
  out.Set("error", Json());
  out.Set("tools", ToolSettings(body));
  out.Set("tool_choice", Or(body, "tool_choice", Json::String("auto")));
  out.Set("truncation", Or(body, "truncation", Json::String("disabled")));
  out.Set("parallel_tool_calls", Or(body, "parallel_tool_calls", Json::Bool(true)));
  out.Set("text", TextSettings(body));
  out.Set("top_p", Json::Double(static_cast<double>(sampling.top_p)));
  out.Set("presence_penalty", Json::Double(static_cast<double>(sampling.presence_penalty)));
  out.Set("frequency_penalty", Json::Double(static_cast<double>(sampling.frequency_penalty)));
  out.Set("top_logprobs", Json::Int(sampling.logprobs.value_or(0)));
  out.Set("temperature", Json::Double(static_cast<double>(sampling.temperature)));
  out.Set("reasoning", ReasoningSettings(body));
  out.Set("user", OrNull(body, "user"));
  out.Set("usage", Json());
  out.Set("max_output_tokens", OrNull(body, "max_output_tokens"));
  out.Set("max_tool_calls", OrNull(body, "max_tool_calls"));
  return out;
}

void EndSnapshot(const Json& body, bool stored, bool background,
                 const std::vector<std::string>& warnings, Json* out) {
  out->Set("store", Json::Bool(stored));
  out->Set("background", Json::Bool(background));
  out->Set("service_tier", Json::String("default"));
  out->Set("metadata", Or(body, "metadata", Json::Object()));
  out->Set("safety_identifier", OrNull(body, "safety_identifier"));
  out->Set("prompt_cache_key", OrNull(body, "prompt_cache_key"));
  out->Set("prompt_cache_retention", OrNull(body, "prompt_cache_retention"));
  out->Set("moderation", Json());
  out->Set("content_filters", Json());
  if (warnings.empty()) return;
  Json& list = out->Set("warnings", Json::Array());
  for (const std::string& warning : warnings) list.Push(Json::String(warning));
}

// A stored response is read back under its id: the id must fit into a path.
Status CheckStoredId(const ResponsesResponseOptions& options) {
  const std::string& id = options.call.request_id;
  const bool plain = std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
  if (!plain) {
    return Invalid("\"request_id\" of a stored response may hold letters, digits, - and _")
        .WithParam("request_id");
  }
  return {};
}

}  // namespace

Result<DialectCall> ParseResponses(const Json& body, const DialectContext& context) {
  ResponsesResponseOptions options;
  DI_ASSIGN(options.call, ReadCallOptions(body, context, kFields));
  DI_TRY(RefuseRest(body));
  SamplingParams sampling;
  DI_TRY(ReadSampling(body, context, &sampling));
  DI_ASSIGN(Tools tools, ReadTools(body, &options.call.warnings));
  options.id = ResponseId("resp", options.call.request_id, '_');
  DI_ASSIGN(Source source, ReadSource(body, context, options.id.substr(5)));
  DI_ASSIGN(ChatPlan plan, Plan(body, context, source, tools));
  DI_TRY(ConstrainOutput(plan.output, tools.set, &sampling.grammar));
  bool store = context.responses != nullptr, background = false;
  DI_TRY(ReadBool(body, "store", &store));
  DI_TRY(ReadBool(body, "background", &background));
  store = store && context.responses != nullptr;
  if (store) DI_TRY(CheckStoredId(options));
  if (background && !store) {
    return Invalid("\"background\" needs \"store\": true, and a server that keeps responses")
        .WithParam("background");
  }
  if (background && options.call.mode == DialectCall::Mode::kStream) {
    return Unsupported("background", " together with \"stream\"");
  }
  DialectCall call;
  call.mode = options.call.mode;
  sampling.thinking = plan.thinking;
  DI_ASSIGN(Request request,
            MakeRequest(std::move(plan.ids), sampling, options.call, context, "input"));
  options.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  call.requests.push_back(std::move(request));
  options.snapshot =
      Snapshot(body, sampling, options.id, context.names.empty() ? "" : context.names.front());
  EndSnapshot(body, store, background, options.call.warnings, &options.snapshot);
  if (background) {
    Json queued = options.snapshot;
    queued.Set("status", Json::String("queued"));
    call.accepted = queued.Dump();
  }
  options.output = std::move(plan.output);
  options.names = {context.tokenizer, TokenNaming::kText};
  options.logprobs = sampling.logprobs.has_value();
  options.custom_tools = std::move(tools.custom);
  if (store) options.store = context.responses;
  options.history = std::move(source.history);
  options.input = std::move(source.input);
  call.response = std::make_unique<ResponsesResponse>(std::move(options));
  return call;
}

Result<Json> CountResponseTokens(const Json& body, const DialectContext& context) {
  DI_ASSIGN(CallOptions options, ReadCallOptions(body, context, kFields));
  DI_TRY(RefuseRest(body));
  DI_ASSIGN(const Tools tools, ReadTools(body, &options.warnings));
  DI_ASSIGN(const Source source, ReadSource(body, context, ""));
  DI_ASSIGN(const ChatPlan plan, Plan(body, context, source, tools));
  Json answer = Json::Object();
  answer.Set("object", Json::String("response.input_tokens"));
  answer.Set("input_tokens", Json::Int(static_cast<int64_t>(plan.ids.size())));
  return answer;
}

}  // namespace deepinfer
