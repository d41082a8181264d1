#include "api/sampling_json.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

Result<SamplingParams> Parse(std::string_view text, const SamplingDefaults& defaults = {}) {
  return ParseSampling(*Json::Parse(text), defaults);
}

TEST(ParseSampling, DefaultsAreTheModelsThenVllms) {
  const Result<SamplingParams> plain = Parse("{}", {.max_tokens = 16});
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->temperature, 1.0F);
  EXPECT_EQ(plain->max_tokens, 16);
  EXPECT_FALSE(plain->seed.has_value());
  const Result<SamplingParams> model =
      Parse(R"({"top_p":null})", {.temperature = 0.6F, .top_p = 0.9F});
  EXPECT_EQ(model->temperature, 0.6F);
  EXPECT_EQ(model->top_p, 0.9F);
  EXPECT_FALSE(model->max_tokens.has_value());
}

TEST(ParseSampling, ReadsEveryField) {
  const Result<SamplingParams> p = Parse(R"({"n":2,"temperature":0.5,"top_p":0.9,"top_k":40,
      "min_p":0.05,"presence_penalty":-1,"frequency_penalty":1,"repetition_penalty":1.1,"seed":7,
      "stop":["a","","b"],"stop_token_ids":[3],"include_stop_str_in_output":true,"ignore_eos":true,
      "max_tokens":9,"min_tokens":2,"skip_special_tokens":false,"logit_bias":{"5":-100,"6":1.5},
      "allowed_token_ids":[1,2],"bad_words":["x"],"spaces_between_special_tokens":false})");
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->n, 2);
  EXPECT_EQ(p->top_k, 40);
  EXPECT_EQ(p->seed, 7);
  EXPECT_EQ(p->stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(p->logit_bias.size(), 2U);
  EXPECT_EQ(p->bad_words_text, (std::vector<std::string>{"x"}));
  EXPECT_TRUE(p->ignore_eos && p->include_stop_str_in_output && !p->skip_special_tokens);
}

TEST(ParseSampling, AliasesOfOpenAiAndLlamaCpp) {
  EXPECT_EQ(Parse(R"({"max_completion_tokens":5,"max_tokens":9})")->max_tokens, 5);
  EXPECT_EQ(Parse(R"({"n_predict":5})")->max_tokens, 5);
  EXPECT_FALSE(Parse(R"({"n_predict":-1})", {.max_tokens = 16})->max_tokens.has_value());
  EXPECT_EQ(Parse(R"({"repeat_penalty":1.5})")->repetition_penalty, 1.5F);
  EXPECT_EQ(Parse(R"({"logit_bias":[[5,1.0],[6,false]]})")->logit_bias[1].second, -100.0F);
  EXPECT_EQ(Parse(R"({"seq_seed":4})")->seed, 4);
  EXPECT_EQ(Parse(R"({"seq_seed":4,"seed":4})")->seed, 4);
  EXPECT_FALSE(Parse(R"({"seed":-1})")->seed.has_value());
}

TEST(ParseSampling, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature":2.5})", "temperature"},
      {R"({"temperature":"hot"})", "temperature"},
      {R"({"top_p":0})", "top_p"},
      {R"({"top_p":1.01})", "top_p"},
      {R"({"top_k":-2})", "top_k"},
      {R"({"min_p":1.5})", "min_p"},
      {R"({"presence_penalty":3})", "presence_penalty"},
      {R"({"frequency_penalty":-3})", "frequency_penalty"},
      {R"({"n":0})", "n"},
      {R"({"n":129})", "n"},
      {R"({"repetition_penalty":0})", "repetition_penalty"},
      {R"({"seed":1.5})", "seed"},
      {R"({"seed":1,"seq_seed":2})", "seq_seed"},
      {R"({"stop":[1]})", "stop"},
      {R"({"stop_token_ids":[-1]})", "stop_token_ids"},
      {R"({"ignore_eos":1})", "ignore_eos"},
      {R"({"logit_bias":{"x":1}})", "logit_bias"},
      {R"({"logit_bias":{"1":101}})", "logit_bias"},
      {R"({"max_tokens":-1})", "max_tokens"},
      {R"({"max_tokens":1,"min_tokens":2})", "min_tokens"},
      {R"({"temperature":1e999})", "temperature"},
      {R"({"seed":99999999999999999999})", "seed"},
  };
  for (const auto& [text, param] : cases) {
    const Result<Json> body = Json::Parse(text);
    if (!body.ok()) continue;  // JSON itself refuses numbers beyond a double
    const Result<SamplingParams> p = ParseSampling(*body, {});
    ASSERT_FALSE(p.ok()) << text;
    EXPECT_EQ(p.status().param(), param) << text;
  }
}

TEST(ReadLogprobCount, RangeAndAbsence) {
  EXPECT_EQ(**ReadLogprobCount(*Json::Parse(R"({"logprobs":5})"), "logprobs", 20), 5);
  EXPECT_FALSE(ReadLogprobCount(*Json::Parse("{}"), "logprobs", 20)->has_value());
  EXPECT_FALSE(ReadLogprobCount(*Json::Parse(R"({"logprobs":21})"), "logprobs", 20).ok());
  EXPECT_FALSE(ReadLogprobCount(*Json::Parse(R"({"logprobs":-1})"), "logprobs", 20).ok());
  EXPECT_EQ(**ReadLogprobCount(*Json::Parse(R"({"logprobs":-1})"), "logprobs", -1), -1);
}

TEST(UnknownFieldWarnings, NamesOnlyStrangers) {
  const std::string_view known[] = {"prompt"};
  const auto warnings =
      UnknownFieldWarnings(*Json::Parse(R"({"prompt":1,"top_p":1,"tempature":1})"), known);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("tempature"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
