#include "api/dialog_json.h"

#include <utility>

#include "api/error.h"
#include "base/format.h"

namespace deepinfer {
namespace {

using Role = DialogMessage::Role;

constexpr size_t kMessagesMax = 100'000;
constexpr size_t kToolsMax = 1024;
constexpr std::string_view kPartsJoin = "\n\n";  // as the models were trained

// OpenAI means by "developer" what these models know as "system".
constexpr std::pair<std::string_view, Role> kRoles[] = {
    {"system", Role::kSystem}, {"developer", Role::kSystem},
    {"user", Role::kUser},     {"assistant", Role::kAssistant},
    {"tool", Role::kTool},     {"latest_reminder", Role::kReminder},
};

std::string Field(size_t index, std::string_view field) {
  return Format("messages[{}].{}", index, field);
}

const Json* Present(const Json& object, std::string_view key) {
  const Json* value = object.Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<Role> ReadRole(const Json& message, size_t index) {
  const Json* role = message.Find("role");
  if (role != nullptr && role->is_string()) {
    for (const auto& [name, value] : kRoles) {
      if (name == role->string()) return value;
    }
  }
  return Invalid(Format("role {} is unknown; roles are system, developer, user, assistant, tool, "
                        "latest_reminder",
                        role == nullptr ? "(none)" : role->Dump().substr(0, 64)))
      .WithParam(Field(index, "role"));
}

Result<DialogCall> ReadCall(const Json& json, const std::string& param) {
  const Json* function = json.Find("function");
  const Json* name = function == nullptr ? nullptr : function->Find("name");
  if (name == nullptr || !name->is_string()) {
    return Invalid("a tool call needs a \"function\" with a \"name\"").WithParam(param);
  }
  DialogCall call;
  call.name = name->string();
  DI_ASSIGN(call.id, json.GetString("id", ""));
  const Json* arguments = Present(*function, "arguments");
  if (arguments == nullptr) {
    call.arguments = "{}";
  } else if (arguments->is_string()) {
    call.arguments = arguments->string();
  } else if (arguments->is_object()) {
    call.arguments = arguments->Dump();
  } else {
    return Invalid("the \"arguments\" of a tool call must be a JSON text or an object")
        .WithParam(param);
  }
  return call;
}

Status ReadAssistant(const Json& json, size_t index, DialogMessage* message) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const Json* reasoning = Present(json, key);
    if (reasoning == nullptr) continue;
    if (!reasoning->is_string()) {
      return Invalid(Format("\"{}\" must be a text", key)).WithParam(Field(index, key));
    }
    message->reasoning = reasoning->string();
    break;
  }
  const Json* calls = Present(json, "tool_calls");
  if (calls == nullptr) return {};
  const std::string param = Field(index, "tool_calls");
  if (!calls->is_array()) return Invalid("\"tool_calls\" must be a list").WithParam(param);
  for (const Json& call : calls->items()) {
    DI_ASSIGN(DialogCall read, ReadCall(call, param));
    message->calls.push_back(std::move(read));
  }
  return {};
}

Result<DialogMessage> ReadMessage(const Json& json, size_t index) {
  if (!json.is_object()) {
    return Invalid("a message must be an object").WithParam(Format("messages[{}]", index));
  }
  DialogMessage message;
  DI_ASSIGN(message.role, ReadRole(json, index));
  if (message.role == Role::kAssistant) DI_TRY(ReadAssistant(json, index, &message));
  if (message.role == Role::kTool) {
    if (const Json* id = Present(json, "tool_call_id")) {
      if (!id->is_string()) {
        return Invalid("\"tool_call_id\" must be a text").WithParam(Field(index, "tool_call_id"));
      }
      message.call_id = id->string();
    }
  }
  const Json* content = Present(json, "content");
  if (content != nullptr) {
    DI_ASSIGN(message.content, ContentText(*content, Field(index, "content"), kPartsJoin));
  } else if (message.calls.empty() && message.reasoning.empty()) {
    return Invalid("a message needs \"content\"").WithParam(Field(index, "content"));
  }
  return message;
}

Result<DialogTool> ReadTool(const Json& json, size_t index) {
  const std::string param = Format("tools[{}]", index);
  const Json* type = json.Find("type");
  const Json* function = json.Find("function");
  if (type == nullptr || type->string() != "function" || function == nullptr ||
      !function->is_object()) {
    return Invalid("a tool must be {\"type\": \"function\", \"function\": {...}}").WithParam(param);
  }
  DialogTool tool;
  const Json* name = function->Find("name");
  if (name == nullptr || !name->is_string() || name->string().empty()) {
    return Invalid("a tool needs a \"name\"").WithParam(param + ".function.name");
  }
  tool.name = name->string();
  if (const Json* description = Present(*function, "description")) {
    if (!description->is_string()) {
      return Invalid("a tool's \"description\" must be a text")
          .WithParam(param + ".function.description");
    }
    tool.description = description->string();
  }
  if (const Json* parameters = Present(*function, "parameters")) {
    if (!parameters->is_object()) {
      return Invalid("a tool's \"parameters\" must be an object: a JSON Schema")
          .WithParam(param + ".function.parameters");
    }
    tool.parameters = *parameters;
  }
  return tool;
}

Status ReadTools(const Json& tools, Dialog* dialog) {
  if (tools.is_null()) return {};
  if (!tools.is_array() || tools.items().size() > kToolsMax) {
    return Invalid(Format("\"tools\" must be a list of at most {}", kToolsMax)).WithParam("tools");
  }
  for (size_t i = 0; i < tools.items().size(); ++i) {
    DI_ASSIGN(DialogTool tool, ReadTool(tools.items()[i], i));
    dialog->tools.push_back(std::move(tool));
  }
  return {};
}

Status KwargsError(std::string message) {
  return Invalid(std::move(message)).WithParam("chat_template_kwargs");
}

Status ReadEffort(const Json& value, Dialog* dialog) {
  if (value.is_null()) return {};
  if (!value.is_string() && !value.is_number()) {
    return Invalid("\"reasoning_effort\" must be a text or a number").WithParam("reasoning_effort");
  }
  if (value.is_string() && value.string() == "none") {
    dialog->thinking = Dialog::Thinking::kOff;
  } else {
    dialog->effort = value.string();
  }
  return {};
}

Status ReadKwargs(const Json& kwargs, Dialog* dialog) {
  const Json* thinking = nullptr;
  for (const auto& [key, value] : kwargs.members()) {
    if (key == "reasoning_effort") {
      DI_TRY(ReadEffort(value, dialog));
    } else if (key == "thinking" || key == "enable_thinking") {
      if (!value.is_bool()) return KwargsError(Format("\"{}\" must be true or false", key));
      if (thinking != nullptr && *thinking != value) {
        return KwargsError("\"thinking\" and \"enable_thinking\" contradict each other");
      }
      thinking = &value;
    } else {
      return KwargsError(
          Format("\"{}\" is unknown to this model's prompt format; it knows "
                 "thinking, enable_thinking, reasoning_effort",
                 key.substr(0, 64)));
    }
  }
  if (thinking != nullptr) {
    const bool on = *thinking->AsBool();
    dialog->thinking = on ? Dialog::Thinking::kOn : Dialog::Thinking::kOff;
  }
  return {};
}

// DeepSeek's own way to ask for the continuation of the last message.
Status ReadPrefix(const Json& messages, Dialog* dialog) {
  for (size_t i = 0; i < messages.items().size(); ++i) {
    const Json& message = messages.items()[i];
    DI_ASSIGN(const bool prefix, message.GetBool("prefix", false));
    if (!prefix) continue;
    if (i + 1 < messages.items().size() || dialog->messages[i].role != Role::kAssistant) {
      return Invalid("\"prefix\" is for the last message, when it is an assistant's")
          .WithParam(Field(i, "prefix"));
    }
    dialog->ending = Dialog::Ending::kContinueFinal;
  }
  return {};
}

}  // namespace

Result<Dialog> DialogFromJson(const Json& messages, const ChatPromptOptions& options) {
  if (!messages.is_array() || messages.items().empty() || messages.items().size() > kMessagesMax) {
    return Invalid(Format("\"messages\" must be a list of 1 to {} messages", kMessagesMax))
        .WithParam("messages");
  }
  if (!options.documents.items().empty()) {
    return Invalid("\"documents\" is not supported by this model's prompt format")
        .WithParam("documents")
        .WithReason(kUnsupportedParameter);
  }
  Dialog dialog;
  using Generation = ChatPromptOptions::Generation;
  dialog.ending = options.generation == Generation::kAddPrompt ? Dialog::Ending::kNewAnswer
                  : options.generation == Generation::kNone    ? Dialog::Ending::kNone
                                                               : Dialog::Ending::kContinueFinal;
  for (size_t i = 0; i < messages.items().size(); ++i) {
    DI_ASSIGN(DialogMessage message, ReadMessage(messages.items()[i], i));
    dialog.messages.push_back(std::move(message));
  }
  DI_TRY(ReadPrefix(messages, &dialog));
  // An empty system message opens no turn of its own.
  std::erase_if(dialog.messages, [](const DialogMessage& message) {
    return message.role == Role::kSystem && message.content.empty();
  });
  DI_TRY(ReadTools(options.tools, &dialog));
  DI_TRY(ReadKwargs(options.template_kwargs, &dialog));
  return dialog;
}

}  // namespace deepinfer
