#include "api/tokenize.h"

#include <span>

#include "api/apply_template.h"
#include "api/chat_plan.h"
#include "api/error.h"
#include "api/json_fields.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kIdsMax = size_t{16} << 20;
constexpr std::string_view kTextFields[] = {
    "model",         "prompt",      "content",           "add_special", "add_special_tokens",
    "parse_special", "with_pieces", "return_token_strs",
};
constexpr std::string_view kIdsFields[] = {"model", "tokens", "skip_special_tokens"};

Status CheckFields(const Json& body, std::span<const std::string_view> known,
                   const DialectContext& context) {
  if (context.unknown_fields == DialectContext::UnknownFields::kWarn) return {};
  return CheckMembers(body, known, "");
}

Status NeedTokenizer(const DialectContext& context) {
  if (context.tokenizer != nullptr) return {};
  return Invalid("the model has no tokenizer");
}

Result<std::vector<TokenId>> EncodeMessages(const Json& body, const Json& messages,
                                            const DialectContext& context) {
  DI_ASSIGN(const ChatPromptOptions options, ReadMessageOptions(body, context));
  OutputStyle style = context.output;
  DI_ASSIGN(const RenderedPrompt prompt, RenderConversation(messages, options, context, &style));
  return EncodeRendered(prompt, *context.tokenizer, options);
}

Result<std::vector<TokenId>> EncodeText(const Json& body, const DialectContext& context) {
  DI_TRY(CheckFields(body, kTextFields, context));
  const Json* prompt = FindField(body, "prompt");
  const Json* content = FindField(body, "content");
  const Json* text = prompt != nullptr ? prompt : content;
  const char* key = prompt != nullptr ? "prompt" : "content";
  if (text == nullptr) {
    return Invalid("one of \"prompt\", \"messages\" and \"content\" is required")
        .WithParam("prompt");
  }
  if (!text->is_string()) return WrongKind(key, "a text");
  // vLLM adds BOS unless told otherwise, llama.cpp only when told.
  bool special = prompt != nullptr;
  DI_TRY(ReadBool(body, "add_special", &special));
  DI_TRY(ReadBool(body, "add_special_tokens", &special));
  bool parse_special = true;
  DI_TRY(ReadBool(body, "parse_special", &parse_special));
  EncodeOptions encode;
  encode.add_special_tokens = special;
  encode.spans_only = !parse_special;
  return context.tokenizer->Encode(text->string(), encode);
}

// A token's bytes as text, or as a list of numbers where they are no text of their own.
Json PieceJson(std::string_view bytes) {
  std::string quoted = "[";
  AppendJsonString(&quoted, bytes);
  quoted += "]";
  const Result<Json> parsed = Json::Parse(quoted);
  if (parsed.ok() && parsed->items()[0].string() == bytes) return parsed->items()[0];
  Json list = Json::Array();
  for (const char byte : bytes) list.Push(Json::Int(static_cast<unsigned char>(byte)));
  return list;
}

}  // namespace

Result<Json> Tokenize(const Json& body, const DialectContext& context) {
  DI_TRY(NeedTokenizer(context));
  if (!body.is_object()) return Invalid("the request body must be a JSON object");
  const Json* messages = FindField(body, "messages");
  Result<std::vector<TokenId>> ids =
      messages != nullptr ? EncodeMessages(body, *messages, context) : EncodeText(body, context);
  if (!ids.ok()) return ids.status();
  bool strings = false, pieces = false;
  DI_TRY(ReadBool(body, "return_token_strs", &strings));
  DI_TRY(ReadBool(body, "with_pieces", &pieces));
  Json answer = Json::Object();
  answer.Set("count", Json::Int(static_cast<int64_t>(ids->size())));
  answer.Set("max_model_len", Json::Int(context.max_model_len));
  Json& tokens = answer.Set("tokens", Json::Array());
  for (const TokenId id : *ids) {
    if (!pieces) {
      tokens.Push(Json::Int(id));
      continue;
    }
    Json& entry = tokens.Push(Json::Object());
    entry.Set("id", Json::Int(id));
    entry.Set("piece", PieceJson(context.tokenizer->Bytes(id)));
  }
  if (strings) {
    Json& list = answer.Set("token_strs", Json::Array());
    for (const TokenId id : *ids) list.Push(Json::String(context.tokenizer->Piece(id)));
  }
  return answer;
}

Result<Json> Detokenize(const Json& body, const DialectContext& context) {
  DI_TRY(NeedTokenizer(context));
  if (!body.is_object()) return Invalid("the request body must be a JSON object");
  DI_TRY(CheckFields(body, kIdsFields, context));
  if (FindField(body, "tokens") == nullptr) {
    return Invalid("\"tokens\" is required: a list of token ids").WithParam("tokens");
  }
  std::vector<TokenId> ids;
  DI_TRY(ReadIds(body, "tokens", kIdsMax, &ids));
  for (const TokenId id : ids) {
    if (id < context.vocab) continue;
    return Invalid(Format("\"tokens\" has the id {}; this model has the ids 0 to {}", id,
                          context.vocab - 1))
        .WithParam("tokens");
  }
  bool skip_special = false;
  DI_TRY(ReadBool(body, "skip_special_tokens", &skip_special));
  const std::string text = context.tokenizer->Decode(ids, skip_special);
  Json answer = Json::Object();
  answer.Set("prompt", Json::String(text));
  answer.Set("content", Json::String(text));
  return answer;
}

}  // namespace deepinfer
