#include "api/chat_prompt.h"

#include <algorithm>

#include "base/format.h"

namespace deepinfer {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

std::string MessageParam(size_t index, std::string_view field) {
  return Format("messages[{}].{}", index, field);
}

// The text of a content field: a string, or the texts of its parts joined by newlines.
Result<std::string> ContentText(const Json& content, size_t index) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) {
    return Invalid("\"content\" must be a text or a list of parts")
        .WithParam(MessageParam(index, "content"));
  }
  std::string text;
  for (const Json& part : content.items()) {
    const Json* type = part.Find("type");
    if (type == nullptr || type->string() != "text") {
      return Invalid(Format("content part of type {} is not supported: this model reads text",
                            type == nullptr ? "(none)" : type->Dump().substr(0, 32)))
          .WithParam(MessageParam(index, "content"));
    }
    const Json* value = part.Find("text");
    if (value == nullptr || !value->is_string()) {
      return Invalid("a text part needs \"text\"").WithParam(MessageParam(index, "content"));
    }
    if (!text.empty()) text.push_back('\n');
    text += value->string();
  }
  return text;
}

// Content as the template reads it: a list of text parts, or one text.
Json TemplateContent(std::string text, const ChatTemplate& chat_template) {
  if (!chat_template.wants_content_parts()) return Json::String(std::move(text));
  Json part = Json::Object();
  part.Set("type", Json::String("text"));
  part.Set("text", Json::String(std::move(text)));
  Json parts = Json::Array();
  parts.Push(std::move(part));
  return parts;
}

Result<Json> CheckMessage(const Json& message, size_t index, const ChatTemplate& chat_template) {
  if (!message.is_object()) {
    return Invalid("a message must be an object").WithParam(Format("messages[{}]", index));
  }
  const Json* role = message.Find("role");
  if (role == nullptr || !role->is_string() ||
      std::find(std::begin(kRoles), std::end(kRoles), role->string()) == std::end(kRoles)) {
    return Invalid(Format("role {} is unknown; roles are system, developer, user, assistant, tool",
                          role == nullptr ? "(none)" : role->Dump().substr(0, 64)))
        .WithParam(MessageParam(index, "role"));
  }
  Json out = message;
  // No template of ours knows "developer"; OpenAI means by it what others call "system".
  if (role->string() == "developer") out.Set("role", Json::String("system"));
  const Json* content = message.Find("content");
  if (content != nullptr && !content->is_null()) {
    DI_ASSIGN(std::string text, ContentText(*content, index));
    out.Set("content", TemplateContent(std::move(text), chat_template));
  } else if (role->string() != "assistant" || message.Find("tool_calls") == nullptr) {
    return Invalid("a message needs \"content\"").WithParam(MessageParam(index, "content"));
  }
  return out;
}

Json SpecialText(const Tokenizer& tokenizer, TokenId id) {
  return Json::String(id < 0 ? std::string() : tokenizer.Piece(id));
}

// Cuts what the template wrote after the last message's text, so that the model goes on in it.
Status CutAfterFinalMessage(const Json& messages, RenderedPrompt* prompt) {
  const Json& last = messages.items().back();
  const Json* content = last.Find("content");
  std::string text =
      content->is_string() ? content->string() : content->items().front().Find("text")->string();
  const size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);  // templates trim
  const size_t at = text.empty() ? std::string::npos : prompt->text.rfind(text);
  if (at == std::string::npos) {
    return Invalid(
               "continue_final_message: the template does not write the final message's text "
               "as it is")
        .WithParam("continue_final_message");
  }
  prompt->text.resize(at + text.size());
  for (TrustedSpan& span : prompt->trusted) span.end = std::min(span.end, prompt->text.size());
  std::erase_if(prompt->trusted, [](const TrustedSpan& span) { return span.begin >= span.end; });
  return {};
}

}  // namespace

Result<RenderedPrompt> RenderChat(const ChatTemplate* chat_template, const Tokenizer* tokenizer,
                                  const Json& messages, const ChatPromptOptions& options) {
  if (tokenizer == nullptr) {
    return Invalid("the model has no tokenizer: send token ids to /v1/completions");
  }
  if (chat_template == nullptr) {
    return Invalid(
        "the model has no chat template: use /v1/completions, or give a template with "
        "--chat-template");
  }
  if (!messages.is_array() || messages.items().empty()) {
    return Invalid("\"messages\" must be a list with at least one message").WithParam("messages");
  }
  Json checked = Json::Array();
  for (size_t i = 0; i < messages.items().size(); ++i) {
    DI_ASSIGN(Json message, CheckMessage(messages.items()[i], i, *chat_template));
    checked.Push(std::move(message));
  }
  using Generation = ChatPromptOptions::Generation;
  const bool continues = options.generation == Generation::kContinueFinalMessage;
  if (continues && (messages.items().back().Find("content") == nullptr ||
                    messages.items().back().Find("content")->is_null())) {
    return Invalid("continue_final_message needs content in the final message")
        .WithParam("continue_final_message");
  }
  Json variables = Json::Object();
  variables.Set("messages", checked);
  variables.Set("add_generation_prompt", Json::Bool(options.generation == Generation::kAddPrompt));
  variables.Set("bos_token", SpecialText(*tokenizer, tokenizer->bos_id()));
  variables.Set("eos_token", SpecialText(*tokenizer, tokenizer->eos_id()));
  for (const auto& [key, value] : options.template_kwargs.members()) {
    if (key == "messages" || key == "add_generation_prompt") {
      return Invalid(Format("chat_template_kwargs may not set \"{}\"", key))
          .WithParam("chat_template_kwargs");
    }
    variables.Set(key, value);
  }
  DI_ASSIGN(RenderedPrompt prompt, chat_template->Render(variables));
  if (continues) DI_TRY(CutAfterFinalMessage(checked, &prompt));
  return prompt;
}

Result<std::vector<TokenId>> EncodeChat(const ChatTemplate* chat_template,
                                        const Tokenizer* tokenizer, const Json& messages,
                                        const ChatPromptOptions& options) {
  DI_ASSIGN(const RenderedPrompt prompt, RenderChat(chat_template, tokenizer, messages, options));
  EncodeOptions encode;
  encode.add_special_tokens = false;  // the template writes them
  encode.spans_only = true;
  encode.spans = prompt.trusted;
  std::vector<TokenId> ids = tokenizer->Encode(prompt.text, encode);
  if (ids.empty()) return Invalid("the messages render to no token").WithParam("messages");
  return ids;
}

}  // namespace deepinfer
