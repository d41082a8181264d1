// The bundled model, in the arithmetic that users get: the same tokens and log-probabilities alone
// and in a batch of 32, with its draft layers and without; and which prefix hits compact mode
// takes.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "tests/stress/stress_rig.h"

namespace deepinfer {
namespace {

constexpr const char* kModel = "checkpoints/tiny-v41";
constexpr int kBatch = 32;

constexpr std::string_view kTexts[] = {
    "Once upon a time",
    "The little dog ran to the river because",
    "Question: What is the capital of France?\nAnswer:",
    "Tom has 3 apples. He buys 4 more apples and gives 2 to Anna. How many apples does he have?",
    "In the morning, the sun",
    "She opened the old box and found",
    "A farmer had seven cows. Every day, each cow gave two buckets of milk.",
    "Write a story about a bird that could not fly.",
};

class Bundled : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    LoadOptions options;
    options.path = kModel;
    options.backend.threads = 2;
    Result<std::unique_ptr<LoadedModel>> model = OpenModel(options);
    DI_CHECK(model.ok(), "{}", model.status().message());
    model_ = std::move(model).value().release();
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  static std::vector<TokenId> Tokens(std::string_view text) {
    return model_->tokenizer->Encode(text, {});
  }

  static LoadedModel* model_;
};

LoadedModel* Bundled::model_ = nullptr;

TEST_F(Bundled, BatchesOf32AreBatchesOfOne) {
  std::vector<Ask> asks;
  for (int i = 0; i < kBatch; ++i) {
    Ask ask;
    ask.prompt = Tokens(kTexts[static_cast<size_t>(i) % std::size(kTexts)]);
    // Every other one is sampled; texts that return begin at another word.
    ask.sampling.temperature = i % 2 == 0 ? 0.0F : 0.8F;
    ask.sampling.seed = i;
    ask.prompt.erase(ask.prompt.begin(), ask.prompt.begin() + i / 16);
    ask.sampling.max_tokens = 16 + i % 5;
    ask.sampling.ignore_eos = true;
    ask.sampling.logprobs = 2;
    asks.push_back(std::move(ask));
  }
  const std::vector<Answer> alone = RunAsks(model_, asks, {});
  EXPECT_EQ(alone.front().most_running, 1);
  const auto expect_same = [&](const StressMode& mode, int running) {
    const std::vector<Answer> answers = RunAsks(model_, asks, mode);
    EXPECT_EQ(answers.front().most_running, running) << mode.name;
    EXPECT_EQ(answers.front().drafts_accepted > 0, mode.drafting == Drafting::kModel) << mode.name;
    for (size_t i = 0; i < asks.size(); ++i) {
      EXPECT_EQ(answers[i].tokens.size(), static_cast<size_t>(*asks[i].sampling.max_tokens));
      EXPECT_EQ(Difference(alone[i], answers[i]), "") << mode.name << ", prompt " << i;
    }
  };
  expect_same({.name = "32", .batch = true, .overlap = true, .slots = kBatch}, kBatch);
  expect_same({.name = "1, drafts", .drafting = Drafting::kModel}, 1);
  expect_same({.name = "32, drafts",
               .batch = true,
               .overlap = true,
               .slots = kBatch,
               .drafting = Drafting::kModel},
              kBatch);
}

// A window is run again after a hit: one of no more tokens than that saves nothing.
TEST_F(Bundled, CompactHitsOfOneWindowAreNotTaken) {
  const int window = model_->model->cache_layout().replay_window;
  ASSERT_EQ(window, 64);
  std::vector<TokenId> text;
  while (text.size() < 200) {
    const std::vector<TokenId> more = Tokens(kTexts[text.size() % std::size(kTexts)]);
    text.insert(text.end(), more.begin(), more.end());
  }
  Ask whole;
  whole.prompt = text;
  whole.sampling.temperature = 0.0F;
  whole.sampling.max_tokens = 8;
  whole.sampling.ignore_eos = true;
  const StressMode mode{.overlap = true, .keep_tokens = window + 16};
  const Answer cold = RunAsks(model_, {whole}, mode)[0];
  for (const int hit : {16, window - 16, window, window + 16, window + 64}) {
    Ask donor = whole;
    donor.prompt.resize(static_cast<size_t>(hit) + 1);
    donor.sampling.max_tokens = 1;
    const Answer warm = RunAsks(model_, {donor, whole}, mode)[1];
    // What is run again does not count.
    EXPECT_EQ(warm.cached_tokens, std::max(hit - window, 0)) << hit;
    if (hit <= window) {
      EXPECT_EQ(Difference(cold, warm), "") << hit;
    }
  }
}

}  // namespace
}  // namespace deepinfer
