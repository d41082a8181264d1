// Grammars of whole answers: what each family may write, with reasoning, tools and formats.
#include "api/output_grammar.h"

#include <gtest/gtest.h>

#include "api/grammar_json.h"
#include "base/format.h"
#include "text/grammar/grammar.h"

namespace deepinfer {
namespace {

using Start = OutputMachineOptions::Start;

struct Case {
  const char* name;
  const char* profile;
  const char* body;  // tools, tool_choice, response_format of a chat request
  Start start = Start::kContent;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"get","strict":%s,"parameters":{
        "type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
        "unit":{"enum":["C","F"]},"where":{"$ref":"#/$defs/place"}},
        "required":["city"],"additionalProperties":false,
        "$defs":{"place":{"type":"object","properties":{"x":{"type":"integer"}},
        "required":["x"],"additionalProperties":false}}}}},
        {"type":"function","function":{"name":"stop"}}])";

std::string WithTools(const char* strict, const std::string& rest) {
  std::string tools = kTools;
  tools.replace(tools.find("%s"), 2, strict);
  return "{" + tools + (rest.empty() ? "" : "," + rest) + "}";
}

OutputPlan PlanOf(const Case& test, const ToolSet& tools) {
  OutputPlan plan;
  plan.style.profile = FindOutputProfile(test.profile);
  plan.style.tools = OutputStyle::Tools::kRendered;
  plan.style.think = 5;
  plan.style.think_end = 6;
  plan.machine.start = test.start;
  plan.machine.calls_max = tools.calls_max;
  plan.machine.tool_names = tools.names;
  if (tools.active()) plan.machine.calls = OutputMachineOptions::Calls::kParsed;
  return plan;
}

bool Accepts(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar, nullptr, 0);
  return matcher.AcceptText(text) == text.size() && matcher.IsComplete();
}

void Check(const Case& test) {
  const Result<Json> body = Json::Parse(test.body);
  ASSERT_TRUE(body.ok()) << test.body;
  const Result<ToolSet> tools = ReadChatTools(*body);
  ASSERT_TRUE(tools.ok()) << test.name << ": " << tools.status().message();
  Result<std::optional<GrammarSource>> source = ReadGrammar(*body);
  ASSERT_TRUE(source.ok()) << test.name << ": " << source.status().message();
  const Status status = ConstrainOutput(PlanOf(test, *tools), *tools, &*source);
  ASSERT_TRUE(status.ok()) << test.name << ": " << status.message();
  ASSERT_TRUE(source->has_value()) << test.name;
  const auto grammar = CompiledGrammar::Compile(**source);
  ASSERT_TRUE(grammar.ok()) << test.name << ": " << grammar.status().message() << "\n"
                            << (*source)->text;
  for (const std::string& text : test.valid) {
    EXPECT_TRUE(Accepts(*grammar, text)) << test.name << " should accept " << text;
  }
  for (const std::string& text : test.invalid) {
    EXPECT_FALSE(Accepts(*grammar, text)) << test.name << " should refuse " << text;
  }
}

constexpr const char* kFormat = R"("response_format":{"type":"json_schema","json_schema":{
    "name":"n","schema":{"type":"object","properties":{"ok":{"type":"boolean"}},
    "required":["ok"],"additionalProperties":false}}})";

TEST(OutputGrammar, FormatsComeAfterReasoning) {
  const std::string body = Format("{{{}}}", kFormat);
  Check({"thinking",
         "hermes",
         body.c_str(),
         Start::kReasoning,
         {"so <b> {\n</think>\n\n{\"ok\": true}", "</think>{\"ok\": false}"},
         {"{\"ok\": true}", "a</think>b", "a</think>{\"ok\": true} ", "a"}});
  Check({"may think",
         "deepseek_v41",
         body.c_str(),
         Start::kContent,
         {"{\"ok\": true}", "<think>why</think>{\"ok\": true}"},
         {"why</think>{\"ok\": true}", "<think>"}});
  const char* regex = R"({"structured_outputs":{"regex":"[0-9]+"}})";
  Check(
      {"a regular expression", "hermes", regex, Start::kReasoning, {"x</think>12"}, {"x</think>"}});
  const char* choice = R"({"guided_choice":["a b","c\""]})";
  Check({"choices",
         "hermes",
         choice,
         Start::kReasoning,
         {"</think>a b", "</think>c\""},
         {"</think>a"}});
  const char* grammar = R"({"grammar":"root ::= item+\nitem ::= \"x\" | \"y\""})";
  Check({"a grammar", "hermes", grammar, Start::kReasoning, {"q</think>xyx"}, {"q</think>"}});
}

TEST(OutputGrammar, AnAnswerThatIsTheFormatAloneKeepsIt) {
  const Result<Json> body = Json::Parse(Format("{{{}}}", kFormat));
  const Case test{"", "hermes", "", Start::kAnswer, {}, {}};
  Result<std::optional<GrammarSource>> source = ReadGrammar(*body);
  ASSERT_TRUE(ConstrainOutput(PlanOf(test, {}), {}, &*source).ok());
  EXPECT_EQ((*source)->kind, GrammarSource::Kind::kJsonSchema);
  std::optional<GrammarSource> none;
  ASSERT_TRUE(ConstrainOutput(PlanOf(test, {}), {}, &none).ok());
  EXPECT_FALSE(none.has_value());
}

TEST(OutputGrammar, RequiredCallsOfHermes) {
  const std::string call =
      "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"a\"}}\n</tool_call>";
  const std::string stop = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
  const std::string required = WithTools("false", R"("tool_choice":"required")");
  Check({"required",
         "hermes",
         required.c_str(),
         Start::kAnswer,
         {call, stop, call + "\n" + stop},
         {"", "text", "text " + call, call + "x",
          "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>",
          "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"}});
  const std::string one =
      WithTools("false", R"("tool_choice":"required","parallel_tool_calls":false)");
  Check({"one",
         "hermes",
         one.c_str(),
         Start::kReasoning,
         {"hm</think>\n\n" + call},
         {call, "hm</think>" + call + "\n" + stop, "<tool_call></think>" + call}});
  const std::string named =
      WithTools("false", R"("tool_choice":{"type":"function","function":{"name":"stop"}})");
  Check({"named", "hermes", named.c_str(), Start::kAnswer, {stop}, {call, ""}});
  const std::string allowed = WithTools("false", R"("tool_choice":{"type":"allowed_tools",
      "allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"stop"}}]}})");
  Check({"allowed", "hermes", allowed.c_str(), Start::kAnswer, {"text", stop}, {call}});
}

TEST(OutputGrammar, StrictToolsLeaveTextFree) {
  const std::string call =
      "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"a\", \"days\": "
      "2}}\n</tool_call>";
  const std::string bad =
      "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": 1}}\n</tool_call>";
  const std::string loose =
      "<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"x\": 1}}\n</tool_call>";
  const std::string body = WithTools("true", "");
  Check({"hermes",
         "hermes",
         body.c_str(),
         Start::kAnswer,
         {"", "a < b", "Well.\n" + call, call + "\n" + loose + "done"},
         {bad, "x" + bad, "<tool_call>"}});
  const std::string with_format = WithTools("true", kFormat);
  Check({"and a format",
         "hermes",
         with_format.c_str(),
         Start::kAnswer,
         {call, "{\"ok\": true}"},
         {"text", bad, "{\"ok\": 1}"}});
}

TEST(OutputGrammar, LlamaCalls) {
  const std::string call = "{\"name\": \"get\", \"parameters\": {\"city\": \"a\"}}";
  const std::string required = WithTools("false", R"("tool_choice":"required")");
  Check({"required",
         "llama_json",
         required.c_str(),
         Start::kAnswer,
         {call, call + "; " + call},
         {"", "text", "{\"name\": \"get\", \"parameters\": {}}"}});
  const std::string strict = WithTools("true", "");
  Check({"strict",
         "llama_json",
         strict.c_str(),
         Start::kAnswer,
         {"", "text {", call},
         {"{", "{\"name\": \"get\", \"parameters\": {}}"}});
}

TEST(OutputGrammar, DsmlCalls) {
  const auto parameter = [](const std::string& name, const std::string& type,
                            const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + type + "\">" + value +
           "</｜DSML｜ parameter>\n";
  };
  const auto block = [](const std::string& name, const std::string& parameters) {
    return "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters +
           "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  };
  const std::string city = parameter("city", "true", "a </ b\nc");
  const std::string all = city + parameter("days", "false", "3") + parameter("unit", "true", "C");
  const std::string required = WithTools("false", R"("tool_choice":"required")");
  Check({"required",
         "deepseek_v41",
         required.c_str(),
         Start::kReasoning,
         {"so</think>\n\n" + block("get", city), "</think>" + block("get", all),
          "</think>" + block("get", city + parameter("where", "false", "{\"x\": 1}")),
          "</think>" + block("stop", "\n")},
         {"so</think>text", "</think>" + block("get", ""),
          "</think>" + block("get", city + parameter("days", "false", "x")),
          "</think>" + block("get", city + parameter("where", "false", "{}")),
          "</think>" + block("get", parameter("city", "true", "<｜DSML｜"))}});
  const std::string strict = WithTools("true", "");
  Check({"strict",
         "deepseek_v41",
         strict.c_str(),
         Start::kAnswer,
         {"", "text", "text\n\n" + block("get", city),
          block("stop", parameter("any", "false", "[1]") + parameter("b", "true", ""))},
         {block("get", ""), "<｜DSML｜"}});
}

TEST(OutputGrammar, WhatTagsCannotSayIsRefused) {
  const Result<Json> body = Json::Parse(R"({"tools":[{"type":"function","function":{"name":"f",
      "strict":true,"parameters":{"type":"object","oneOf":[{},{}]}}}]})");
  const Result<ToolSet> tools = ReadChatTools(*body);
  const Case test{"", "deepseek_v4", "", Start::kAnswer, {}, {}};
  std::optional<GrammarSource> source;
  const Status status = ConstrainOutput(PlanOf(test, *tools), *tools, &source);
  EXPECT_EQ(status.param(), "tools");
  EXPECT_NE(status.message().find("oneOf"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace deepinfer
