#include "api/dialog_json.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

Json Parsed(std::string_view text) {
  Result<Json> json = Json::Parse(text);
  EXPECT_TRUE(json.ok()) << text << json.status().message();
  return json.ok() ? std::move(json).value() : Json();
}

Result<Dialog> Read(std::string_view messages, std::string_view kwargs = "null",
                    std::string_view tools = "null") {
  ChatPromptOptions options;
  options.template_kwargs = Parsed(kwargs);
  options.tools = Parsed(tools);
  return DialogFromJson(Parsed(messages), options);
}

constexpr std::string_view kHi = R"([{"role":"user","content":"hi"}])";

TEST(DialogJson, ReadsEveryPart) {
  const Result<Dialog> dialog = Read(
      R"([{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"system","content":""},
          {"role":"assistant","content":null,"reasoning":"r","tool_calls":[
             {"id":"c1","function":{"name":"f","arguments":{"x":1}}},
             {"id":"c2","function":{"name":"g"}}]},
          {"role":"tool","tool_call_id":"c2","content":"t"},
          {"role":"assistant","content":"go","prefix":true}])",
      R"({"thinking":false,"reasoning_effort":"max"})",
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  ASSERT_TRUE(dialog.ok()) << dialog.status().message();
  ASSERT_EQ(dialog->messages.size(), 4U);  // the empty system message is gone
  EXPECT_EQ(dialog->messages[0].role, DialogMessage::Role::kSystem);
  EXPECT_EQ(dialog->messages[0].content, "a\n\nb");
  EXPECT_EQ(dialog->messages[1].reasoning, "r");
  ASSERT_EQ(dialog->messages[1].calls.size(), 2U);
  EXPECT_EQ(dialog->messages[1].calls[0].arguments, R"({"x":1})");
  EXPECT_EQ(dialog->messages[1].calls[1].arguments, "{}");
  EXPECT_EQ(dialog->messages[2].call_id, "c2");
  EXPECT_EQ(dialog->ending, Dialog::Ending::kContinueFinal);
  EXPECT_EQ(dialog->thinking, Dialog::Thinking::kOff);
  EXPECT_EQ(dialog->effort, "max");
  ASSERT_EQ(dialog->tools.size(), 1U);
  EXPECT_EQ(dialog->tools[0].name, "f");
}

TEST(DialogJson, EffortNoneTurnsThinkingOff) {
  using Thinking = Dialog::Thinking;
  EXPECT_EQ(Read(kHi)->thinking, Thinking::kOn);
  EXPECT_EQ(Read(kHi, R"({"reasoning_effort":"none"})")->thinking, Thinking::kOff);
  EXPECT_EQ(Read(kHi, R"({"reasoning_effort":"none","enable_thinking":true})")->thinking,
            Thinking::kOn);
  EXPECT_EQ(Read(kHi, R"({"reasoning_effort":40})")->effort, "40");
}

TEST(DialogJson, ErrorsNameTheField) {
  struct Case {
    std::string_view messages, kwargs, tools, param;
  };
  const Case cases[] = {
      {"[]", "null", "null", "messages"},
      {"{}", "null", "null", "messages"},
      {R"(["x"])", "null", "null", "messages[0]"},
      {R"([{"role":"wizard","content":""}])", "null", "null", "messages[0].role"},
      {R"([{"role":"user"}])", "null", "null", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"image_url"}]}])", "null", "null",
       "messages[0].content"},
      {R"([{"role":"assistant","reasoning_content":1,"content":""}])", "null", "null",
       "messages[0].reasoning_content"},
      {R"([{"role":"assistant","content":"","tool_calls":{}}])", "null", "null",
       "messages[0].tool_calls"},
      {R"([{"role":"assistant","content":"","tool_calls":[{"function":{}}]}])", "null", "null",
       "messages[0].tool_calls"},
      {R"([{"role":"tool","tool_call_id":7,"content":""}])", "null", "null",
       "messages[0].tool_call_id"},
      {R"([{"role":"assistant","content":"","prefix":true},{"role":"user","content":""}])", "null",
       "null", "messages[0].prefix"},
      {kHi, R"({"thinkin":true})", "null", "chat_template_kwargs"},
      {kHi, R"({"thinking":1})", "null", "chat_template_kwargs"},
      {kHi, R"({"thinking":true,"enable_thinking":false})", "null", "chat_template_kwargs"},
      {kHi, R"({"reasoning_effort":[]})", "null", "reasoning_effort"},
      {kHi, "null", "{}", "tools"},
      {kHi, "null", R"([{"type":"web"}])", "tools[0]"},
      {kHi, "null", R"([{"type":"function","function":{"name":""}}])", "tools[0].function.name"},
      {kHi, "null", R"([{"type":"function","function":{"name":"f","parameters":[]}}])",
       "tools[0].function.parameters"},
  };
  for (const Case& c : cases) {
    const Result<Dialog> dialog = Read(c.messages, c.kwargs, c.tools);
    ASSERT_FALSE(dialog.ok()) << c.messages << c.kwargs << c.tools;
    EXPECT_EQ(dialog.status().param(), c.param) << dialog.status().message();
  }
}

}  // namespace
}  // namespace deepinfer
