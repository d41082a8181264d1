#include "engine/sampling_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deepinfer {
namespace {

constexpr SamplingLimits kLimits{.vocab = 100, .max_logprobs = 20};
const float kNan = std::nanf("");
const float kInf = std::numeric_limits<float>::infinity();

template <typename Edit>
std::string Param(Edit&& edit, const SamplingLimits& limits = kLimits) {
  SamplingParams sampling;
  edit(sampling);
  const Status status = ValidateSampling(&sampling, limits, nullptr);
  if (status.ok()) return "ok";
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_FALSE(status.message().empty());
  return status.param();
}

TEST(SamplingCheck, DefaultsPass) {
  EXPECT_EQ(Param([](SamplingParams&) {}), "ok");
}

TEST(SamplingCheck, NumbersOutOfRange) {
  for (const float bad : {kNan, kInf, -kInf, -0.1F, 2.1F}) {
    EXPECT_EQ(Param([&](SamplingParams& s) { s.temperature = bad; }), "temperature") << bad;
  }
  for (const float bad : {kNan, kInf, 0.0F, -1.0F, 1.01F}) {
    EXPECT_EQ(Param([&](SamplingParams& s) { s.top_p = bad; }), "top_p") << bad;
  }
  for (const float bad : {kNan, -0.01F, 1.01F}) {
    EXPECT_EQ(Param([&](SamplingParams& s) { s.min_p = bad; }), "min_p") << bad;
  }
  for (const float bad : {kNan, kInf, 2.01F, -2.01F}) {
    EXPECT_EQ(Param([&](SamplingParams& s) { s.presence_penalty = bad; }), "presence_penalty");
    EXPECT_EQ(Param([&](SamplingParams& s) { s.frequency_penalty = bad; }), "frequency_penalty");
  }
  for (const float bad : {kNan, kInf, 0.0F, -1.0F}) {
    EXPECT_EQ(Param([&](SamplingParams& s) { s.repetition_penalty = bad; }), "repetition_penalty");
  }
  EXPECT_EQ(Param([](SamplingParams& s) { s.top_k = -2; }), "top_k");
  EXPECT_EQ(Param([](SamplingParams& s) { s.n = 0; }), "n");
  EXPECT_EQ(Param([](SamplingParams& s) { s.n = 129; }), "n");
  EXPECT_EQ(Param([](SamplingParams& s) { s.n = 128; }), "ok");
  EXPECT_EQ(Param([](SamplingParams& s) { s.max_tokens = -1; }), "max_tokens");
  EXPECT_EQ(Param([](SamplingParams& s) { s.min_tokens = -1; }), "min_tokens");
  EXPECT_EQ(Param([](SamplingParams& s) { s.min_tokens = 17; }), "min_tokens");
}

TEST(SamplingCheck, LogprobsUpToTheLimit) {
  EXPECT_EQ(Param([](SamplingParams& s) { s.logprobs = 20; }), "ok");
  EXPECT_EQ(Param([](SamplingParams& s) { s.logprobs = 21; }), "logprobs");
  EXPECT_EQ(Param([](SamplingParams& s) { s.logprobs = -1; }), "logprobs");
  EXPECT_EQ(Param([](SamplingParams& s) { s.prompt_logprobs = -2; }), "prompt_logprobs");
  const SamplingLimits all{.vocab = 100, .max_logprobs = -1};
  EXPECT_EQ(Param([](SamplingParams& s) { s.logprobs = -1; }, all), "ok");
  EXPECT_EQ(Param([](SamplingParams& s) { s.logprobs = 101; }, all), "logprobs");
}

TEST(SamplingCheck, IdsOutsideOfTheVocabulary) {
  for (const TokenId bad :
       {-1, 100, std::numeric_limits<TokenId>::max(), std::numeric_limits<TokenId>::min()}) {
    EXPECT_EQ(Param([&](SamplingParams& s) { s.stop_token_ids = {1, bad}; }), "stop_token_ids");
    EXPECT_EQ(Param([&](SamplingParams& s) { s.allowed_token_ids = {bad}; }), "allowed_token_ids");
    EXPECT_EQ(Param([&](SamplingParams& s) { s.logit_bias = {{bad, 1.0F}}; }), "logit_bias");
    EXPECT_EQ(Param([&](SamplingParams& s) { s.bad_words = {{3, bad}}; }), "bad_words");
  }
  EXPECT_EQ(Param([](SamplingParams& s) { s.logit_bias = {{1, kNan}}; }), "logit_bias");
  EXPECT_EQ(Param([](SamplingParams& s) { s.logit_bias = {{1, 101.0F}}; }), "logit_bias");
  EXPECT_EQ(Param([](SamplingParams& s) { s.bad_words = {{}}; }), "bad_words");
}

TEST(SamplingCheck, TextNeedsATokenizerAndSensibleStops) {
  EXPECT_EQ(Param([](SamplingParams& s) { s.stop = {"a"}; }), "stop");
  EXPECT_EQ(Param([](SamplingParams& s) { s.stop = {""}; }), "stop");
  EXPECT_EQ(Param([](SamplingParams& s) { s.stop.assign(257, "a"); }), "stop");
  EXPECT_EQ(Param([](SamplingParams& s) { s.bad_words_text = {"a"}; }), "bad_words");
}

TEST(ValidateImages, APlaceholderNeedsAnImage) {
  const std::vector<TokenId> prompt = {5, 380, 7};
  EXPECT_TRUE(ValidateImages(prompt, -1).ok());
  EXPECT_TRUE(ValidateImages(prompt, 381).ok());
  const Status status = ValidateImages(prompt, 380);
  EXPECT_EQ(status.param(), "prompt");
  EXPECT_NE(status.message().find("token 380 at position 1"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
