// Messages to token ids: the chat template, then the tokenizer with special tokens recognised only
// in what the template wrote itself. Used by the chat dialect, /tokenize, generate and chat.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct ChatPromptOptions {
  enum class Generation {
    kAddPrompt,
    kContinueFinalMessage,
    kNone
  } generation = Generation::kAddPrompt;
  Json template_kwargs;  // null or an object: further template variables
};

// Checks `messages` (roles, content texts or lists of text parts) and renders them. The two text
// parts may be nullptr when the checkpoint has none: an error says so.
Result<RenderedPrompt> RenderChat(const ChatTemplate* chat_template, const Tokenizer* tokenizer,
                                  const Json& messages, const ChatPromptOptions& options);

// RenderChat, then Encode without the post-processor: the template writes BOS where one belongs.
Result<std::vector<TokenId>> EncodeChat(const ChatTemplate* chat_template,
                                        const Tokenizer* tokenizer, const Json& messages,
                                        const ChatPromptOptions& options);

}  // namespace deepinfer
