// A conversation, however it arrived, to prompt ids and to how the answer is read. Used by every
// dialect that speaks in messages. Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "api/dialect.h"

namespace deepinfer {

struct ChatPlan {
  std::vector<TokenId> ids;
  OutputPlan output;
  std::optional<ThinkingBudget> thinking;  // for the sampling parameters
};

// `options` without tools: those of `tools` are shown when they are active. `messages` as in a chat
// request.
Result<ChatPlan> PlanChat(const Json& messages, ChatPromptOptions options, const ToolSet& tools,
                          const DialectContext& context);

// The prompt of `messages` with the tools of `options`. `style`: that of the context; it changes
// when the template knows no tools and they are told as text.
Result<RenderedPrompt> RenderConversation(const Json& messages, ChatPromptOptions options,
                                          const DialectContext& context, OutputStyle* style);

// What a dialect without a say in it asks of the prompt.
ChatPromptOptions DefaultPromptOptions(const DialectContext& context);

}  // namespace deepinfer
