#include "api/output_plan.h"

#include <gtest/gtest.h>

#include "api/api_test_util.h"
#include "api/chat_plan.h"
#include "base/mapped_file.h"

namespace deepinfer {
namespace {

std::unique_ptr<ChatTemplate> ReadTemplate(const std::string& name) {
  const Result<MappedFile> file = MappedFile::Open("tests/templates/" + name + ".jinja");
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return nullptr;
  Result<std::unique_ptr<ChatTemplate>> compiled =
      ChatTemplate::Compile({reinterpret_cast<const char*>(file->bytes().data()), file->size()});
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  return compiled.ok() ? *std::move(compiled) : nullptr;
}

std::string NameOf(const OutputStyle& style) {
  return style.profile == nullptr ? "none" : std::string(style.profile->name);
}

class OutputPlanTest : public testing::Test {
 protected:
  OutputStyle Probe(const std::string& name) {
    const std::unique_ptr<ChatTemplate> chat_template = ReadTemplate(name);
    return ProbeOutputStyle(text_.tokenizer.get(), chat_template.get(), nullptr);
  }
  // How an answer starts after a prompt whose own text is all of `prompt`.
  static bool Reasons(const std::string& profile, const std::string& prompt) {
    OutputStyle style;
    style.profile = FindOutputProfile(profile);
    const Result<OutputPlan> plan = PlanOutput(style, {prompt, {{0, prompt.size()}}}, {});
    EXPECT_TRUE(plan.ok());
    return plan.ok() && plan->starts_in_reasoning();
  }

  const TinyText text_ = MakeTinyText();
};

TEST_F(OutputPlanTest, TemplatesTellTheirStyle) {
  const OutputStyle qwen = Probe("qwen3");
  EXPECT_EQ(NameOf(qwen), "hermes");
  EXPECT_EQ(qwen.tools, OutputStyle::Tools::kRendered);
  const OutputStyle smol = Probe("smollm2");
  EXPECT_EQ(NameOf(smol), "none");
  EXPECT_EQ(smol.tools, OutputStyle::Tools::kAbsent);
  EXPECT_EQ(NameOf(MakeTinyText(TinyTemplate::kHermes).Context().output), "hermes");
  EXPECT_EQ(NameOf(MakeTinyText(TinyTemplate::kLlama).Context().output), "llama_json");
  EXPECT_EQ(NameOf(ProbeOutputStyle(nullptr, nullptr, nullptr)), "none");
  EXPECT_EQ(
      NameOf(ProbeOutputStyle(text_.tokenizer.get(), nullptr, FindPromptProfile("deepseek_v41"))),
      "deepseek_v41");
}

TEST_F(OutputPlanTest, ThePromptSaysWhereAnAnswerStarts) {
  EXPECT_TRUE(Reasons("deepseek_v41", "<｜Assistant｜><think>"));
  EXPECT_FALSE(Reasons("deepseek_v41", "<｜Assistant｜></think>"));
  EXPECT_TRUE(Reasons("hermes", "<think>a</think>b<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(Reasons("hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(Reasons("hermes", "hello"));
  EXPECT_FALSE(Reasons("llama_json", "<think>"));
}

// What a user writes does not count.
TEST_F(OutputPlanTest, OnlyThePromptsOwnTextCounts) {
  OutputStyle style;
  style.profile = FindOutputProfile("hermes");
  const Result<OutputPlan> plan = PlanOutput(style, {"user: <think>", {{0, 6}}}, {});
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->starts_in_reasoning());
}

TEST_F(OutputPlanTest, ReasoningTokensAreCounted) {
  OutputPlan plan;
  plan.style.profile = FindOutputProfile("hermes");
  plan.style.think_end = 7;
  plan.machine.start = OutputMachineOptions::Start::kReasoning;
  OutputReader reader(plan);
  OutputDelta delta;
  delta.text = "ab</think>c";
  delta.token_ids = {1, 2, 7, 3, 4};
  delta.finish = FinishReason::kStop;
  EXPECT_EQ(reader.Read(delta).size(), 2U);
  EXPECT_EQ(reader.reasoning_tokens(), 3);
}

TEST_F(OutputPlanTest, ToolsOfTemplatesWithoutThemAreText) {
  const DialectContext context = text_.Context();
  const Result<Json> messages = Json::Parse(R"([{"role":"user","content":"x"},
      {"role":"assistant","content":"y","tool_calls":[{"id":"1","type":"function",
       "function":{"name":"f","arguments":"{\"a\":1}"}}]},
      {"role":"tool","tool_call_id":"1","content":"z"},
      {"role":"tool","tool_call_id":"2","content":"w"}])");
  ASSERT_TRUE(messages.ok());
  OutputStyle style = context.output;
  const Result<RenderedPrompt> prompt =
      RenderConversation(*messages, DefaultPromptOptions(context), context, &style);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  EXPECT_EQ(prompt->text,
            "<s><|start|>u:x<|end|><|start|>a:y\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
            "{\"a\":1}}\n</tool_call><|end|><|start|>u:<tool_response>\nz\n</tool_response>\n"
            "<tool_response>\nw\n</tool_response><|end|><|start|>a:");
}

}  // namespace
}  // namespace deepinfer
