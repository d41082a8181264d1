// POST /apply-template: the text that a conversation becomes. Pure function, any thread.
#pragma once

#include "api/dialect.h"

namespace deepinfer {

// {"prompt": text} of "messages", with "tools" and what /tokenize reads beside them.
Result<Json> ApplyTemplate(const Json& body, const DialectContext& context);

// Those options: tools, add_generation_prompt, continue_final_message, add_special_tokens,
// chat_template_kwargs.
Result<ChatPromptOptions> ReadMessageOptions(const Json& body, const DialectContext& context);

}  // namespace deepinfer
