// Prompt formats that are no chat template but code: what the families differ in is a table, one
// driver writes them all. Tables are constant; every function is safe on any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "deepinfer/status.h"
#include "text/chat_template.h"
#include "text/dialog.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct EffortLevel {
  std::string_view name;
  std::string_view text;  // takes the place of {} in effort_line; empty: nothing is written
};

// Spellings are looked up in the tokenizer when a checkpoint is opened; no id is written here.
struct PromptProfile {
  std::string_view name;  // the checkpoint's architecture
  std::string_view bos, eos, user, assistant, think, think_end, reminder;
  std::string_view system;  // empty: a system text stands alone
  std::string_view dsml;    // marks the tags of tool calls

  std::span<const EffortLevel> efforts;
  std::string_view effort_default;
  std::string_view effort_line;  // before everything else when thinking
  int effort_min, effort_max;    // numbers allowed beside the names; 0: none

  // Later system messages stay in place, or move to the front and become one.
  enum class Systems { kInPlace, kMerged } systems;
  // Neighbouring user messages are joined as they are, or without the empty ones.
  enum class Users { kJoined, kJoinedNonEmpty } users;

  // Tag names after the mark.
  std::string_view calls_tag, invoke_tag, parameter_tag;
  std::string_view no_parameters;                  // stands between the tags of a call without any
  enum class Numbers { kPython, kShort } numbers;  // how floats are spelled: 1e-05 or 0.00001

  std::string_view tools_head, tools_tail;  // around one line for each tool; {calls} and so on
  std::string_view json_object;             // the section that asks for JSON
  std::string_view json_schema;             // the section before the schema
};

std::span<const PromptProfile> PromptProfiles();
// nullptr: prompts of this architecture come from a chat template.
const PromptProfile* FindPromptProfile(std::string_view architecture);

// An error names a control token that the tokenizer lacks.
Status CheckPromptProfile(const PromptProfile& profile, const Tokenizer& tokenizer);

// `trusted` of the result holds exactly the control tokens, one span each. Errors: an effort that
// the profile does not know; a continued message that is not an assistant's.
Result<RenderedPrompt> RenderDialog(const PromptProfile& profile, const Dialog& dialog);

// "  ": " and ", " between, nothing escaped beyond need, numbers as they would be read and
// written again.
void AppendSpacedJson(const Json& value, PromptProfile::Numbers numbers, std::string* out);

}  // namespace deepinfer
