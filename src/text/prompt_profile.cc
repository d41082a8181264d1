#include "text/prompt_profile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "base/format.h"

namespace deepinfer {
namespace {

using Role = DialogMessage::Role;

std::array<std::string_view, 9> ControlTokens(const PromptProfile& profile) {
  return {profile.bos,       profile.eos,      profile.user,   profile.assistant, profile.think,
          profile.think_end, profile.reminder, profile.system, profile.dsml};
}

// The prompt so far. Control tokens are put in by name, so that no content can become one.
class PromptWriter {
 public:
  explicit PromptWriter(const PromptProfile& profile) : profile_(profile) {}

  void Control(std::string_view token) {
    if (token.empty()) return;
    prompt_.trusted.push_back({prompt_.text.size(), prompt_.text.size() + token.size()});
    prompt_.text += token;
  }

  void Plain(std::string_view text) { prompt_.text += text; }
  std::string* plain() { return &prompt_.text; }

  // Text of a table: control tokens in it count, {calls}, {invoke} and {parameter} are tags.
  void Table(std::string_view text) {
    while (!text.empty()) {
      const size_t at = text.find_first_of("<{");
      if (at == std::string_view::npos) break;
      Plain(text.substr(0, at));
      text.remove_prefix(at);
      text.remove_prefix(TableItem(text));
    }
    Plain(text);
  }

  void OpenTag(std::string_view tag) { Tag("<", tag); }
  void CloseTag(std::string_view tag) {
    Tag("</", tag);
    Plain(">");
  }

  RenderedPrompt Take() { return std::move(prompt_); }

 private:
  void Tag(std::string_view bracket, std::string_view tag) {
    Plain(bracket);
    Control(profile_.dsml);
    Plain(tag);
  }

  // Writes what stands at the start of `text`; returns its length.
  size_t TableItem(std::string_view text) {
    for (const auto& [name, tag] : {std::pair{"{calls}", profile_.calls_tag},
                                    {"{invoke}", profile_.invoke_tag},
                                    {"{parameter}", profile_.parameter_tag}}) {
      if (!text.starts_with(name)) continue;
      Tag("", tag);
      return std::string_view(name).size();
    }
    for (const std::string_view token : {profile_.think, profile_.think_end}) {
      if (!text.starts_with(token)) continue;
      Control(token);
      return token.size();
    }
    Plain(text.substr(0, 1));
    return 1;
  }

  const PromptProfile& profile_;
  RenderedPrompt prompt_;
};

bool IsUserSide(Role role) { return role == Role::kUser || role == Role::kTool; }

bool UsesTools(const Dialog& dialog) {
  return !dialog.tools.empty() && dialog.tool_choice != Dialog::ToolChoice::kNone;
}

// Within each run of user and tool messages, results come in the order of the calls they answer;
// other messages of the run keep their places.
void SortResults(std::vector<DialogMessage>* messages) {
  std::unordered_map<std::string, size_t> rank;
  for (size_t begin = 0; begin < messages->size();) {
    const DialogMessage& first = (*messages)[begin];
    if (!IsUserSide(first.role)) {
      if (!first.calls.empty()) rank.clear();
      for (const DialogCall& call : first.calls) rank.emplace(call.id, rank.size());
      ++begin;
      continue;
    }
    std::vector<size_t> places;
    size_t end = begin;
    for (; end < messages->size() && IsUserSide((*messages)[end].role); ++end) {
      if ((*messages)[end].role == Role::kTool && (*messages)[end].call_id) places.push_back(end);
    }
    std::vector<std::pair<size_t, DialogMessage>> results;
    for (const size_t place : places) {
      const auto known = rank.find(*(*messages)[place].call_id);
      results.emplace_back(known == rank.end() ? 0 : known->second, std::move((*messages)[place]));
    }
    std::stable_sort(results.begin(), results.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < places.size(); ++i)
      (*messages)[places[i]] = std::move(results[i].second);
    begin = end;
  }
}

void Join(const std::string& text, std::string* onto) {
  if (text.empty()) return;
  if (!onto->empty()) *onto += "\n\n";
  *onto += text;
}

// One system message at the front instead of all.
void MergeSystems(std::vector<DialogMessage>* messages) {
  DialogMessage merged;
  merged.role = Role::kSystem;
  for (const DialogMessage& message : *messages) {
    if (message.role == Role::kSystem) Join(message.content, &merged.content);
  }
  std::erase_if(*messages, [](const DialogMessage& m) { return m.role == Role::kSystem; });
  if (!merged.content.empty()) messages->insert(messages->begin(), std::move(merged));
}

void MergeUsers(std::vector<DialogMessage>* messages) {
  std::vector<DialogMessage> merged;
  for (DialogMessage& message : *messages) {
    if (message.role == Role::kUser && !merged.empty() && merged.back().role == Role::kUser) {
      Join(message.content, &merged.back().content);
    } else {
      merged.push_back(std::move(message));
    }
  }
  *messages = std::move(merged);
}

std::vector<DialogMessage> Normalised(const PromptProfile& profile, const Dialog& dialog) {
  std::vector<DialogMessage> messages = dialog.messages;
  if (profile.systems == PromptProfile::Systems::kMerged) MergeSystems(&messages);
  if (profile.users == PromptProfile::Users::kJoinedNonEmpty) MergeUsers(&messages);
  SortResults(&messages);
  const bool needs_system = UsesTools(dialog) || dialog.format != Dialog::Format::kText;
  if (needs_system && (messages.empty() || messages.front().role != Role::kSystem)) {
    DialogMessage empty;
    empty.role = Role::kSystem;
    messages.insert(messages.begin(), std::move(empty));
  }
  return messages;
}

// What takes the place of {} in the effort line.
Result<std::string> EffortText(const PromptProfile& profile, const std::string& effort) {
  const std::string_view wanted = effort.empty() ? profile.effort_default : effort;
  std::string names;
  for (const EffortLevel& level : profile.efforts) {
    if (level.name == wanted) return std::string(level.text);
    names += Format("{}{}", names.empty() ? "" : ", ", level.name);
  }
  int number = 0;
  const char* end = effort.data() + effort.size();
  const std::from_chars_result read = std::from_chars(effort.data(), end, number);
  if (read.ec == std::errc() && read.ptr == end && number >= profile.effort_min &&
      number <= profile.effort_max) {
    return std::to_string(number);
  }
  if (profile.effort_max > 0) {
    names += Format(" and the numbers {} to {}", profile.effort_min, profile.effort_max);
  }
  return Invalid(
             Format("reasoning_effort is {:?}; allowed are none, {}", effort.substr(0, 32), names))
      .WithParam("reasoning_effort");
}

void WriteCall(const PromptProfile& profile, const DialogCall& call, PromptWriter* out) {
  out->OpenTag(profile.invoke_tag);
  out->Plain(" name=\"");
  out->Plain(call.name);
  out->Plain("\">\n");
  Result<Json> parsed = Json::Parse(call.arguments);
  Json arguments = Json::Object();
  if (parsed.ok() && parsed->is_object()) {
    arguments = std::move(parsed).value();
  } else {
    arguments.Set("arguments", Json::String(call.arguments));
  }
  for (const auto& [name, value] : arguments.members()) {
    out->OpenTag(profile.parameter_tag);
    out->Plain(" name=\"");
    out->Plain(name);
    out->Plain(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
    if (value.is_string()) {
      out->Plain(value.string());
    } else {
      AppendSpacedJson(value, profile.numbers, out->plain());
    }
    out->CloseTag(profile.parameter_tag);
    out->Plain("\n");
  }
  if (arguments.members().empty()) out->Plain(profile.no_parameters);
  out->CloseTag(profile.invoke_tag);
  out->Plain("\n");
}

void OpenCalls(const PromptProfile& profile, PromptWriter* out) {
  out->Plain("\n\n");
  out->OpenTag(profile.calls_tag);
  out->Plain(">\n");
}

void WriteTools(const PromptProfile& profile, const std::vector<DialogTool>& tools,
                PromptWriter* out) {
  out->Plain("\n\n");
  out->Table(profile.tools_head);
  for (const DialogTool& tool : tools) {
    if (&tool != tools.data()) out->Plain("\n");
    out->Plain("{\"name\": ");
    AppendJsonString(out->plain(), tool.name);
    out->Plain(", \"description\": ");
    AppendJsonString(out->plain(), tool.description);
    out->Plain(", \"parameters\": ");
    if (tool.parameters.is_null()) {
      out->Plain("{}");
    } else {
      AppendSpacedJson(tool.parameters, profile.numbers, out->plain());
    }
    out->Plain("}");
  }
  out->Table(profile.tools_tail);
}

// What follows the first system message's text.
void WriteSections(const PromptProfile& profile, const Dialog& dialog, PromptWriter* out) {
  if (UsesTools(dialog)) WriteTools(profile, dialog.tools, out);
  if (dialog.format == Dialog::Format::kText) return;
  out->Plain("\n\n");
  if (dialog.format == Dialog::Format::kJsonObject) {
    out->Table(profile.json_object);
  } else {
    out->Table(profile.json_schema);
    AppendSpacedJson(dialog.schema, profile.numbers, out->plain());
  }
}

void WriteAssistant(const PromptProfile& profile, const Dialog& dialog,
                    const DialogMessage& message, bool continued, PromptWriter* out) {
  const bool thinking = dialog.thinking == Dialog::Thinking::kOn;
  const bool has_answer = !message.content.empty() || !message.calls.empty();
  out->Control(profile.assistant);
  // Old reasoning matters to the model only between its calls of tools.
  if (thinking && (continued || UsesTools(dialog))) {
    out->Control(profile.think);
    out->Plain(message.reasoning);
    if (!continued || has_answer) out->Control(profile.think_end);
  } else {
    out->Control(profile.think_end);
  }
  out->Plain(message.content);
  if (!message.calls.empty()) {
    OpenCalls(profile, out);
    for (const DialogCall& call : message.calls) WriteCall(profile, call, out);
    out->CloseTag(profile.calls_tag);
  }
  if (!continued) out->Control(profile.eos);
}

void WriteUserSide(const PromptProfile& profile, const DialogMessage& message,
                   const DialogMessage* previous, PromptWriter* out) {
  // In a profile that merges user messages, a result after one opens a turn of its own.
  const bool alone = message.role == Role::kTool && previous != nullptr &&
                     previous->role == Role::kUser &&
                     profile.users == PromptProfile::Users::kJoinedNonEmpty;
  if (previous != nullptr && IsUserSide(previous->role) && !alone) {
    out->Plain("\n\n");
  } else {
    out->Control(profile.user);
  }
  if (message.role == Role::kTool) out->Plain("<tool_result>");
  out->Plain(message.content);
  if (message.role == Role::kTool) out->Plain("</tool_result>");
}

void WriteMessages(const PromptProfile& profile, const Dialog& dialog, std::string_view effort,
                   const std::vector<DialogMessage>& messages, PromptWriter* out) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const DialogMessage& message = messages[i];
    const DialogMessage* previous = i == 0 ? nullptr : &messages[i - 1];
    const bool is_system = message.role == Role::kSystem;
    const bool has_system_text = is_system && (!message.content.empty() || UsesTools(dialog) ||
                                               dialog.format != Dialog::Format::kText);
    if (i == 0 ? !effort.empty() || has_system_text : is_system) out->Control(profile.system);
    if (i == 0) out->Plain(effort);
    switch (message.role) {
      case Role::kSystem:
        out->Plain(message.content);
        if (i == 0) WriteSections(profile, dialog, out);
        break;
      case Role::kUser:
      case Role::kTool:
        WriteUserSide(profile, message, previous, out);
        break;
      case Role::kReminder:
        out->Control(profile.reminder);
        out->Plain(message.content);
        break;
      case Role::kAssistant:
        WriteAssistant(profile, dialog, message,
                       i + 1 == messages.size() && dialog.ending == Dialog::Ending::kContinueFinal,
                       out);
        break;
    }
  }
}

}  // namespace

const PromptProfile* FindPromptProfile(std::string_view architecture) {
  for (const PromptProfile& profile : PromptProfiles()) {
    if (profile.name == architecture) return &profile;
  }
  return nullptr;
}

Status CheckPromptProfile(const PromptProfile& profile, const Tokenizer& tokenizer) {
  for (const std::string_view token : ControlTokens(profile)) {
    if (token.empty()) continue;
    const std::vector<AddedToken>& added = tokenizer.spec().added;
    const bool known = std::any_of(added.begin(), added.end(), [&](const AddedToken& candidate) {
      return candidate.content == token;
    });
    if (known) continue;
    return Invalid(
        Format("the prompt format {} needs the added token {}, which the tokenizer lacks",
               profile.name, token));
  }
  return {};
}

Result<RenderedPrompt> RenderDialog(const PromptProfile& profile, const Dialog& dialog) {
  const bool thinking = dialog.thinking == Dialog::Thinking::kOn;
  DI_ASSIGN(const std::string level, EffortText(profile, dialog.effort));
  std::string effort;
  if (thinking && !level.empty()) {
    const size_t at = profile.effort_line.find("{}");
    effort = std::string(profile.effort_line.substr(0, at)) + level +
             std::string(profile.effort_line.substr(at + 2));
  }
  if (dialog.ending == Dialog::Ending::kContinueFinal &&
      (dialog.messages.empty() || dialog.messages.back().role != Role::kAssistant)) {
    return Invalid("continue_final_message needs an assistant's message at the end")
        .WithParam("continue_final_message");
  }
  PromptWriter out(profile);
  out.Control(profile.bos);
  WriteMessages(profile, dialog, effort, Normalised(profile, dialog), &out);
  if (dialog.ending == Dialog::Ending::kNewAnswer) {
    out.Control(profile.assistant);
    out.Control(thinking ? profile.think : profile.think_end);
  }
  if (dialog.ending != Dialog::Ending::kNone && UsesTools(dialog) &&
      dialog.tool_choice == Dialog::ToolChoice::kRequired) {
    OpenCalls(profile, &out);
  }
  return out.Take();
}

}  // namespace deepinfer
