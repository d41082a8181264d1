#include "apps/prompt_file.h"

#include "base/format.h"

namespace deepinfer {
namespace {

Status ReadPrompt(const Json& value, PromptLine* out) {
  if (value.is_string()) {
    out->text = value.string();
    return {};
  }
  if (!value.is_array()) {
    return Invalid("\"prompt\" must be text or a list of token ids").WithParam("prompt");
  }
  for (const Json& item : value.items()) {
    DI_ASSIGN(const int64_t id, item.AsInt());
    if (id < 0 || id > INT32_MAX) {
      return Invalid(Format("token id {} is outside 0..{}", id, INT32_MAX)).WithParam("prompt");
    }
    out->ids.push_back(static_cast<TokenId>(id));
  }
  if (out->ids.empty()) return Invalid("\"prompt\" holds no token id").WithParam("prompt");
  return {};
}

Status ReadLineFields(const Json& value, PromptLine* out) {
  if (!value.is_object()) return Invalid("the line is not a JSON object");
  if (const Json* id = value.Find("id")) out->id = *id;
  const Json* prompt = value.Find("prompt");
  const Json* messages = value.Find("messages");
  if ((prompt == nullptr) == (messages == nullptr)) {
    return Invalid("the line needs either \"prompt\" or \"messages\"");
  }
  if (const Json* params = value.Find("params")) {
    if (!params->is_object() && !params->is_null()) {
      return Invalid("\"params\" must be an object").WithParam("params");
    }
    out->params = *params;
  }
  if (prompt != nullptr) return ReadPrompt(*prompt, out);
  if (!messages->is_array() || messages->items().empty()) {
    return Invalid("\"messages\" must be a list with at least one message").WithParam("messages");
  }
  out->messages = *messages;
  return {};
}

}  // namespace

PromptLine ParsePromptLine(const LineRecord& record) {
  PromptLine out;
  out.index = record.index;
  if (record.too_long) {
    out.status = Invalid(Format("the line is longer than {} bytes", LineReader::kLineBytesMax));
    return out;
  }
  const Result<Json> value = Json::Parse(record.text);
  out.status = value.ok() ? ReadLineFields(*value, &out) : value.status();
  return out;
}

std::optional<int64_t> IndexOfResult(std::string_view line) {
  const Result<Json> value = Json::Parse(line);
  if (!value.ok()) return std::nullopt;
  const Result<int64_t> index = value->GetInt("index", -1);
  return index.ok() && *index >= 0 ? std::optional<int64_t>(*index) : std::nullopt;
}

}  // namespace deepinfer
