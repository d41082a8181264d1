// Messages to token ids: the chat template, then the tokenizer with special tokens recognised only
// in what the template wrote itself. Used by the chat dialect, /tokenize, generate and chat.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "text/chat_template.h"
#include "text/prompt_profile.h"
#include "text/tokenizer.h"

namespace deepinfer {

// Where special tokens that are spelt out in a prompt count as such.
enum class SpecialTokenTrust {
  kTemplate,    // only in text the template wrote: a user cannot forge a turn
  kEverywhere,  // as Hugging Face does
};

struct ChatPromptOptions {
  enum class Generation {
    kAddPrompt,
    kContinueFinalMessage,
    kNone
  } generation = Generation::kAddPrompt;
  const PromptProfile* profile = nullptr;  // the prompt format, in place of the template
  Json tools;                              // null or a list as in chat requests
  Json template_kwargs;                // null or an object: further template variables, untrusted
  Json documents;                      // null or a list
  std::optional<int> thinking_budget;  // tokens
  SpecialTokenTrust trust = SpecialTokenTrust::kTemplate;
  // The tokenizer's own prefix (BOS) on top of what the template writes; never twice the same.
  enum class Prefix { kTemplate, kTokenizer } prefix = Prefix::kTemplate;
};

// Checks `messages` (roles, content texts or lists of text parts) and renders them. The two text
// parts may be nullptr when the checkpoint has none: an error says so.
Result<RenderedPrompt> RenderChat(const ChatTemplate* chat_template, const Tokenizer* tokenizer,
                                  const Json& messages, const ChatPromptOptions& options);

// The ids of a rendered prompt; control tokens count where `options` trust the text.
Result<std::vector<TokenId>> EncodeRendered(const RenderedPrompt& prompt,
                                            const Tokenizer& tokenizer,
                                            const ChatPromptOptions& options);

// RenderChat, then EncodeRendered.
Result<std::vector<TokenId>> EncodeChat(const ChatTemplate* chat_template,
                                        const Tokenizer* tokenizer, const Json& messages,
                                        const ChatPromptOptions& options);

// The text of a content field: a string, or the texts of its parts with `join` between.
Result<std::string> ContentText(const Json& content, const std::string& param,
                                std::string_view join = "\n");

}  // namespace deepinfer
