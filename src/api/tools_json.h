// The tools of a request and the choice among them, in the form that prompts are made from. What of
// it a grammar keeps (a required call, strict arguments) is in output_grammar.h. Pure functions.
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
  std::vector<std::string> strict;  // of them, those whose arguments keep to their schema
  enum class Choice { kAuto, kNone, kRequired } choice = Choice::kAuto;
  std::vector<std::string> allowed;  // of names, those that may be called; empty: all
  int calls_max = 0;                 // of one answer; 0: no limit

  // Whether the model is told of tools and its calls are read.
  bool active() const { return !names.empty() && choice != Choice::kNone; }
  // Whether the answer must be held to what the tools say.
  bool constrains() const {
    return active() && (choice == Choice::kRequired || !strict.empty() || !allowed.empty());
  }
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

// `key` of `body`: "auto", "none", "required", or an object that names one tool or some of them.
// After the tools.
Status ReadToolChoice(const Json& body, const char* key, ToolSet* out);
// One tool of `out` must be called.
Status RequireTool(const Json* name, const char* param, ToolSet* out);

// "call_<the id's end>_<n>", unlike for every call of a response.
std::string CallId(std::string_view prefix, std::string_view response_id, int choice, int call);

}  // namespace deepinfer
