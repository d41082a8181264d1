#include "api/prompt_list.h"

#include "api/json_fields.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kPromptsMax = 2048;

Result<PromptInput> TextPrompt(const std::string& key, const std::string& text, bool add_special,
                               const DialectContext& context) {
  if (context.tokenizer == nullptr) {
    return Invalid(Format("the model has no tokenizer: give \"{}\" as token ids", key))
        .WithParam(key);
  }
  EncodeOptions encode;
  encode.add_special_tokens = add_special;
  PromptInput prompt;
  prompt.ids = context.tokenizer->Encode(text, encode);
  prompt.echo = text;
  return prompt;
}

Result<PromptInput> IdPrompt(const std::string& key, const Json& list,
                             const DialectContext& context) {
  PromptInput prompt;
  DI_TRY(ReadIdList(list, key, size_t{16} << 20, &prompt.ids));
  if (context.tokenizer != nullptr) prompt.echo = context.tokenizer->Decode(prompt.ids, false);
  return prompt;
}

Status WrongPrompt(const std::string& key) {
  return Invalid(Format("\"{}\" must be a text, a list of texts, a list of token ids or a list of "
                        "lists of token ids",
                        key))
      .WithParam(key);
}

}  // namespace

Result<std::vector<PromptInput>> ReadPrompts(const Json& body, const std::string& key,
                                             const DialectContext& context) {
  bool add_special = true;
  DI_TRY(ReadBool(body, "add_special_tokens", &add_special));
  const Json* value = FindField(body, key);
  if (value == nullptr) return Invalid(Format("\"{}\" is required", key)).WithParam(key);
  std::vector<PromptInput> prompts;
  if (value->is_string()) {
    DI_ASSIGN(prompts.emplace_back(), TextPrompt(key, value->string(), add_special, context));
    return prompts;
  }
  if (!value->is_array()) return WrongPrompt(key);
  const auto& items = value->items();
  if (items.empty()) return Invalid(Format("\"{}\" is an empty list", key)).WithParam(key);
  if (items[0].is_number()) {
    DI_ASSIGN(prompts.emplace_back(), IdPrompt(key, *value, context));
    return prompts;
  }
  if (items.size() > kPromptsMax) {
    return Invalid(Format("\"{}\" has {} entries, allowed are {}", key, items.size(), kPromptsMax))
        .WithParam(key);
  }
  for (const Json& item : items) {
    if (item.kind() != items[0].kind()) return WrongPrompt(key);
    if (item.is_string()) {
      DI_ASSIGN(prompts.emplace_back(), TextPrompt(key, item.string(), add_special, context));
    } else if (item.is_array()) {
      DI_ASSIGN(prompts.emplace_back(), IdPrompt(key, item, context));
    } else {
      return WrongPrompt(key);
    }
  }
  return prompts;
}

}  // namespace deepinfer
