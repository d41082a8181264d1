#include "api/apply_template.h"

#include "api/chat_plan.h"
#include "api/json_fields.h"

namespace deepinfer {
namespace {

constexpr std::string_view kFields[] = {
    "model",
    "messages",
    "tools",
    "continue_final_message",
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template_kwargs",
    "return_token_strs",
    "with_pieces",
};

}  // namespace

Result<ChatPromptOptions> ReadMessageOptions(const Json& body, const DialectContext& context) {
  if (context.unknown_fields == DialectContext::UnknownFields::kRefuse) {
    DI_TRY(RefuseUnknownFields(body, kFields));
  }
  ChatPromptOptions options = DefaultPromptOptions(context);
  if (const Json* tools = FindField(body, "tools")) {
    if (!tools->is_array()) return WrongKind("tools", "a list");
    options.tools = *tools;
  }
  bool continues = false, special = false;
  DI_TRY(ReadBool(body, "continue_final_message", &continues));
  bool adds = !continues;
  DI_TRY(ReadBool(body, "add_generation_prompt", &adds));
  DI_TRY(ReadBool(body, "add_special_tokens", &special));
  if (adds && continues) {
    return Invalid("\"continue_final_message\" and \"add_generation_prompt\" exclude each other")
        .WithParam("continue_final_message");
  }
  using Generation = ChatPromptOptions::Generation;
  options.generation = continues ? Generation::kContinueFinalMessage
                       : adds    ? Generation::kAddPrompt
                                 : Generation::kNone;
  if (special) options.prefix = ChatPromptOptions::Prefix::kTokenizer;
  if (const Json* kwargs = FindField(body, "chat_template_kwargs")) {
    if (!kwargs->is_object()) return WrongKind("chat_template_kwargs", "an object");
    options.template_kwargs = *kwargs;
  }
  return options;
}

Result<Json> ApplyTemplate(const Json& body, const DialectContext& context) {
  if (!body.is_object()) return Invalid("the request body must be a JSON object");
  const Json* messages = FindField(body, "messages");
  if (messages == nullptr) return Invalid("\"messages\" is required").WithParam("messages");
  DI_ASSIGN(const ChatPromptOptions options, ReadMessageOptions(body, context));
  OutputStyle style = context.output;
  DI_ASSIGN(RenderedPrompt prompt, RenderConversation(*messages, options, context, &style));
  Json answer = Json::Object();
  answer.Set("prompt", Json::String(std::move(prompt.text)));
  return answer;
}

}  // namespace deepinfer
