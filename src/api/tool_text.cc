#include "api/tool_text.h"

#include <string>
#include <utility>

#include "base/format.h"
#include "text/prompt_profile.h"

namespace deepinfer {
namespace {

std::string RoleOf(const Json& message) {
  const Json* role = message.Find("role");
  return role == nullptr || !role->is_string() ? std::string() : role->string();
}

// Content as one text; parts that are no text are left to the checks that follow.
const Json* TextContent(const Json& message) {
  const Json* content = message.Find("content");
  return content != nullptr && content->is_string() ? content : nullptr;
}

std::string ToolSection(const Json& tools) {
  std::string text = "# Tools\n\nYou may call these functions. Each line describes one:\n<tools>\n";
  for (const Json& tool : tools.items()) {
    AppendSpacedJson(tool, PromptProfile::Numbers::kPython, &text);
    text += "\n";
  }
  text +=
      "</tools>\n\nTo call a function, write its name and its arguments as a JSON object between "
      "the tags <tool_call> and </tool_call>:\n<tool_call>\n"
      "{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": \"VALUE\"}}\n</tool_call>";
  return text;
}

Result<std::string> CallText(const Json& call, size_t index) {
  const Json* function = call.Find("function");
  const Json* name = function == nullptr ? nullptr : function->Find("name");
  if (name == nullptr || !name->is_string()) {
    return Invalid("a tool call needs a \"function\" with a \"name\"")
        .WithParam(Format("messages[{}].tool_calls", index));
  }
  const Json* arguments = function->Find("arguments");
  std::string text = "<tool_call>\n{\"name\": " + name->Dump() + ", \"arguments\": ";
  if (arguments == nullptr || arguments->is_null()) {
    text += "{}";
  } else {
    text += arguments->is_string() ? arguments->string() : arguments->Dump();
  }
  return text + "}\n</tool_call>";
}

Result<Json> WithCalls(const Json& message, size_t index) {
  Json out = Json::Object();
  out.Set("role", Json::String("assistant"));
  const Json* content = TextContent(message);
  std::string text = content == nullptr ? std::string() : content->string();
  for (const Json& call : message.Find("tool_calls")->items()) {
    if (!text.empty()) text += "\n";
    DI_ASSIGN(const std::string written, CallText(call, index));
    text += written;
  }
  out.Set("content", Json::String(std::move(text)));
  return out;
}

}  // namespace

bool MentionsTools(const Json& messages) {
  for (const Json& message : messages.items()) {
    const Json* calls = message.Find("tool_calls");
    if (RoleOf(message) == "tool" || (calls != nullptr && !calls->items().empty())) return true;
  }
  return false;
}

Result<Json> ToolsAsText(const Json& messages, const Json& tools, ToolPlace place) {
  Json out = Json::Array();
  const auto push = [&out](const char* role, std::string content) {
    Json& message = out.Push(Json::Object());
    message.Set("role", Json::String(role));
    message.Set("content", Json::String(std::move(content)));
  };
  std::string section = tools.items().empty() ? std::string() : ToolSection(tools);
  std::string results;  // that follow each other: one turn of the user
  for (const Json& message : messages.items()) {
    const Json* calls = message.Find("tool_calls");
    const Json* content = TextContent(message);
    const std::string role = RoleOf(message);
    const bool host =
        content != nullptr &&
        (place == ToolPlace::kSystem ? role == "system" || role == "developer" : role == "user");
    if (!section.empty() && !host && place == ToolPlace::kSystem) {
      push("system", std::exchange(section, {}));
    }
    if (role == "tool" && content != nullptr) {
      if (!results.empty()) results += "\n";
      results += "<tool_response>\n" + content->string() + "\n</tool_response>";
      continue;
    }
    if (!results.empty()) push("user", std::exchange(results, {}));
    if (calls != nullptr && !calls->items().empty()) {
      const auto index = static_cast<size_t>(&message - messages.items().data());
      DI_ASSIGN(Json written, WithCalls(message, index));
      out.Push(std::move(written));
    } else if (!section.empty() && host && place == ToolPlace::kSystem) {
      push("system", content->string() + "\n\n" + std::exchange(section, {}));
    } else if (!section.empty() && host) {
      push("user", std::exchange(section, {}) + "\n\n" + content->string());
    } else {
      out.Push(message);
    }
  }
  if (!results.empty()) push("user", std::move(results));
  return out;
}

}  // namespace deepinfer
