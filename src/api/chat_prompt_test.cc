#include "api/chat_prompt.h"

#include <gtest/gtest.h>

#include "api/api_test_util.h"

namespace deepinfer {
namespace {

class ChatPromptTest : public testing::Test {
 protected:
  // The rendered text, or "error: ..." with the message.
  std::string Rendered(std::string_view source, std::string_view messages,
                       const ChatPromptOptions& options = {}) {
    const Result<std::unique_ptr<ChatTemplate>> compiled = ChatTemplate::Compile(source);
    EXPECT_TRUE(compiled.ok()) << compiled.status().message();
    const Result<RenderedPrompt> prompt =
        RenderChat(compiled->get(), text_.tokenizer.get(), *Json::Parse(messages), options);
    return prompt.ok() ? prompt->text : "error: " + prompt.status().message();
  }
  const TinyText text_ = MakeTinyText();
};

constexpr std::string_view kCall = R"([{"role":"assistant","content":null,"tool_calls":[
    {"id":"1","type":"function","function":{"name":"f","arguments":"{\"city\": \"Rome\"}"}}]}])";

TEST_F(ChatPromptTest, ToolArgumentsComeAsTheTemplateWantsThem) {
  EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments.city }}", kCall), "Rome");
  EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments|tojson }}", kCall),
            "{\"city\": \"Rome\"}");
  EXPECT_EQ(Rendered("{{ 'call ' + messages[0].tool_calls[0].function.arguments }}", kCall),
            "call {\"city\": \"Rome\"}");
  EXPECT_EQ(Rendered("{{ messages[0].content is none }}", kCall), "True");
}

TEST_F(ChatPromptTest, ContentComesAsTheTemplateWantsIt) {
  const char* text = R"([{"role":"user","content":"hi"}])";
  const char* parts = R"([{"role":"user","content":[{"type":"text","text":"a"},"b"]}])";
  const char* only_parts = "{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}";
  EXPECT_EQ(Rendered("{{ messages[0].content }}", text), "hi");
  EXPECT_EQ(Rendered("{{ messages[0].content }}", parts), "a\nb");
  EXPECT_EQ(Rendered(only_parts, text), "<hi>");
  EXPECT_EQ(Rendered(only_parts, parts), "<a><b>");
  EXPECT_EQ(Rendered("{% if messages[0].content is string %}s{% else %}{% for p in "
                     "messages[0].content %}{{ p.text }}{% endfor %}{% endif %}",
                     text),
            "s");
}

TEST_F(ChatPromptTest, VariablesOfHuggingFaceAreDefined) {
  EXPECT_EQ(Rendered("{{ tools is none }}{{ documents is none }}{{ bos_token }}{{ eos_token }}"
                     "{{ unk_token is defined }}{{ add_generation_prompt }}",
                     R"([{"role":"user","content":"x"}])"),
            "TrueTrue<s><|end|>FalseTrue");
  ChatPromptOptions options;
  options.template_kwargs = *Json::Parse(R"({"enable_thinking":false})");
  options.documents = *Json::Parse(R"([{"title":"t"}])");
  EXPECT_EQ(Rendered("{{ enable_thinking }}{{ documents[0].title }}",
                     R"([{"role":"user","content":"x"}])", options),
            "Falset");
}

TEST_F(ChatPromptTest, ContinuationKeepsWhatTheTemplateKept) {
  ChatPromptOptions options;
  options.generation = ChatPromptOptions::Generation::kContinueFinalMessage;
  const char* messages = R"([{"role":"assistant","content":" so \n"}])";
  EXPECT_EQ(Rendered("<{{ messages[0].content }}>", messages, options), "< so \n");
  EXPECT_EQ(Rendered("<{{ messages[0].content|trim }}>", messages, options), "<so");
  EXPECT_TRUE(Rendered("<{{ messages[0].content|upper }}>", messages, options)
                  .starts_with("error: continue_final_message"));
  EXPECT_TRUE(Rendered("x", R"([{"role":"assistant","content":""}])", options)
                  .starts_with("error: continue_final_message"));
}

TEST_F(ChatPromptTest, TemplateErrorsBelongToTheMessages) {
  EXPECT_EQ(Rendered("{{ raise_exception('Roles must alternate') }}",
                     R"([{"role":"user","content":"x"}])"),
            "error: Roles must alternate");
}

TEST_F(ChatPromptTest, TheTokenizersPrefixIsNotDoubled) {
  const Json messages = *Json::Parse(R"([{"role":"user","content":"x"}])");
  ChatPromptOptions options;
  options.prefix = ChatPromptOptions::Prefix::kTokenizer;
  const auto encode = [&](std::string_view source) {
    const auto compiled = ChatTemplate::Compile(source);
    return *EncodeChat(compiled->get(), text_.tokenizer.get(), messages, options);
  };
  EXPECT_EQ(encode("{{ bos_token }}x"), (std::vector<TokenId>{kBos, 'x'}));
  EXPECT_EQ(encode("x"), (std::vector<TokenId>{kBos, 'x'}));
}

}  // namespace
}  // namespace deepinfer
