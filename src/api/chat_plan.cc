#include "api/chat_plan.h"

#include <utility>

#include "api/tool_text.h"

namespace deepinfer {

ChatPromptOptions DefaultPromptOptions(const DialectContext& context) {
  ChatPromptOptions options;
  options.trust = context.trust;
  options.profile = context.prompt_profile;
  return options;
}

Result<RenderedPrompt> RenderConversation(const Json& messages, ChatPromptOptions options,
                                          const DialectContext& context, OutputStyle* style) {
  const bool as_text = context.chat_template != nullptr && context.prompt_profile == nullptr &&
                       style->tools == OutputStyle::Tools::kAbsent &&
                       (!options.tools.items().empty() || MentionsTools(messages));
  if (!as_text) {
    return RenderChat(context.chat_template, context.tokenizer, messages, options);
  }
  const Json tools = std::exchange(options.tools, Json());
  style->profile = FindOutputProfile("hermes");
  style->tools = OutputStyle::Tools::kRendered;
  Result<RenderedPrompt> prompt = Invalid("");
  for (const ToolPlace place : {ToolPlace::kSystem, ToolPlace::kUser}) {
    DI_ASSIGN(const Json told, ToolsAsText(messages, tools, place));
    prompt = RenderChat(context.chat_template, context.tokenizer, told, options);
    if (prompt.ok()) break;
  }
  return prompt;
}

Result<ChatPlan> PlanChat(const Json& messages, ChatPromptOptions options, const ToolSet& tools,
                          const DialectContext& context) {
  if (tools.active()) options.tools = tools.tools;
  OutputStyle style = context.output;
  DI_ASSIGN(const RenderedPrompt prompt, RenderConversation(messages, options, context, &style));
  ChatPlan plan;
  DI_ASSIGN(plan.output, PlanOutput(style, prompt, tools));
  if (options.thinking_budget.has_value()) {
    plan.thinking = PlanThinking(plan.output, *options.thinking_budget, *context.tokenizer);
  }
  DI_ASSIGN(plan.ids, EncodeRendered(prompt, *context.tokenizer, options));
  return plan;
}

}  // namespace deepinfer
