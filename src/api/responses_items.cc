// Items of /v1/responses to messages of a chat request.
#include <unordered_set>
#include <utility>

#include "api/error.h"
#include "api/json_fields.h"
#include "api/responses.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kItemsMax = 100'000;
constexpr std::string_view kJoin = "\n\n";
constexpr const char* kNoDocument = "[Unsupported Document]";

Status Refuse(const std::string& param, std::string message) {
  return Invalid(std::move(message)).WithParam(param);
}

std::string TextOr(const Json& object, std::string_view key, std::string fallback) {
  const Json* value = object.Find(key);
  return value != nullptr && value->is_string() ? value->string() : fallback;
}

Result<std::string> NeedText(const Json& item, std::string_view key, const std::string& param) {
  const Json* value = item.Find(key);
  if (value == nullptr || !value->is_string()) {
    return Refuse(param, Format("the item needs a text \"{}\"", key));
  }
  return value->string();
}

void Join(std::string_view text, std::string_view between, std::string* onto) {
  if (!onto->empty()) *onto += between;
  *onto += text;
}

Result<std::string> ContentOf(const Json* content, const std::string& param) {
  if (content == nullptr || content->is_null()) return Refuse(param, "the item needs \"content\"");
  if (content->is_string()) return content->string();
  if (!content->is_array()) return Refuse(param, "must be a text or a list of parts");
  std::string text;
  for (size_t i = 0; i < content->items().size(); ++i) {
    const Json& part = content->items()[i];
    const std::string where = Format("{}[{}]", param, i);
    const std::string type = TextOr(part, "type", "");
    if (type == "input_text" || type == "output_text" || type == "text") {
      DI_ASSIGN(const std::string value, NeedText(part, "text", where));
      Join(value, kJoin, &text);
    } else if (type == "refusal") {
      DI_ASSIGN(const std::string value, NeedText(part, "refusal", where));
      Join(value, kJoin, &text);
    } else if (type == "input_file") {
      Join(kNoDocument, kJoin, &text);
    } else if (type == "input_image") {
      return Refuse(where, "images are not supported: this model reads text")
          .WithReason(kUnsupportedParameter);
    } else {
      return Refuse(where, Format("a part of type {:?} may not stand here", type.substr(0, 64)));
    }
  }
  return text;
}

class Conversation {
 public:
  Status Add(const Json& item, const std::string& param);
  Result<Json> Take();

 private:
  Status AddMessage(const Json& item, const std::string& param);
  Status AddReasoning(const Json& item, const std::string& param);
  Status AddCall(const Json& item, const std::string& param, std::string arguments);
  Status AddOutput(const Json& item, const std::string& param);
  Status EndCalls(const std::string& param) const;
  void EndAssistant();
  Json& Push(const char* role, std::string content) {
    Json& message = messages_.Push(Json::Object());
    message.Set("role", Json::String(role));
    message.Set("content", Json::String(std::move(content)));
    return message;
  }

  Json messages_ = Json::Array();
  // The assistant's turn that is being gathered.
  bool open_ = false;
  std::string text_, reasoning_;
  Json calls_ = Json::Array();
  std::unordered_set<std::string> asked_;  // calls without an output so far
  std::unordered_set<std::string> seen_;
};

Status Conversation::EndCalls(const std::string& param) const {
  if (asked_.empty()) return {};
  return Refuse(param, Format("the function call {:?} has no output before this item",
                              asked_.begin()->substr(0, 128)));
}

void Conversation::EndAssistant() {
  if (!std::exchange(open_, false)) return;
  Json& message = messages_.Push(Json::Object());
  message.Set("role", Json::String("assistant"));
  message.Set("content", Json::String(std::exchange(text_, {})));
  if (!reasoning_.empty()) {
    message.Set("reasoning_content", Json::String(std::exchange(reasoning_, {})));
  }
  if (!calls_.items().empty()) message.Set("tool_calls", std::exchange(calls_, Json::Array()));
}

Status Conversation::Add(const Json& item, const std::string& param) {
  if (!item.is_object()) return Refuse(param, "an item must be an object");
  const std::string type = TextOr(item, "type", "message");
  if (type == "message") return AddMessage(item, param);
  if (type == "reasoning") return AddReasoning(item, param);
  if (type == "function_call") {
    DI_ASSIGN(std::string arguments, NeedText(item, "arguments", param));
    return AddCall(item, param, std::move(arguments));
  }
  if (type == "custom_tool_call") {
    DI_ASSIGN(std::string input, NeedText(item, "input", param));
    Json arguments = Json::Object();
    arguments.Set("input", Json::String(std::move(input)));
    return AddCall(item, param, arguments.Dump());
  }
  if (type == "function_call_output" || type == "custom_tool_call_output") {
    return AddOutput(item, param);
  }
  return Refuse(param, Format("an item of type {:?} is not supported", type.substr(0, 64)))
      .WithReason(kUnsupportedParameter);
}

Status Conversation::AddMessage(const Json& item, const std::string& param) {
  const std::string role = TextOr(item, "role", "");
  DI_ASSIGN(std::string text, ContentOf(item.Find("content"), param + ".content"));
  if (role == "assistant") {
    if (!calls_.items().empty()) EndAssistant();
    DI_TRY(EndCalls(param));
    open_ = true;
    Join(text, kJoin, &text_);
    return {};
  }
  EndAssistant();
  DI_TRY(EndCalls(param));
  if (role == "system") {
    Push("system", std::move(text));
  } else if (role == "user" || role == "developer") {
    Push("user", std::move(text));
  } else {
    return Refuse(param + ".role",
                  Format("role {:?} is unknown; roles are user, assistant, system, developer",
                         role.substr(0, 64)));
  }
  return {};
}

// Text of reasoning goes with the assistant's turn that follows.
Status Conversation::AddReasoning(const Json& item, const std::string& param) {
  if (open_) EndAssistant();
  DI_TRY(EndCalls(param));
  open_ = true;
  const Json* content = FindField(item, "content");
  if (content == nullptr) return {};
  if (!content->is_array()) return Refuse(param + ".content", "must be a list of parts");
  for (const Json& part : content->items()) {
    DI_ASSIGN(const std::string text, NeedText(part, "text", param + ".content"));
    Join(text, "\n", &reasoning_);
  }
  return {};
}

Status Conversation::AddCall(const Json& item, const std::string& param, std::string arguments) {
  DI_ASSIGN(const std::string id, NeedText(item, "call_id", param));
  DI_ASSIGN(const std::string name, NeedText(item, "name", param));
  if (id.empty()) return Refuse(param, "\"call_id\" must not be empty");
  if (!seen_.insert(id).second) {
    return Refuse(param, Format("two calls have the call_id {:?}", id.substr(0, 128)));
  }
  asked_.insert(id);
  open_ = true;
  Json function = Json::Object();
  function.Set("name", Json::String(name));
  function.Set("arguments", Json::String(std::move(arguments)));
  Json& call = calls_.Push(Json::Object());
  call.Set("id", Json::String(id));
  call.Set("type", Json::String("function"));
  call.Set("function", std::move(function));
  return {};
}

Status Conversation::AddOutput(const Json& item, const std::string& param) {
  DI_ASSIGN(const std::string id, NeedText(item, "call_id", param));
  if (asked_.erase(id) == 0) {
    return Refuse(param, Format("the output for {:?} answers no open call", id.substr(0, 128)));
  }
  EndAssistant();
  DI_ASSIGN(std::string text, ContentOf(item.Find("output"), param + ".output"));
  Push("tool", std::move(text)).Set("tool_call_id", Json::String(id));
  return {};
}

Result<Json> Conversation::Take() {
  EndAssistant();
  DI_TRY(EndCalls("input"));
  return std::move(messages_);
}

}  // namespace

Result<std::vector<Json>> ReadInputItems(const Json& body, std::string_view response_id) {
  std::vector<Json> items;
  const Json* input = FindField(body, "input");
  if (input == nullptr) return items;
  const auto add = [&](Json item) {
    if (item.is_object() && item.Find("id") == nullptr) {
      item.Set("id", Json::String(Format("in_{}_{}", response_id, items.size())));
    }
    items.push_back(std::move(item));
  };
  if (input->is_string()) {
    Json part = Json::Object();
    part.Set("type", Json::String("input_text"));
    part.Set("text", *input);
    Json message = Json::Object();
    message.Set("type", Json::String("message"));
    message.Set("role", Json::String("user"));
    message.Set("content", Json::Array()).Push(std::move(part));
    add(std::move(message));
    return items;
  }
  if (!input->is_array() || input->items().empty() || input->items().size() > kItemsMax) {
    return WrongKind("input", Format("a text or a list of 1 to {} items", kItemsMax));
  }
  for (const Json& item : input->items()) add(item);
  return items;
}

Result<Json> ChatMessagesOfItems(const std::vector<const Json*>& items, size_t input_count) {
  Conversation conversation;
  const size_t first_own = items.size() - input_count;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string param =
        i < first_own ? std::string("previous_response_id") : Format("input[{}]", i - first_own);
    DI_TRY(conversation.Add(*items[i], param));
  }
  return conversation.Take();
}

}  // namespace deepinfer
