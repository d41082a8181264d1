#include "apps/engine_flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace deepinfer {
namespace {

std::optional<int> ParseWords(EngineConfig* config, std::vector<std::string> words,
                              std::string* shown = nullptr) {
  CommandLine line("deepinfer test", "summary");
  AddEngineFlags(&line, config);
  words.insert(words.begin(), "deepinfer test");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  const std::optional<int> code = line.Parse(static_cast<int>(argv.size()), argv.data());
  if (shown != nullptr) *shown = line.EffectiveConfig();
  return code;
}

TEST(EngineFlags, SpeculativeConfigIsVllms) {
  EngineConfig config;
  std::string shown;
  EXPECT_EQ(ParseWords(&config,
                       {"--speculative-config",
                        R"({"method": "ngram", "num_speculative_tokens": 4,
                            "prompt_lookup_max": 6, "prompt_lookup_min": 2})"},
                       &shown),
            std::nullopt);
  EXPECT_EQ(config.speculative.method, "ngram");
  EXPECT_EQ(config.speculative.num_speculative_tokens, 4);
  EXPECT_EQ(config.speculative.prompt_lookup_max, 6);
  EXPECT_EQ(config.speculative.prompt_lookup_min, 2);
  EXPECT_NE(shown.find("spec-method: ngram"), std::string::npos) << shown;
}

TEST(EngineFlags, SingleSpeculativeFlagsWin) {
  EngineConfig config;
  EXPECT_EQ(ParseWords(&config, {"--spec-method", "none", "--num-speculative-tokens", "2",
                                 "--speculative-config", R"({"method": "ngram"})"}),
            std::nullopt);
  EXPECT_EQ(config.speculative.method, "none");
  EXPECT_EQ(config.speculative.num_speculative_tokens, 2);
}

TEST(EngineFlags, BadSpeculativeConfigsAreRefused) {
  for (const char* text : {"ngram", "[]", R"({"method": 3})", R"({"draft_model": "x"})",
                           R"({"num_speculative_tokens": 99999999999})",
                           R"({"num_speculative_tokens": 2.5})", R"({"method": "ngram")"}) {
    EngineConfig config;
    EXPECT_EQ(ParseWords(&config, {"--speculative-config", text}), 2) << text;
  }
}

TEST(EngineFlags, PublishedVariablesAreHonoured) {
  setenv("DEEPINFER_USE_NEXTN_DECODE", "3", 1);
  setenv("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact", 1);
  setenv("DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "150", 1);
  EngineConfig config;
  EXPECT_EQ(ParseWords(&config, {}), std::nullopt);
  unsetenv("DEEPINFER_USE_NEXTN_DECODE");
  unsetenv("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE");
  unsetenv("DEEPINFER_YOCO_PREFILL_KEEP_TOKENS");
  EXPECT_EQ(config.speculative.num_speculative_tokens, 3);
  EXPECT_EQ(config.yoco_prefill_truncation_mode, "compact");
  EXPECT_EQ(config.yoco_prefill_keep_tokens, 150);
}

}  // namespace
}  // namespace deepinfer
