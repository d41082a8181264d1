// Chat messages and tools as JSON to a Dialog, for models whose prompt format is a profile.
// Pure functions.
#pragma once

#include "api/chat_prompt.h"
#include "text/dialog.h"

namespace deepinfer {

// Reads `messages` and, of `options`, tools, template_kwargs (thinking, enable_thinking,
// reasoning_effort) and generation. Errors name the field.
Result<Dialog> DialogFromJson(const Json& messages, const ChatPromptOptions& options);

}  // namespace deepinfer
