// Tools for models whose chat template knows none: told in the system message, called in
// <tool_call> blocks, answered in the user's turn. Pure functions, any thread.
#pragma once

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

// Where tools are told: in the system message, or before the first text of the user, for templates
// that know no system.
enum class ToolPlace { kSystem, kUser };

// `messages` of a chat request with the list `tools` (or null), and with every call and result in
// them, as plain text. An error names a call without a name.
Result<Json> ToolsAsText(const Json& messages, const Json& tools, ToolPlace place);

// Whether any of the messages calls a tool or answers a call.
bool MentionsTools(const Json& messages);

}  // namespace deepinfer
