// Text of a sample through the whole engine: stop strings and ids, held text, what is shown.
#include "engine/output_stream.h"

#include <gtest/gtest.h>

#include "base/bounded_queue.h"
#include "engine/engine_parts.h"
#include "engine/engine_test_util.h"
#include "engine/sampling_check.h"
#include "engine/scripted_runner.h"

namespace deepinfer {
namespace {

// Ids are indices here; the text of a sample is the pieces one after the other.
const std::vector<std::string> kPieces = {"<unk>", "Hello", " wor", "ld",   "!",
                                          " ST",   "OP",    "</s>", " end", "P more"};

std::unique_ptr<Tokenizer> MakeTokenizer() {
  TokenizerSpec spec;
  spec.model = TokenizerSpec::Model::kUnigram;
  spec.vocab = kPieces;
  spec.scores.assign(kPieces.size(), -1.0F);
  spec.unk_id = 0;
  spec.eos_id = 7;
  spec.added.push_back({.id = 7, .content = "</s>", .special = true});
  spec.decoders.push_back({.kind = DecoderStep::Kind::kFuse});
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

class WaitSink final : public OutputSink {
 public:
  void OnOutput(OutputDelta delta) override {
    pieces.push_back(delta.text);
    const bool last = delta.last;
    fold.OnOutput(std::move(delta));
    if (last) done.TryPush(1);
  }
  std::vector<std::string> pieces;
  CollectSink fold;
  BoundedQueue<int> done{1};
};

struct Outcome {
  CollectSink::Sample sample;
  std::vector<std::string> pieces;
};

template <typename Edit>
Outcome Generate(const std::vector<TokenId>& script, RigMode mode, Edit&& edit) {
  const auto tokenizer = MakeTokenizer();
  WaitSink sink;
  EngineConfig config;
  config.max_num_seqs = 2;
  config.max_model_len = 64;
  config.async_scheduling = mode.overlap;
  ScriptedRunnerOptions options;
  options.vocab = static_cast<int>(kPieces.size());
  options.script = script;
  options.draft_tokens_max = mode.drafts;
  auto engine = *Engine::Create(config, ScriptedParts(config, options, tokenizer.get(), {7}));
  Request request;
  request.prompt = {1};
  request.sampling.max_tokens = static_cast<int>(script.size());
  edit(request.sampling);
  const Result<RequestId> id = engine->Submit(std::move(request), &sink);
  EXPECT_TRUE(id.ok()) << id.status().message();
  if (!id.ok()) return {};
  sink.done.Pop();
  return {sink.fold.sample(*id), sink.pieces};
}

class OutputStreamTest : public testing::TestWithParam<RigMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, OutputStreamTest,
                         testing::Values(RigMode{false, 0}, RigMode{true, 0}, RigMode{true, 4}));

TEST_P(OutputStreamTest, TextComesAsItIsMade) {
  const Outcome got = Generate({1, 2, 3, 4}, GetParam(), [](SamplingParams&) {});
  EXPECT_EQ(got.sample.text, "Hello world!");
  if (GetParam().drafts > 0) return;  // then one delta may hold several tokens
  EXPECT_EQ(got.pieces, (std::vector<std::string>{"Hello", " wor", "ld", "!"}));
  EXPECT_EQ(got.sample.finish, FinishReason::kLength);
}

TEST_P(OutputStreamTest, AStopStringAcrossTokensEndsTheSampleAndIsNeverShown) {
  const Outcome got =
      Generate({1, 5, 6, 8, 8}, GetParam(), [](SamplingParams& s) { s.stop = {"STOP"}; });
  EXPECT_EQ(got.sample.text, "Hello ");
  EXPECT_EQ(got.sample.tokens, (std::vector<TokenId>{1, 5, 6}));
  EXPECT_EQ(got.sample.finish, FinishReason::kStop);
  EXPECT_EQ(got.sample.stop_text, "STOP");
  EXPECT_EQ(got.sample.usage.completion_tokens, 3);
  if (GetParam().drafts > 0) return;
  EXPECT_EQ(got.pieces[1], " ");  // "ST" is held back
}

TEST_P(OutputStreamTest, TextAfterTheMatchInTheSameTokenIsDropped) {
  const Outcome got = Generate({1, 5, 9, 8}, GetParam(), [](SamplingParams& s) {
    s.stop = {"STP"};
    s.include_stop_str_in_output = true;
  });
  EXPECT_EQ(got.sample.text, "Hello STP");
  EXPECT_EQ(got.sample.finish, FinishReason::kStop);
}

TEST_P(OutputStreamTest, HeldTextComesOutWhenNothingMatched) {
  const Outcome got = Generate({1, 5}, GetParam(), [](SamplingParams& s) { s.stop = {"STOP"}; });
  EXPECT_EQ(got.sample.text, "Hello ST");
  EXPECT_EQ(got.sample.finish, FinishReason::kLength);
}

TEST_P(OutputStreamTest, AStopStringInTheLastTokenIsAStop) {
  const Outcome got = Generate({1, 5, 6}, GetParam(), [](SamplingParams& s) { s.stop = {"STOP"}; });
  EXPECT_EQ(got.sample.finish, FinishReason::kStop);
}

TEST_P(OutputStreamTest, MinTokensPutOffStopStrings) {
  const Outcome got = Generate({5, 6, 1, 5, 6, 8}, GetParam(), [](SamplingParams& s) {
    s.stop = {"STOP"};
    s.min_tokens = 4;
  });
  EXPECT_EQ(got.sample.text, " STOPHello ");
  EXPECT_EQ(got.sample.tokens.size(), 5U);
}

TEST_P(OutputStreamTest, EndIdsShowOnlyWhenAskedFor) {
  EXPECT_EQ(Generate({1, 7, 2}, GetParam(), [](SamplingParams&) {}).sample.text, "Hello");
  const Outcome stop =
      Generate({1, 4, 2}, GetParam(), [](SamplingParams& s) { s.stop_token_ids = {4}; });
  EXPECT_EQ(stop.sample.text, "Hello");
  EXPECT_EQ(stop.sample.tokens, (std::vector<TokenId>{1, 4}));
  EXPECT_EQ(stop.sample.stop_token, 4);
  const Outcome shown = Generate({1, 4, 2}, GetParam(), [](SamplingParams& s) {
    s.stop_token_ids = {4};
    s.include_stop_str_in_output = true;
  });
  EXPECT_EQ(shown.sample.text, "Hello!");
  const Outcome ignored =
      Generate({1, 7, 2}, GetParam(), [](SamplingParams& s) { s.ignore_eos = true; });
  EXPECT_EQ(ignored.sample.text, "Hello wor");
  const Outcome special = Generate({1, 7, 2}, GetParam(), [](SamplingParams& s) {
    s.ignore_eos = true;
    s.skip_special_tokens = false;
  });
  EXPECT_EQ(special.sample.text, "Hello</s> wor");
}

TEST_P(OutputStreamTest, WithoutDetokenizeThereAreIdsOnly) {
  const Outcome got = Generate({1, 2}, GetParam(), [](SamplingParams& s) { s.detokenize = false; });
  EXPECT_EQ(got.sample.text, "");
  EXPECT_EQ(got.sample.tokens, (std::vector<TokenId>{1, 2}));
}

TEST(OutputStream, BadWordsAreTokenised) {
  const auto tokenizer = MakeTokenizer();
  SamplingParams sampling;
  sampling.bad_words_text = {"Hello"};
  ASSERT_TRUE(ValidateSampling(&sampling, {.vocab = 10, .max_logprobs = 5}, tokenizer.get()).ok());
  ASSERT_FALSE(sampling.bad_words.empty());
  EXPECT_EQ(sampling.bad_words[0], (std::vector<TokenId>{1}));
  EXPECT_TRUE(sampling.bad_words_text.empty());
  sampling.bad_words_text = {"  "};
  EXPECT_EQ(ValidateSampling(&sampling, {.vocab = 10, .max_logprobs = 5}, tokenizer.get()).param(),
            "bad_words");
}

}  // namespace
}  // namespace deepinfer
