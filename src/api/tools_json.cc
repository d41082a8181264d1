#include "api/tools_json.h"

#include <algorithm>

#include "api/error.h"
#include "api/json_fields.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kToolsMax = 1024;
constexpr size_t kNameMax = 128;

bool IsNameByte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_' || byte == '-';
}

const Json* Present(const Json* value) {
  return value == nullptr || value->is_null() ? nullptr : value;
}

Status CheckName(const Json* name, const std::string& param, const ToolSet& others) {
  const std::string where = param + ".name";
  if (Present(name) == nullptr || !name->is_string()) {
    return Invalid("a tool needs a \"name\"").WithParam(where);
  }
  const std::string& text = name->string();
  if (text.empty() || text.size() > kNameMax ||
      !std::all_of(text.begin(), text.end(), IsNameByte)) {
    return Invalid(Format("the tool name {:?} must have 1 to {} of the characters a-z, A-Z, 0-9, "
                          "_ and -",
                          text.substr(0, 2 * kNameMax), kNameMax))
        .WithParam(where);
  }
  if (std::find(others.names.begin(), others.names.end(), text) != others.names.end()) {
    return Invalid(Format("two tools are called \"{}\"", text)).WithParam(where);
  }
  return {};
}

Status ReadTools(const Json& list, ToolSet* out) {
  if (!list.is_array() || list.items().size() > kToolsMax) {
    return WrongKind("tools", Format("a list of at most {} tools", kToolsMax));
  }
  for (size_t i = 0; i < list.items().size(); ++i) {
    const Json& tool = list.items()[i];
    const std::string param = Format("tools[{}]", i);
    const Json* type = tool.Find("type");
    const Json* function = tool.Find("function");
    if (!tool.is_object() || type == nullptr || type->string() != "function" ||
        function == nullptr || !function->is_object()) {
      return Invalid("a tool must be {\"type\": \"function\", \"function\": {...}}")
          .WithParam(param);
    }
    DI_TRY(AddTool({function->Find("name"), function->Find("description"),
                    function->Find("parameters"), function->Find("strict")},
                   param + ".function", out));
  }
  return {};
}

// The form before "tools".
Status ReadFunctions(const Json& list, ToolSet* out) {
  if (!list.is_array() || list.items().size() > kToolsMax) {
    return WrongKind("functions", Format("a list of at most {} functions", kToolsMax));
  }
  for (size_t i = 0; i < list.items().size(); ++i) {
    const Json& function = list.items()[i];
    const std::string param = Format("functions[{}]", i);
    if (!function.is_object()) return Invalid("a function must be an object").WithParam(param);
    DI_TRY(AddTool({function.Find("name"), function.Find("description"),
                    function.Find("parameters"), function.Find("strict")},
                   param, out));
  }
  return {};
}

}  // namespace

Status RequireTool(const Json* name, const char* param, ToolSet* out) {
  if (name == nullptr || !name->is_string()) {
    return Invalid(Format("\"{}\" names no tool: give its \"name\"", param)).WithParam(param);
  }
  const std::string& text = name->string();
  if (std::find(out->names.begin(), out->names.end(), text) == out->names.end()) {
    return Invalid(Format("\"{}\" names {:?}, which is none of the tools", param,
                          text.substr(0, 2 * kNameMax)))
        .WithParam(param);
  }
  out->choice = ToolSet::Choice::kRequired;
  if (std::find(out->allowed.begin(), out->allowed.end(), text) == out->allowed.end()) {
    out->allowed.push_back(text);
  }
  return {};
}

namespace {

// {"type": "allowed_tools", "mode", "tools"}, in chat inside a member of that name.
Status ReadAllowed(const Json& choice, const char* key, ToolSet* out) {
  const Json* nested = FindField(choice, "allowed_tools");
  const Json& allowed = nested == nullptr ? choice : *nested;
  const Json* tools = FindField(allowed, "tools");
  if (tools == nullptr || tools->items().empty() || tools->items().size() > kToolsMax) {
    return WrongKind(key, Format("with 1 to {} \"tools\" that are allowed", kToolsMax));
  }
  for (const Json& tool : tools->items()) {
    const Json* function = FindField(tool, "function");
    DI_TRY(RequireTool((function == nullptr ? tool : *function).Find("name"), key, out));
  }
  const Json* mode = FindField(allowed, "mode");
  if (mode == nullptr || mode->string() == "auto") {
    out->choice = ToolSet::Choice::kAuto;
  } else if (mode->string() != "required") {
    return WrongKind(key, "with a \"mode\" of \"auto\" or \"required\"");
  }
  return {};
}

}  // namespace

Status ReadToolChoice(const Json& body, const char* key, ToolSet* out) {
  const Json* choice = FindField(body, key);
  if (choice == nullptr) return {};
  if (choice->is_object()) {
    const Json* type = FindField(*choice, "type");
    if (type != nullptr && type->string() == "allowed_tools") {
      return ReadAllowed(*choice, key, out);
    }
    const Json* function = FindField(*choice, "function");
    DI_TRY(RequireTool((function == nullptr ? *choice : *function).Find("name"), key, out));
    return {};
  }
  if (!choice->is_string()) {
    return WrongKind(key, "\"auto\", \"none\", \"required\" or an object that names a tool");
  }
  if (choice->string() == "auto") return {};
  if (choice->string() == "none") {
    out->choice = ToolSet::Choice::kNone;
    return {};
  }
  if (choice->string() != "required") {
    return Invalid(Format("\"{}\" is {:?}; allowed are \"auto\", \"none\", \"required\" and an "
                          "object that names a tool",
                          key, choice->string().substr(0, 64)))
        .WithParam(key);
  }
  if (out->names.empty()) {
    return Invalid(Format("\"{}\" is \"required\" and there are no tools", key)).WithParam(key);
  }
  out->choice = ToolSet::Choice::kRequired;
  return {};
}

Status AddTool(const ToolFields& fields, const std::string& param, ToolSet* out) {
  DI_TRY(CheckName(fields.name, param, *out));
  Json function = Json::Object();
  function.Set("name", *fields.name);
  if (const Json* description = Present(fields.description)) {
    if (!description->is_string()) {
      return Invalid("a tool's \"description\" must be a text").WithParam(param + ".description");
    }
    function.Set("description", *description);
  }
  if (const Json* parameters = Present(fields.parameters)) {
    if (!parameters->is_object()) {
      return Invalid("a tool's parameters must be an object: a JSON Schema")
          .WithParam(param + "." + fields.parameters_key);
    }
    const Json* type = parameters->Find("type");
    if (type != nullptr && type->string() != "object") {
      return Invalid("a tool's parameters must be a JSON Schema of \"type\": \"object\"")
          .WithParam(param + "." + fields.parameters_key);
    }
    function.Set("parameters", *parameters);
  }
  if (const Json* strict = Present(fields.strict)) {
    if (!strict->is_bool()) {
      return Invalid("\"strict\" must be true or false").WithParam(param + ".strict");
    }
    if (*strict->AsBool()) out->strict.push_back(fields.name->string());
  }
  if (!out->tools.is_array()) out->tools = Json::Array();
  Json& tool = out->tools.Push(Json::Object());
  tool.Set("type", Json::String("function"));
  tool.Set("function", std::move(function));
  out->names.push_back(fields.name->string());
  return {};
}

Result<ToolSet> ReadChatTools(const Json& body) {
  ToolSet out;
  const Json* tools = FindField(body, "tools");
  const Json* functions = FindField(body, "functions");
  if (tools != nullptr && functions != nullptr) {
    return Invalid("\"functions\" is the older form of \"tools\": give one of them")
        .WithParam("functions");
  }
  if (tools != nullptr) DI_TRY(ReadTools(*tools, &out));
  if (functions != nullptr) DI_TRY(ReadFunctions(*functions, &out));
  DI_TRY(ReadToolChoice(body, "tool_choice", &out));
  DI_TRY(ReadToolChoice(body, "function_call", &out));
  bool parallel = true;
  DI_TRY(ReadBool(body, "parallel_tool_calls", &parallel));
  if (!parallel) out.calls_max = 1;
  return out;
}

std::string CallId(std::string_view prefix, std::string_view response_id, int choice, int call) {
  const size_t dash = response_id.find_first_of("-_");
  if (dash != std::string_view::npos) response_id.remove_prefix(dash + 1);
  return choice == 0 ? Format("{}_{}_{}", prefix, response_id, call)
                     : Format("{}_{}_{}_{}", prefix, response_id, choice, call);
}

}  // namespace deepinfer
