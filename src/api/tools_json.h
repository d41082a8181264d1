// The tools of a request and the choice among them, in the form that prompts are made from. What
// only a grammar could keep (a required call, strict arguments) is refused here. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct ToolSet {
  Json tools;  // null, or a list of {"type": "function", "function": {...}}
  std::vector<std::string> names;
  enum class Choice { kAuto, kNone } choice = Choice::kAuto;
  int calls_max = 0;  // of one answer; 0: no limit

  // Whether the model is told of tools and its calls are read.
  bool active() const { return !names.empty() && choice == Choice::kAuto; }
};

// What a dialect says of one function. `param` names the tool in errors. nullptr: not given.
struct ToolFields {
  const Json* name = nullptr;
  const Json* description = nullptr;
  const Json* parameters = nullptr;
  const Json* strict = nullptr;
  const char* parameters_key = "parameters";
};
// Checks the fields and adds {"type": "function", "function": {name, description, parameters}}.
Status AddTool(const ToolFields& fields, const std::string& param, ToolSet* out);

// tools, functions, tool_choice, function_call and parallel_tool_calls of a chat request.
Result<ToolSet> ReadChatTools(const Json& body);

// `key` of `body` where it is "auto" or "none"; anything else is refused.
Status ReadToolChoice(const Json& body, const char* key, ToolSet* out);

// The refusal of `param`, which this server could only keep with a grammar.
Status NeedsGrammar(std::string_view what, std::string param);

// "call_<the id's end>_<n>", unlike for every call of a response.
std::string CallId(std::string_view prefix, std::string_view response_id, int choice, int call);

}  // namespace deepinfer
