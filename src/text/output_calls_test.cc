// Calls of public tool sets (tests/tools), written as each family of models writes them, are read
// back unchanged wherever the text is cut.
#include <gtest/gtest.h>

#include "base/format.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "text/output_machine.h"
#include "text/prompt_profile.h"

namespace deepinfer {
namespace {

std::vector<Json> ReadAnswers() {
  std::vector<Json> answers;
  const Result<MappedFile> file = MappedFile::Open("tests/tools/bfcl_calls.jsonl");
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return answers;
  std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->size());
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    Result<Json> answer = Json::Parse(text.substr(0, end));
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    if (answer.ok()) answers.push_back(*std::move(answer));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return answers;
}

std::string WithTags(const PromptProfile& profile, const Json& calls) {
  Dialog dialog;
  DialogMessage message;
  message.role = DialogMessage::Role::kAssistant;
  for (const Json& call : calls.items()) {
    message.calls.push_back({"", call.Find("name")->string(), call.Find("arguments")->Dump()});
  }
  dialog.messages = {message};
  dialog.thinking = Dialog::Thinking::kOff;
  dialog.ending = Dialog::Ending::kNone;
  const Result<RenderedPrompt> prompt = RenderDialog(profile, dialog);
  EXPECT_TRUE(prompt.ok());
  if (!prompt.ok()) return "";
  const size_t begin = prompt->text.find("\n\n<");
  return prompt->text.substr(begin, prompt->text.size() - begin - profile.eos.size());
}

std::string WithJson(std::string_view before, std::string_view key, std::string_view after,
                     std::string_view between, const Json& calls) {
  std::string out;
  for (const Json& call : calls.items()) {
    if (&call != calls.items().data()) out += between;
    out += Format("{}{{\"name\": {}, \"{}\": ", before, call.Find("name")->Dump(), key);
    AppendSpacedJson(*call.Find("arguments"), PromptProfile::Numbers::kPython, &out);
    out += Format("}}{}", after);
  }
  return out;
}

std::string Written(const OutputProfile& profile, const Json& calls) {
  if (const PromptProfile* prompt = FindPromptProfile(profile.name)) {
    return WithTags(*prompt, calls);
  }
  return profile.calls == OutputProfile::Calls::kMarkedJson
             ? WithJson("<tool_call>\n", "arguments", "\n</tool_call>", "\n", calls)
             : WithJson("", "parameters", "", "; ", calls);
}

std::vector<OutputPart> Read(const OutputProfile& profile, const std::vector<std::string>& names,
                             std::string_view head, std::string_view tail) {
  OutputMachineOptions options;
  options.calls = OutputMachineOptions::Calls::kParsed;
  options.tool_names = names;
  OutputMachine machine(&profile, std::move(options));
  std::vector<OutputPart> parts, more;
  machine.Push(head, &parts);
  machine.Push(tail, &more);
  machine.Finish(&more);
  AppendParts(std::move(more), &parts);
  return parts;
}

// What the parts say, as the line of the file has it.
Json CallsOf(const std::vector<OutputPart>& parts) {
  Json calls = Json::Array();
  std::string name, arguments;
  for (const OutputPart& part : parts) {
    switch (part.kind) {
      case OutputPart::Kind::kCallName:
        name = part.text;
        arguments.clear();
        break;
      case OutputPart::Kind::kCallArguments:
        arguments += part.text;
        break;
      case OutputPart::Kind::kCallEnd: {
        const Result<Json> parsed = Json::Parse(arguments);
        EXPECT_TRUE(parsed.ok()) << arguments;
        Json& call = calls.Push(Json::Object());
        call.Set("name", Json::String(name));
        call.Set("arguments", parsed.ok() ? *parsed : Json());
        break;
      }
      default:
        ADD_FAILURE() << "text: " << part.text;
    }
  }
  return calls;
}

TEST(OutputCalls, EveryAnswerInEveryFamily) {
  const std::vector<Json> answers = ReadAnswers();
  ASSERT_GT(answers.size(), 790U);
  for (const OutputProfile& profile : OutputProfiles()) {
    if (profile.calls == OutputProfile::Calls::kNone) continue;
    for (size_t i = 0; i < answers.size(); ++i) {
      std::vector<std::string> names;
      for (const Json& call : answers[i].items()) names.push_back(call.Find("name")->string());
      const std::string text = Written(profile, answers[i]);
      const std::vector<OutputPart> whole = Read(profile, names, text, "");
      ASSERT_EQ(CallsOf(whole), answers[i]) << profile.name << "\n" << text;
      // Every place of some answers, a place of each.
      const size_t step = i % 8 == 0 ? 1 : text.size() / 2 + 1;
      for (size_t cut = 1 + i % 7; cut < text.size(); cut += step) {
        const std::string_view view = text;
        ASSERT_EQ(Read(profile, names, view.substr(0, cut), view.substr(cut)), whole)
            << profile.name << " cut at " << cut << "\n"
            << text;
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
