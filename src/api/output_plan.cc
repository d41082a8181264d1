#include "api/output_plan.h"

#include <algorithm>

#include "api/error.h"
#include "api/json_fields.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
// Names that no template writes by itself.
constexpr std::string_view kProbeTool = "probe_listed_tool", kProbeCall = "probe_called_tool";

Json ProbeTools() {
  ToolSet set;
  const Json name = Json::String(std::string(kProbeTool));
  const Json description = Json::String("Probe.");
  const Result<Json> parameters =
      Json::Parse(R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})");
  if (!AddTool({&name, &description, &*parameters, nullptr}, "", &set).ok()) return {};
  return set.tools;
}

// What the template writes for a conversation, empty when it refuses.
std::string Render(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                   std::string_view messages, Json tools) {
  ChatPromptOptions options;
  options.tools = std::move(tools);
  const Result<Json> parsed = Json::Parse(messages);
  if (!parsed.ok()) return {};
  Result<RenderedPrompt> prompt = RenderChat(&chat_template, &tokenizer, *parsed, options);
  return prompt.ok() ? std::move(prompt->text) : std::string();
}

// Which profile reads what the template writes for a call; nullptr: none is known to.
const OutputProfile* CallProfile(std::string_view with_call, std::string_view with_tools) {
  const size_t at = with_call.find(kProbeCall);
  if (at != std::string_view::npos) {
    const std::string_view before = with_call.substr(0, at), after = with_call.substr(at);
    const size_t brace = before.rfind('{');
    const OutputProfile* hermes = FindOutputProfile("hermes");
    const size_t mark = before.rfind(hermes->mark);
    if (mark != std::string_view::npos && brace != std::string_view::npos && mark < brace) {
      return hermes;
    }
    const bool named = brace != std::string_view::npos &&
                       before.substr(brace).find("\"name\"") != std::string_view::npos;
    if (named && after.substr(0, 64).find("\"parameters\"") != std::string_view::npos) {
      return FindOutputProfile("llama_json");
    }
    return nullptr;
  }
  const bool tells = with_tools.find("<tool_call>\n{") != std::string_view::npos;
  return tells ? FindOutputProfile("hermes") : nullptr;
}

TokenId AddedId(const Tokenizer& tokenizer, std::string_view content) {
  for (const AddedToken& token : tokenizer.spec().added) {
    if (token.content == content) return token.id;
  }
  return -1;
}

// By the last mark of reasoning that the prompt's own text holds. One that closes it leaves an
// answer alone only at the very end: before that it belongs to an earlier turn.
OutputMachineOptions::Start StartOf(const OutputProfile& profile, const RenderedPrompt& prompt) {
  using Start = OutputMachineOptions::Start;
  if (profile.think.empty()) return Start::kContent;
  for (size_t i = prompt.trusted.size(); i-- > 0;) {
    const TrustedSpan& span = prompt.trusted[i];
    const std::string_view text =
        std::string_view(prompt.text).substr(span.begin, span.end - span.begin);
    const size_t open = text.rfind(profile.think), close = text.rfind(profile.think_end);
    if (open == std::string_view::npos && close == std::string_view::npos) continue;
    if (close == std::string_view::npos || (open != std::string_view::npos && open > close)) {
      return Start::kReasoning;
    }
    const size_t end = span.begin + close + profile.think_end.size();
    const bool at_end = prompt.text.find_first_not_of(" \t\r\n", end) == std::string::npos;
    return at_end ? Start::kAnswer : Start::kContent;
  }
  return Start::kContent;
}

}  // namespace

OutputStyle ProbeOutputStyle(const Tokenizer* tokenizer, const ChatTemplate* chat_template,
                             const PromptProfile* prompt_profile) {
  OutputStyle style;
  if (tokenizer == nullptr) return style;
  style.think = AddedId(*tokenizer, kThink);
  style.think_end = AddedId(*tokenizer, kThinkEnd);
  if (prompt_profile != nullptr) {
    style.profile = FindOutputProfile(prompt_profile->name);
    style.tools = OutputStyle::Tools::kRendered;
    return style;
  }
  if (chat_template == nullptr) return style;
  constexpr const char* kUser = R"([{"role":"user","content":"x"}])";
  const Json tools = ProbeTools();
  const std::string with_tools = Render(*chat_template, *tokenizer, kUser, tools);
  const std::string with_call = Render(
      *chat_template, *tokenizer,
      Format(R"([{{"role":"user","content":"x"}},{{"role":"assistant","content":"","tool_calls":)"
             R"([{{"id":"123456789","type":"function","function":{{"name":"{}","arguments":)"
             R"("{{\"a\":\"b\"}}"}}}}]}},)"
             R"({{"role":"tool","tool_call_id":"123456789","content":"y"}}])",
             kProbeCall),
      tools);
  const bool renders = with_tools.find(kProbeTool) != std::string::npos;
  if (renders) style.tools = OutputStyle::Tools::kRendered;
  style.profile = renders ? CallProfile(with_call, with_tools) : nullptr;
  constexpr const char* kReasoned = R"([{"role":"user","content":"x"},
      {"role":"assistant","content":"y","reasoning_content":"z"}])";
  const std::string reasoning = Render(*chat_template, *tokenizer, kReasoned, {});
  const bool thinks = style.think_end >= 0 || reasoning.find(kThinkEnd) != std::string::npos;
  if (style.profile == nullptr && thinks) style.profile = FindOutputProfile("reasoning");
  return style;
}

Result<OutputPlan> PlanOutput(const OutputStyle& style, const RenderedPrompt& prompt,
                              const ToolSet& tools) {
  OutputPlan plan;
  if (tools.active() && (style.tools == OutputStyle::Tools::kAbsent || style.profile == nullptr ||
                         style.profile->calls == OutputProfile::Calls::kNone)) {
    return Invalid(style.tools == OutputStyle::Tools::kAbsent
                       ? "the chat template of this model knows no \"tools\""
                       : "how this model writes calls of \"tools\" is not known")
        .WithParam("tools")
        .WithReason(kUnsupportedParameter);
  }
  if (style.profile == nullptr || (style.profile->think.empty() && !tools.active())) return plan;
  plan.style = style;
  plan.machine.start = StartOf(*style.profile, prompt);
  if (tools.active()) {
    plan.machine.calls = OutputMachineOptions::Calls::kParsed;
    plan.machine.calls_max = tools.calls_max;
    plan.machine.tool_names = tools.names;
  }
  return plan;
}

std::optional<ThinkingBudget> PlanThinking(const OutputPlan& plan, int tokens,
                                           const Tokenizer& tokenizer) {
  const OutputProfile* profile = plan.style.profile;
  if (profile == nullptr || profile->think.empty() ||
      plan.machine.start == OutputMachineOptions::Start::kAnswer) {
    return std::nullopt;
  }
  ThinkingBudget budget{.tokens = tokens, .begin = -1, .end = {}};
  if (!plan.starts_in_reasoning()) {
    budget.begin = plan.style.think;
    if (budget.begin < 0) return std::nullopt;
  }
  if (plan.style.think_end >= 0) {
    budget.end = {plan.style.think_end};
  } else {
    EncodeOptions encode;
    encode.add_special_tokens = false;
    budget.end = tokenizer.Encode(profile->think_end, encode);
  }
  return budget;
}

OutputReader::OutputReader(const OutputPlan& plan)
    : style_(plan.style), reasons_(plan.starts_in_reasoning()) {
  if (style_.profile != nullptr) {
    machine_ = std::make_unique<OutputMachine>(style_.profile, plan.machine);
  }
}

void OutputReader::Count(const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) {
    if (!reasons_ && reasoning_tokens_ == 0 && id == style_.think && machine_->reasoning()) {
      reasons_ = true;
    }
    if (!reasons_) continue;
    ++reasoning_tokens_;
    if (id == style_.think_end) reasons_ = false;
  }
  reasons_ = reasons_ && machine_->reasoning();
}

std::vector<OutputPart> OutputReader::Read(const OutputDelta& delta) {
  std::vector<OutputPart> parts;
  if (machine_ == nullptr) {
    AppendPart(OutputPart::Kind::kText, delta.text, &parts);
    return parts;
  }
  machine_->Push(delta.text, &parts);
  Count(delta.token_ids);
  if (delta.finish != FinishReason::kNone) machine_->Finish(&parts);
  for (const OutputPart& part : parts) calls_ += part.kind == OutputPart::Kind::kCallEnd ? 1 : 0;
  return parts;
}

Status ReadThinking(const Json& body, ThinkingChoice* out) {
  std::optional<int64_t> budget;
  DI_TRY(ReadInt(body, "thinking_token_budget", 0, INT32_MAX, &budget));
  if (budget.has_value()) out->budget = static_cast<int>(*budget);
  const Json* thinking = FindField(body, "thinking");
  if (thinking == nullptr) return {};
  const Json* type = thinking->Find("type");
  const std::string name = type != nullptr && type->is_string() ? type->string() : "";
  if (name != "enabled" && name != "adaptive" && name != "disabled") {
    return WrongKind("thinking",
                     "an object with a \"type\" of \"enabled\", \"adaptive\" or \"disabled\"");
  }
  if (const Status status = ReadInt(*thinking, "budget_tokens", 1, INT32_MAX, &budget);
      !status.ok()) {
    return Invalid(status.message()).WithParam("thinking.budget_tokens");
  }
  if (budget.has_value()) out->budget = static_cast<int>(*budget);
  out->on = name != "disabled";
  return {};
}

Status ReadEffort(const Json& body, std::string_view key, const char* param, ThinkingChoice* out) {
  const Json* effort = FindField(body, key);
  if (effort == nullptr) return {};
  if (!effort->is_string() && !effort->is_number()) {
    return Invalid(Format("\"{}\" must be a text or a number", param)).WithParam(param);
  }
  out->effort = *effort;
  return {};
}

void ApplyThinking(const ThinkingChoice& choice, ChatPromptOptions* options) {
  options->thinking_budget = choice.budget;
  Json& kwargs = options->template_kwargs;
  const bool off_by_effort = choice.effort.is_string() && choice.effort.string() == "none";
  std::optional<bool> on = choice.on;
  if (!on.has_value() && off_by_effort) on = false;
  if (!on.has_value() && choice.effort.is_null()) return;
  if (!kwargs.is_object()) kwargs = Json::Object();
  if (!choice.effort.is_null() && !off_by_effort && kwargs.Find("reasoning_effort") == nullptr) {
    kwargs.Set("reasoning_effort", choice.effort);
  }
  const bool said = kwargs.Find("thinking") != nullptr || kwargs.Find("enable_thinking") != nullptr;
  if (!on.has_value() || said) return;
  kwargs.Set("thinking", Json::Bool(*on));
  kwargs.Set("enable_thinking", Json::Bool(*on));
}

}  // namespace deepinfer
