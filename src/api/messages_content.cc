// The blocks of Anthropic messages to messages of a chat request.
#include <unordered_set>
#include <utility>

#include "api/error.h"
#include "api/json_fields.h"
#include "api/messages.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kMessagesMax = 100'000;
constexpr std::string_view kJoin = "\n\n";
constexpr const char* kNoDocument = "[Unsupported Document]";

Status Refuse(const std::string& param, std::string message) {
  return Invalid(std::move(message)).WithParam(param);
}

void Join(std::string_view text, std::string* onto) {
  if (!onto->empty()) *onto += kJoin;
  *onto += text;
}

Result<std::string> TextField(const Json& block, std::string_view key, const std::string& param) {
  const Json* value = block.Find(key);
  if (value == nullptr || !value->is_string()) {
    return Refuse(param, Format("the block needs a text \"{}\"", key));
  }
  return value->string();
}

std::string TypeOf(const Json& block) {
  const Json* type = block.Find("type");
  return type == nullptr || !type->is_string() ? std::string() : type->string();
}

Status NoImages(const std::string& param) {
  return Refuse(param, "images are not supported: this model reads text")
      .WithReason(kUnsupportedParameter);
}

// A text, or blocks of text: of `system` and of results of tools.
Result<std::string> PlainText(const Json& content, const std::string& param) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) return Refuse(param, "must be a text or a list of blocks");
  std::string text;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Json& block = content.items()[i];
    const std::string where = Format("{}[{}]", param, i);
    const std::string type = TypeOf(block);
    if (type == "text") {
      DI_ASSIGN(const std::string part, TextField(block, "text", where));
      Join(part, &text);
    } else if (type == "document") {
      Join(kNoDocument, &text);
    } else if (type == "tool_reference") {
      DI_ASSIGN(const std::string part, TextField(block, "tool_name", where));
      Join(part, &text);
    } else if (type == "image") {
      return NoImages(where);
    } else {
      return Refuse(where, Format("a block of type {:?} may not stand here", type.substr(0, 64)));
    }
  }
  return text;
}

class Conversation {
 public:
  Status Add(const Json& message, size_t index);
  Result<Json> Take();
  void AddSystem(std::string text) { Push("system", std::move(text)); }

 private:
  Status AddUser(const Json& content, const std::string& param);
  Status AddAssistant(const Json& content, const std::string& param);
  Status AddResult(const Json& block, const std::string& param);
  Status AddCall(const Json& block, const std::string& param, Json* calls);
  Status CheckAnswered(const std::string& param) const;
  Json& Push(const char* role, std::string content) {
    Json& message = messages_.Push(Json::Object());
    message.Set("role", Json::String(role));
    message.Set("content", Json::String(std::move(content)));
    return message;
  }
  void FlushUser() {
    if (!text_.empty()) Push("user", std::exchange(text_, {}));
  }

  Json messages_ = Json::Array();
  std::string text_;                       // of a user, not yet a message
  std::unordered_set<std::string> asked_;  // ids of the assistant's calls that were not answered
  std::unordered_set<std::string> seen_;   // ids of all calls
};

Status Conversation::CheckAnswered(const std::string& param) const {
  if (asked_.empty()) return {};
  return Refuse(param, Format("the tool_use {:?} has no tool_result in the next user message",
                              asked_.begin()->substr(0, 128)));
}

Status Conversation::Add(const Json& message, size_t index) {
  const std::string param = Format("messages[{}]", index);
  if (!message.is_object()) return Refuse(param, "a message must be an object");
  const Json* role = message.Find("role");
  const std::string name = role != nullptr && role->is_string() ? role->string() : "";
  const Json* content = message.Find("content");
  const std::string where = param + ".content";
  const bool empty = content == nullptr || content->is_null() ||
                     (content->string().empty() && content->items().empty());
  if (empty) return Refuse(where, "a message needs \"content\" that is not empty");
  if (name == "assistant") {
    DI_TRY(CheckAnswered(where));
    return AddAssistant(*content, where);
  }
  if (name == "system") {
    DI_ASSIGN(const std::string text, PlainText(*content, where));
    DI_TRY(CheckAnswered(where));
    Push("user", "<system-reminder>\n" + text + "\n</system-reminder>");
    return {};
  }
  if (name != "user" && name != "ctx" && name != "msg") {
    return Refuse(param + ".role",
                  Format("role {:?} is unknown; roles are user and assistant", name.substr(0, 64)));
  }
  return AddUser(*content, where);
}

Status Conversation::AddUser(const Json& content, const std::string& param) {
  if (content.is_string()) {
    DI_TRY(CheckAnswered(param));
    Push("user", content.string());
    return {};
  }
  if (!content.is_array()) return Refuse(param, "must be a text or a list of blocks");
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Json& block = content.items()[i];
    const std::string where = Format("{}[{}]", param, i);
    const std::string type = TypeOf(block);
    if (type == "text") {
      DI_ASSIGN(const std::string text, TextField(block, "text", where));
      Join(text, &text_);
    } else if (type == "document") {
      Join(kNoDocument, &text_);
    } else if (type == "image") {
      return NoImages(where);
    } else if (type == "tool_result") {
      FlushUser();
      DI_TRY(AddResult(block, where));
    } else {
      return Refuse(where, Format("a block of type {:?} may not stand in a user's message",
                                  type.substr(0, 64)));
    }
  }
  FlushUser();
  return CheckAnswered(param);
}

Status Conversation::AddResult(const Json& block, const std::string& param) {
  DI_ASSIGN(const std::string id, TextField(block, "tool_use_id", param));
  if (asked_.erase(id) == 0) {
    return Refuse(param, Format("the tool_result answers {:?}, which is no open tool_use of the "
                                "message before",
                                id.substr(0, 128)));
  }
  std::string text;
  const Json* content = FindField(block, "content");
  if (content != nullptr) {
    DI_ASSIGN(text, PlainText(*content, param + ".content"));
  }
  const Json* failed = FindField(block, "is_error");
  if (failed != nullptr && !failed->is_bool()) {
    return Refuse(param, "\"is_error\" must be true or false");
  }
  Push("tool", std::move(text)).Set("tool_call_id", Json::String(id));
  return {};
}

Status Conversation::AddCall(const Json& block, const std::string& param, Json* calls) {
  DI_ASSIGN(const std::string id, TextField(block, "id", param));
  DI_ASSIGN(const std::string name, TextField(block, "name", param));
  if (!seen_.insert(id).second) {
    return Refuse(param, Format("two tool_use blocks have the id {:?}", id.substr(0, 128)));
  }
  const Json* input = FindField(block, "input");
  if (input != nullptr && !input->is_object()) {
    return Refuse(param, "the \"input\" of a tool_use must be an object");
  }
  asked_.insert(id);
  Json function = Json::Object();
  function.Set("name", Json::String(name));
  function.Set("arguments", Json::String(input == nullptr ? "{}" : input->Dump()));
  Json& call = calls->Push(Json::Object());
  call.Set("id", Json::String(id));
  call.Set("type", Json::String("function"));
  call.Set("function", std::move(function));
  return {};
}

Status Conversation::AddAssistant(const Json& content, const std::string& param) {
  if (content.is_string()) {
    Push("assistant", content.string());
    return {};
  }
  if (!content.is_array()) return Refuse(param, "must be a text or a list of blocks");
  std::string text, reasoning;
  Json calls = Json::Array();
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Json& block = content.items()[i];
    const std::string where = Format("{}[{}]", param, i);
    const std::string type = TypeOf(block);
    if (type == "text") {
      if (!calls.items().empty()) return Refuse(where, "text may not follow a tool_use");
      DI_ASSIGN(const std::string part, TextField(block, "text", where));
      Join(part, &text);
    } else if (type == "thinking") {
      DI_ASSIGN(const std::string part, TextField(block, "thinking", where));
      Join(part, &reasoning);
    } else if (type == "tool_use") {
      DI_TRY(AddCall(block, where, &calls));
    } else if (type != "redacted_thinking") {
      return Refuse(where, Format("a block of type {:?} may not stand in an assistant's message",
                                  type.substr(0, 64)));
    }
  }
  Json& message = Push("assistant", std::move(text));
  if (!reasoning.empty()) message.Set("reasoning_content", Json::String(std::move(reasoning)));
  if (!calls.items().empty()) message.Set("tool_calls", std::move(calls));
  return {};
}

Result<Json> Conversation::Take() {
  DI_TRY(CheckAnswered("messages"));
  return std::move(messages_);
}

}  // namespace

Result<Json> ChatMessagesOf(const Json& body) {
  const Json* messages = FindField(body, "messages");
  if (messages == nullptr) return Invalid("\"messages\" is required").WithParam("messages");
  if (!messages->is_array() || messages->items().empty() ||
      messages->items().size() > kMessagesMax) {
    return WrongKind("messages", Format("a list of 1 to {} messages", kMessagesMax));
  }
  Conversation conversation;
  if (const Json* system = FindField(body, "system")) {
    DI_ASSIGN(std::string text, PlainText(*system, "system"));
    if (!text.empty()) conversation.AddSystem(std::move(text));
  }
  for (size_t i = 0; i < messages->items().size(); ++i) {
    DI_TRY(conversation.Add(messages->items()[i], i));
  }
  return conversation.Take();
}

}  // namespace deepinfer
