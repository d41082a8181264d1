// A conversation as a prompt encoder reads it, whatever dialect it arrived in. Plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace deepinfer {

struct DialogCall {
  std::string id, name;
  std::string arguments;  // JSON text as the client or the model wrote it
};

struct DialogMessage {
  enum class Role { kSystem, kUser, kAssistant, kTool, kReminder } role = Role::kUser;
  std::string content;
  std::string reasoning;               // of an assistant
  std::vector<DialogCall> calls;       // of an assistant
  std::optional<std::string> call_id;  // of a tool result: the call that it answers
};

struct DialogTool {
  std::string name, description;
  Json parameters;  // JSON Schema; null: none
};

struct Dialog {
  std::vector<DialogMessage> messages;
  std::vector<DialogTool> tools;
  enum class ToolChoice { kAuto, kNone, kRequired } tool_choice = ToolChoice::kAuto;
  enum class Thinking { kOn, kOff } thinking = Thinking::kOn;
  std::string effort;  // a level's name or a number; empty: the profile's default
  enum class Format { kText, kJsonObject, kJsonSchema } format = Format::kText;
  Json schema;  // of kJsonSchema
  // Where the prompt ends: after the header of a new answer, inside the final message (which is an
  // assistant's), or after the last message.
  enum class Ending { kNewAnswer, kContinueFinal, kNone } ending = Ending::kNewAnswer;
};

}  // namespace deepinfer
