// Prompts that are no conversation, as completions and embeddings take them. Pure, any thread.
#pragma once

#include <string>
#include <vector>

#include "api/dialect.h"

namespace deepinfer {

struct PromptInput {
  std::vector<TokenId> ids;
  std::string echo;  // its text
};

// `body[key]`: a text, a list of texts, a list of ids, or a list of lists of ids; texts with the
// tokenizer's prefix unless `add_special_tokens` is false.
Result<std::vector<PromptInput>> ReadPrompts(const Json& body, const std::string& key,
                                             const DialectContext& context);

}  // namespace deepinfer
