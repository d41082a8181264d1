#include "api/chat_prompt.h"

#include <algorithm>

#include "api/dialog_json.h"
#include "api/error.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr std::string_view kTextParts[] = {"text", "input_text", "output_text"};
constexpr size_t kMessagesMax = 100'000;

// How tool call arguments reach the template: clients send JSON text, most templates want the
// object, some the text.
enum class Arguments { kObject, kText };

std::string MessageParam(size_t index, std::string_view field) {
  return Format("messages[{}].{}", index, field);
}

bool IsOneOf(std::span<const std::string_view> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Json TextPart(std::string text) {
  Json part = Json::Object();
  part.Set("type", Json::String("text"));
  part.Set("text", Json::String(std::move(text)));
  return part;
}

// Content as the template reads it: a list of text parts, or one text.
Result<Json> TemplateContent(const Json& content, const std::string& param,
                             const ChatTemplate& chat_template) {
  DI_ASSIGN(std::string text, ContentText(content, param));
  const bool as_parts = chat_template.wants_content_parts() &&
                        (content.is_array() || !chat_template.takes_content_string());
  if (!as_parts) return Json::String(std::move(text));
  Json parts = Json::Array();
  if (content.is_string()) {
    parts.Push(TextPart(std::move(text)));
    return parts;
  }
  for (const Json& part : content.items()) {
    parts.Push(TextPart(part.is_string() ? part.string() : part.Find("text")->string()));
  }
  return parts;
}

Result<Json> CheckToolCalls(const Json& calls, const std::string& param, Arguments arguments) {
  if (!calls.is_array()) return Invalid("\"tool_calls\" must be a list").WithParam(param);
  Json out = Json::Array();
  for (const Json& call : calls.items()) {
    const Json* function = call.Find("function");
    if (function == nullptr || !function->is_object() || function->Find("name") == nullptr ||
        !function->Find("name")->is_string()) {
      return Invalid("a tool call needs a \"function\" with a \"name\"").WithParam(param);
    }
    Json copy = call;
    const Json* text = function->Find("arguments");
    if (text != nullptr && text->is_string() && arguments == Arguments::kObject) {
      const Result<Json> parsed = Json::Parse(text->string());
      if (parsed.ok() && parsed->is_object()) {
        Json inner = *function;
        inner.Set("arguments", *parsed);
        copy.Set("function", std::move(inner));
      }
    } else if (text != nullptr && text->is_object() && arguments == Arguments::kText) {
      Json inner = *function;
      inner.Set("arguments", Json::String(text->Dump()));
      copy.Set("function", std::move(inner));
    }
    out.Push(std::move(copy));
  }
  return out;
}

Result<Json> CheckMessage(const Json& message, size_t index, const ChatTemplate& chat_template,
                          Arguments arguments) {
  if (!message.is_object()) {
    return Invalid("a message must be an object").WithParam(Format("messages[{}]", index));
  }
  const Json* role = message.Find("role");
  if (role == nullptr || !role->is_string() || !IsOneOf(kRoles, role->string())) {
    return Invalid(Format("role {} is unknown; roles are system, developer, user, assistant, tool",
                          role == nullptr ? "(none)" : role->Dump().substr(0, 64)))
        .WithParam(MessageParam(index, "role"));
  }
  Json out = message;
  // No template of ours knows "developer"; OpenAI means by it what others call "system".
  if (role->string() == "developer") out.Set("role", Json::String("system"));
  const Json* calls = message.Find("tool_calls");
  const bool has_calls = calls != nullptr && !calls->is_null();
  if (has_calls) {
    DI_ASSIGN(Json checked, CheckToolCalls(*calls, MessageParam(index, "tool_calls"), arguments));
    out.Set("tool_calls", std::move(checked));
  }
  const Json* content = message.Find("content");
  if (content != nullptr && !content->is_null()) {
    DI_ASSIGN(Json shaped,
              TemplateContent(*content, MessageParam(index, "content"), chat_template));
    out.Set("content", std::move(shaped));
  } else if (role->string() != "assistant" || !has_calls) {
    return Invalid("a message needs \"content\"").WithParam(MessageParam(index, "content"));
  } else {
    out.Set("content", Json());
  }
  const Json* reasoning = message.Find("reasoning");
  if (reasoning != nullptr && message.Find("reasoning_content") == nullptr) {
    out.Set("reasoning_content", *reasoning);
  }
  return out;
}

Result<Json> CheckMessages(const Json& messages, const ChatTemplate& chat_template,
                           Arguments arguments) {
  if (!messages.is_array() || messages.items().empty()) {
    return Invalid("\"messages\" must be a list with at least one message").WithParam("messages");
  }
  if (messages.items().size() > kMessagesMax) {
    return Invalid(Format("\"messages\" has {} entries, allowed are {}", messages.items().size(),
                          kMessagesMax))
        .WithParam("messages");
  }
  Json checked = Json::Array();
  for (size_t i = 0; i < messages.items().size(); ++i) {
    DI_ASSIGN(Json message, CheckMessage(messages.items()[i], i, chat_template, arguments));
    checked.Push(std::move(message));
  }
  return checked;
}

bool HasToolCalls(const Json& messages) {
  for (const Json& message : messages.items()) {
    const Json* calls = message.Find("tool_calls");
    if (calls != nullptr && !calls->items().empty()) return true;
  }
  return false;
}

void SetSpecial(Json* variables, const char* name, const Tokenizer& tokenizer, TokenId id) {
  if (id >= 0 && id < tokenizer.vocab_size()) {
    variables->Set(name, Json::String(tokenizer.Piece(id)));
  }
}

Json TemplateVariables(const Tokenizer& tokenizer, Json messages,
                       const ChatPromptOptions& options) {
  Json variables = Json::Object();
  variables.Set("messages", std::move(messages));
  variables.Set("tools", options.tools);
  variables.Set("documents", options.documents);
  variables.Set("add_generation_prompt",
                Json::Bool(options.generation == ChatPromptOptions::Generation::kAddPrompt));
  SetSpecial(&variables, "bos_token", tokenizer, tokenizer.bos_id());
  SetSpecial(&variables, "eos_token", tokenizer, tokenizer.eos_id());
  SetSpecial(&variables, "pad_token", tokenizer, tokenizer.spec().pad_id);
  SetSpecial(&variables, "unk_token", tokenizer, tokenizer.spec().unk_id);
  return variables;
}

void CutAt(size_t size, RenderedPrompt* prompt) {
  prompt->text.resize(size);
  for (TrustedSpan& span : prompt->trusted) span.end = std::min(span.end, size);
  std::erase_if(prompt->trusted, [](const TrustedSpan& span) { return span.begin >= span.end; });
}

// Cuts what the template wrote after the last message's text, so that the model goes on in it.
Status CutAfterFinalMessage(const Json& messages, RenderedPrompt* prompt) {
  const Json* content = messages.items().back().Find("content");
  std::string text = content->string();
  if (content->is_array() && !content->items().empty()) {
    text = content->items().back().Find("text")->string();
  }
  const std::string_view blanks = " \t\r\n\v\f";
  const size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  const size_t end = text.find_last_not_of(blanks) + 1;  // npos + 1 is 0
  const std::string kept = text.substr(begin, end > begin ? end - begin : 0);
  const size_t at = kept.empty() ? std::string::npos : prompt->text.rfind(kept);
  if (at == std::string::npos) {
    return Invalid(
               "continue_final_message: the template does not write the final message's text "
               "as it is")
        .WithParam("continue_final_message");
  }
  // The blanks at the end of the text stay where the template kept them.
  const std::string tail = text.substr(begin);
  const bool keeps_tail = prompt->text.compare(at, tail.size(), tail) == 0;
  CutAt(at + (keeps_tail ? tail.size() : kept.size()), prompt);
  return {};
}

Status CheckOptions(const Json& messages, const ChatPromptOptions& options) {
  for (const auto& [key, value] : options.template_kwargs.members()) {
    for (const char* reserved :
         {"messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token"}) {
      if (key != reserved) continue;
      return Invalid(Format("chat_template_kwargs may not set \"{}\"", key))
          .WithParam("chat_template_kwargs");
    }
  }
  if (options.generation != ChatPromptOptions::Generation::kContinueFinalMessage) return {};
  const Json* content = messages.items().back().Find("content");
  if (content != nullptr && (!content->string().empty() || !content->items().empty())) return {};
  return Invalid("continue_final_message needs content in the final message")
      .WithParam("continue_final_message");
}

Status WithMessagesParam(const Status& status) {
  return Status(status.code(), status.message()).WithParam("messages");
}

}  // namespace

Result<std::string> ContentText(const Json& content, const std::string& param,
                                std::string_view join) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) {
    return Invalid("\"content\" must be a text or a list of parts").WithParam(param);
  }
  std::string text;
  const Json* first = content.items().data();
  for (const Json& part : content.items()) {
    const Json* type = part.Find("type");
    if (!part.is_string() && (type == nullptr || !IsOneOf(kTextParts, type->string()))) {
      return Invalid(Format("content part of type {} is not supported: this model reads text",
                            type == nullptr ? "(none)" : type->Dump().substr(0, 32)))
          .WithParam(param)
          .WithReason(kUnsupportedParameter);
    }
    const Json* value = part.is_string() ? &part : part.Find("text");
    if (value == nullptr || !value->is_string()) {
      return Invalid("a text part needs \"text\"").WithParam(param);
    }
    if (&part != first) text += join;
    text += value->string();
  }
  return text;
}

Result<RenderedPrompt> RenderChat(const ChatTemplate* chat_template, const Tokenizer* tokenizer,
                                  const Json& messages, const ChatPromptOptions& options) {
  if (tokenizer == nullptr) {
    return Invalid("the model has no tokenizer: send token ids to /v1/completions");
  }
  if (options.profile != nullptr) {
    DI_ASSIGN(const Dialog dialog, DialogFromJson(messages, options));
    return RenderDialog(*options.profile, dialog);
  }
  if (chat_template == nullptr) {
    return Invalid(
        "the model has no chat template: use /v1/completions, or give a template with "
        "--chat-template");
  }
  DI_ASSIGN(Json checked, CheckMessages(messages, *chat_template, Arguments::kObject));
  DI_TRY(CheckOptions(checked, options));
  const Json* kwargs = options.template_kwargs.is_object() ? &options.template_kwargs : nullptr;
  Result<RenderedPrompt> prompt =
      chat_template->Render(TemplateVariables(*tokenizer, checked, options), kwargs);
  if (!prompt.ok() && HasToolCalls(checked)) {
    // This template may be one of those that concatenate the arguments as text.
    DI_ASSIGN(checked, CheckMessages(messages, *chat_template, Arguments::kText));
    Result<RenderedPrompt> with_text =
        chat_template->Render(TemplateVariables(*tokenizer, checked, options), kwargs);
    if (with_text.ok()) prompt = std::move(with_text);
  }
  if (!prompt.ok()) return WithMessagesParam(prompt.status());
  if (options.generation == ChatPromptOptions::Generation::kContinueFinalMessage) {
    DI_TRY(CutAfterFinalMessage(checked, &*prompt));
  }
  return prompt;
}

Result<std::vector<TokenId>> EncodeRendered(const RenderedPrompt& prompt,
                                            const Tokenizer& tokenizer,
                                            const ChatPromptOptions& options) {
  EncodeOptions encode;
  encode.add_special_tokens = options.prefix == ChatPromptOptions::Prefix::kTokenizer;
  encode.spans_only = options.trust == SpecialTokenTrust::kTemplate;
  if (options.profile != nullptr) encode.bound = EncodeOptions::Bound::kEveryAdded;
  encode.spans = prompt.trusted;
  std::vector<TokenId> ids = tokenizer.Encode(prompt.text, encode);
  const TokenId bos = tokenizer.bos_id();
  if (encode.add_special_tokens && bos >= 0 && ids.size() > 1 && ids[0] == bos && ids[1] == bos) {
    ids.erase(ids.begin());
  }
  if (ids.empty()) return Invalid("the messages render to no token").WithParam("messages");
  return ids;
}

Result<std::vector<TokenId>> EncodeChat(const ChatTemplate* chat_template,
                                        const Tokenizer* tokenizer, const Json& messages,
                                        const ChatPromptOptions& options) {
  DI_ASSIGN(const RenderedPrompt prompt, RenderChat(chat_template, tokenizer, messages, options));
  return EncodeRendered(prompt, *tokenizer, options);
}

}  // namespace deepinfer
