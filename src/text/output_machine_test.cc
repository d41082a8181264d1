#include "text/output_machine.h"

#include <gtest/gtest.h>

#include "base/format.h"
#include "base/json.h"
#include "text/prompt_profile.h"

namespace deepinfer {
namespace {

using Start = OutputMachineOptions::Start;
using Calls = OutputMachineOptions::Calls;

struct Case {
  std::string profile = "deepseek_v41";
  Start start = Start::kContent;
  Calls calls = Calls::kParsed;
  int calls_max = 0;
  std::vector<std::string> tools;
};

std::vector<OutputPart> Parse(const Case& with, const std::vector<std::string_view>& pieces) {
  OutputMachine machine(FindOutputProfile(with.profile),
                        {with.start, with.calls, with.calls_max, with.tools});
  std::vector<OutputPart> whole;
  for (const std::string_view piece : pieces) {
    std::vector<OutputPart> parts;
    machine.Push(piece, &parts);
    AppendParts(std::move(parts), &whole);
  }
  std::vector<OutputPart> parts;
  machine.Finish(&parts);
  AppendParts(std::move(parts), &whole);
  return whole;
}

std::string Shown(const std::vector<OutputPart>& parts) {
  std::string out;
  for (const OutputPart& part : parts) {
    switch (part.kind) {
      case OutputPart::Kind::kReasoning:
        out += "R(" + part.text + ")";
        break;
      case OutputPart::Kind::kText:
        out += "T(" + part.text + ")";
        break;
      case OutputPart::Kind::kCallName:
        out += part.text + ":";
        break;
      case OutputPart::Kind::kCallArguments:
        out += part.text;
        break;
      case OutputPart::Kind::kCallEnd:
        out += ";";
        break;
    }
  }
  return out;
}

// What `text` is, which must not depend on how it is cut: whole, at every place, byte by byte.
std::string Read(const Case& with, std::string_view text) {
  const std::vector<OutputPart> whole = Parse(with, {text});
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const std::vector<OutputPart> parts = Parse(with, {text.substr(0, cut), text.substr(cut)});
    EXPECT_EQ(Shown(parts), Shown(whole)) << "cut at " << cut;
    if (parts != whole) break;
  }
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  EXPECT_EQ(Shown(Parse(with, bytes)), Shown(whole));
  return Shown(whole);
}

constexpr const char* kV41Calls =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"city\" string=\"true\">São \"P\"\n</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"n\" string=\"false\">[1, {\"a\": null}]</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

TEST(OutputMachine, ReasoningThenContent) {
  EXPECT_EQ(Read({.start = Start::kReasoning}, "\nWe\n\nthink\n\n</think>\n\nHi < there\n"),
            "R(We\n\nthink)T(Hi < there\n)");
  EXPECT_EQ(Read({.start = Start::kReasoning}, "cut </thi"), "R(cut </thi)");
  EXPECT_EQ(Read({.start = Start::kReasoning}, "<think>a</think>b"), "R(a)T(b)");
  EXPECT_EQ(Read({.profile = "hermes"}, "<think>\nhm\n</think>\n\nyes"), "R(hm)T(yes)");
  EXPECT_EQ(Read({.profile = "reasoning"}, "a <think> b</think> c"), "T(a <think> b c)");
  EXPECT_EQ(Read({.start = Start::kAnswer}, "<think>a</think>b"), "T(<think>ab)");
  EXPECT_EQ(Read({}, "</think>\nHi"), "T(\nHi)");
  EXPECT_EQ(Read({}, ""), "");
}

TEST(OutputMachine, TagsOfBothVersions) {
  const std::string expected =
      "T(Let me see.)f:{\"city\": \"São \\\"P\\\"\\n\", \"n\": [1, {\"a\": null}]};g:{};";
  std::string text = std::string("Let me see.") + kV41Calls;
  EXPECT_EQ(Read({}, text), expected);
  EXPECT_EQ(Read({}, text + "\nand more"), expected);
  for (const auto& [from, to] : {std::pair{"｜ calls", "｜tool_calls"}, {"｜ ", "｜"}}) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;) {
      text.replace(at, std::string_view(from).size(), to);
    }
  }
  EXPECT_EQ(Read({.profile = "deepseek_v4"}, text), expected);
  // Out of reasoning that was not closed.
  EXPECT_EQ(Read({.start = Start::kReasoning}, std::string("hm") + kV41Calls).substr(0, 7),
            "R(hm)f:");
}

TEST(OutputMachine, TagsStayTextWithoutTools) {
  EXPECT_EQ(Read({.calls = Calls::kText}, kV41Calls).substr(0, 2), "T(");
  EXPECT_EQ(Read({.profile = "hermes", .calls = Calls::kText}, "<tool_call>{}</tool_call>"),
            "T(<tool_call>{}</tool_call>)");
}

std::string Tags(std::string_view parameters) {
  return Format("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n{}</｜DSML｜ invoke>\n",
                parameters);
}

std::string Parameter(std::string_view name, std::string_view type, std::string_view value) {
  return Format("<｜DSML｜ parameter name=\"{}\"{}>{}</｜DSML｜ parameter>\n", name, type, value);
}

TEST(OutputMachine, TagsThatModelsGetWrong) {
  const auto read = [](std::string_view parameters) { return Read({}, Tags(parameters)); };
  EXPECT_EQ(read(Parameter("", " string=\"true\"", "")), "f:{\"\": \"\"};");
  EXPECT_EQ(read(Parameter("a \\ string=", " string=\"true\"", "x")),
            "f:{\"a \\\\ string=\": \"x\"};");
  EXPECT_EQ(read(Parameter("a", " string=\"false\"", "not json")), "f:{\"a\": \"not json\"};");
  EXPECT_EQ(read(Parameter("a", " string=\"false\"", " NaN ")), "f:{\"a\": \" NaN \"};");
  EXPECT_EQ(read(Parameter("a", "", "3")), "f:{\"a\": 3};");
  EXPECT_EQ(read(Parameter("a", " string=\"maybe\"", "x")), "f:{\"a\": \"x\"};");
  EXPECT_EQ(read(Parameter("a", " string=\"true\"", "1") + Parameter("a", "", "2")),
            "f:{\"a\": \"1\"};");
  EXPECT_EQ(read("{\"a\": 1}"), "f:{\"a\": 1};");
  // A parameter that ends at the next one; a call that ends at the next one.
  EXPECT_EQ(read("<｜DSML｜ parameter name=\"a\" string=\"true\">x" + Parameter("b", "", "1")),
            "f:{\"a\": \"x\", \"b\": 1};");
  EXPECT_EQ(
      Read({}, "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>"),
      "f:{};g:{};");
}

TEST(OutputMachine, CutCallsKeepTheirFragment) {
  const std::string text = Tags(Parameter("a", " string=\"true\"", "xyz"));
  EXPECT_EQ(Read({}, std::string_view(text).substr(0, text.find("xyz") + 2)), "f:{\"a\": \"xy");
  EXPECT_EQ(Read({}, std::string_view(text).substr(0, text.find("\">"))), "");
  EXPECT_EQ(Read({.calls_max = 1}, kV41Calls),
            "f:{\"city\": \"São \\\"P\\\"\\n\", \"n\": [1, {\"a\": null}]};");
  EXPECT_EQ(Read({.start = Start::kCalls}, "<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>"),
            "f:{};");
}

TEST(OutputMachine, HermesCalls) {
  const Case hermes{.profile = "hermes"};
  EXPECT_EQ(Read(hermes,
                 "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n"
                 "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"),
            "T(Sure.)f:{\"a\": \"</tool_call>\"};g:{};");
  EXPECT_EQ(Read(hermes, "<tool_call>{\"arguments\": {\"a\":1}, \"name\": \"f\"}</tool_call> ok"),
            "f:{\"a\":1};T( ok)");
  EXPECT_EQ(Read(hermes, "<tool_call>{\"name\": \"f\"}</tool_call>"), "f:{};");
  EXPECT_EQ(Read(hermes, R"(<tool_call>{"name":"f","arguments":"{\"a\": 1}"}</tool_call>)"),
            "f:{\"a\": 1};");
  EXPECT_EQ(Read(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\ny\"}}</tool_call>"),
            "f:{\"a\":\"x\\u000ay\"};");
  EXPECT_EQ(Read(hermes, "<tool_call>[{\"name\":\"f\"}, {\"name\":\"g\"}]}</tool_call>"),
            "f:{};g:{};");
  // No call after all.
  EXPECT_EQ(Read(hermes, "<tool_call>{\"nome\": \"f\"}</tool_call>x"),
            "T(<tool_call>{\"nome\": \"f\"}</tool_call>x)");
  EXPECT_EQ(Read(hermes, "a <tool_call>none"), "T(a <tool_call>none)");
  EXPECT_EQ(Read(hermes, "<tool_call>{\"na"), "T(<tool_call>{\"na)");
  EXPECT_EQ(Read(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a"), "f:{\"a");
}

TEST(OutputMachine, LlamaCalls) {
  const Case llama{.profile = "llama_json", .tools = {"f", "g"}};
  EXPECT_EQ(Read(llama, R"({"name": "f", "parameters": {"a": "b"}})"), "f:{\"a\": \"b\"};");
  EXPECT_EQ(Read(llama, R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g"})"),
            "f:{};g:{};");
  EXPECT_EQ(Read(llama, R"({"type": "function", "name": "f", "parameters": {"a": [1]}} done)"),
            "f:{\"a\": [1]};T(done)");
  // An answer that is JSON, and text that only mentions some.
  EXPECT_EQ(Read(llama, R"({"name": "Bob", "age": 3})"), R"(T({"name": "Bob", "age": 3}))");
  EXPECT_EQ(Read(llama, R"([link](x))"), "T([link](x))");
  EXPECT_EQ(Read(llama, R"(Try {"name": "f"})"), R"(T(Try {"name": "f"}))");
}

// What a prompt profile writes of a call is read back as it was.
TEST(OutputMachine, ReadsWhatPromptsWrite) {
  const std::string arguments = R"({"s":"a\n\"b\" <x> é","i":-3,"f":1.5,"b":true,"n":null,)"
                                R"("l":[1,"2",{"k":[]}],"o":{},"":"e"})";
  for (const PromptProfile& profile : PromptProfiles()) {
    Dialog dialog;
    DialogMessage answer;
    answer.role = DialogMessage::Role::kAssistant;
    answer.calls = {{"1", "f", arguments}, {"2", "empty", "{}"}};
    dialog.messages = {answer};
    dialog.thinking = Dialog::Thinking::kOff;
    dialog.ending = Dialog::Ending::kNone;
    const Result<RenderedPrompt> prompt = RenderDialog(profile, dialog);
    ASSERT_TRUE(prompt.ok());
    const size_t begin = prompt->text.find("\n\n<");
    const std::string text = prompt->text.substr(begin, prompt->text.rfind('>') - begin);
    const std::string read = Read({.profile = std::string(profile.name)}, text);
    ASSERT_TRUE(read.starts_with("f:{") && read.ends_with(";empty:{};")) << read;
    const Result<Json> back = Json::Parse(read.substr(2, read.find(";empty") - 2));
    ASSERT_TRUE(back.ok()) << read;
    EXPECT_EQ(*back, *Json::Parse(arguments)) << read;
  }
}

TEST(OutputMachine, ProfilesHaveNames) {
  for (const PromptProfile& profile : PromptProfiles()) {
    EXPECT_NE(FindOutputProfile(profile.name), nullptr) << profile.name;
  }
  EXPECT_EQ(FindOutputProfile("nobody"), nullptr);
}

}  // namespace
}  // namespace deepinfer
