// Outputs under grammars, as the scheduler sees them: the gate, masks of each step, the end.
#include <gtest/gtest.h>

#include "base/bounded_queue.h"
#include "engine/engine_test_util.h"

namespace deepinfer {
namespace {

using Kind = GrammarSource::Kind;

constexpr TokenId kStop = 256;

class GrammarScheduling : public testing::TestWithParam<RigMode> {
 protected:
  GrammarScheduling() {
    GrammarVocabulary::Options options;
    options.stop_ids = {kStop};
    options.mask_width = kStop + 1;
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.emplace_back();
    vocabulary_ = *GrammarVocabulary::Create(bytes, options);
    config_ = Rig::Config();
    config_.eos_ids = {kStop};
  }

  GrammarOrder Order(const GrammarSource& source) {
    BoundedQueue<int> ready(1);
    GrammarOrder order{builder_.Submit(source, [&ready] { ready.TryPush(1); }), vocabulary_};
    ready.Pop();
    return order;
  }

  std::unique_ptr<RequestState> Ask(const GrammarSource& source, int max_tokens = 100) {
    auto state = std::make_unique<RequestState>();
    state->request.prompt = {1, 2, 3};
    state->request.sampling.max_tokens = max_tokens;
    state->request.sampling.grammar = source;
    state->grammar = Order(source);
    return state;
  }

  std::unique_ptr<Rig> MakeRig() {
    return std::make_unique<Rig>(config_, GetParam(), ScriptedRunnerOptions{.vocab = kStop + 1});
  }

  static std::string Text(const CollectSink::Sample& sample) {
    std::string text;
    for (const TokenId id : sample.tokens) {
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  RealClock clock_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  GrammarBuilder builder_{{}, &clock_};
  SchedulerConfig config_;
};

INSTANTIATE_TEST_SUITE_P(Modes, GrammarScheduling,
                         testing::Values(RigMode{false, 0}, RigMode{true, 0}, RigMode{true, 5}),
                         [](const testing::TestParamInfo<RigMode>& param) {
                           return Format("{}_drafts{}", param.param.overlap ? "overlap" : "serial",
                                         param.param.drafts);
                         });

TEST_P(GrammarScheduling, TheOutputIsComplete) {
  const auto rig = MakeRig();
  const GrammarSource source{Kind::kRegex, "[a-f]{3,40}(x|yy)"};
  const RequestId limited = rig->Add(Ask(source));
  const RequestId free = rig->Add({.prompt_len = 5, .max_tokens = 20});
  rig->Run();
  const CollectSink::Sample& sample = rig->sink().sample(limited);
  EXPECT_EQ(sample.finish, FinishReason::kStop) << sample.error;
  EXPECT_EQ(sample.tokens.back(), kStop);
  const auto grammar = CompiledGrammar::Compile(source);
  GrammarMatcher matcher(*grammar, nullptr, 0);
  EXPECT_EQ(matcher.AcceptText(Text(sample)), Text(sample).size());
  EXPECT_TRUE(matcher.IsComplete());
  EXPECT_EQ(rig->sink().sample(free).tokens.size(), 20U);
}

TEST_P(GrammarScheduling, AnEndIgnoredElsewhereEndsHere) {
  const auto rig = MakeRig();
  auto ask = Ask({Kind::kChoice, R"(["yes","no"])"});
  ask->request.sampling.ignore_eos = true;
  ask->request.sampling.min_tokens = 50;
  const RequestId id = rig->Add(std::move(ask));
  rig->Run();
  EXPECT_EQ(rig->sink().sample(id).finish, FinishReason::kStop);
  const std::string text = Text(rig->sink().sample(id));
  EXPECT_TRUE(text == "yes" || text == "no") << text;
}

TEST_P(GrammarScheduling, AModelWithoutAnEndStopsWhenNothingCanFollow) {
  GrammarVocabulary::Options options;
  options.mask_width = kStop + 1;
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  vocabulary_ = *GrammarVocabulary::Create(bytes, options);
  config_.eos_ids.clear();
  const auto rig = MakeRig();
  const RequestId id = rig->Add(Ask({Kind::kChoice, R"(["yes"])"}));
  rig->Run();
  EXPECT_EQ(rig->sink().sample(id).finish, FinishReason::kStop);
  EXPECT_EQ(Text(rig->sink().sample(id)), "yes");
}

TEST_P(GrammarScheduling, ADeadEndIsAnErrorOfItsRequestAlone) {
  GrammarVocabulary::Options options;
  options.stop_ids = {kStop};
  std::vector<std::string> bytes(kStop + 1);
  for (const char byte : {'a', 'b'}) bytes[static_cast<size_t>(byte)] = byte;
  vocabulary_ = *GrammarVocabulary::Create(bytes, options);
  const auto rig = MakeRig();
  const RequestId id = rig->Add(Ask({Kind::kRegex, "abc", "guided_regex"}));
  const RequestId other = rig->Add({.prompt_len = 5, .max_tokens = 20});
  rig->Run();
  const CollectSink::Sample& sample = rig->sink().sample(id);
  EXPECT_EQ(sample.finish, FinishReason::kError);
  EXPECT_EQ(sample.error_code, static_cast<int>(StatusCode::kInvalid));
  EXPECT_NE(sample.error.find("\"guided_regex\" allows after 2 tokens"), std::string::npos)
      << sample.error;
  EXPECT_EQ(Text(sample), "ab");
  EXPECT_EQ(rig->sink().sample(other).finish, FinishReason::kLength);
}

TEST_P(GrammarScheduling, MaxTokensCuts) {
  const auto rig = MakeRig();
  const RequestId id = rig->Add(Ask({Kind::kRegex, "[a-z]{50}"}, 10));
  rig->Run();
  EXPECT_EQ(rig->sink().sample(id).finish, FinishReason::kLength);
  EXPECT_EQ(rig->sink().sample(id).tokens.size(), 10U);
}

TEST_P(GrammarScheduling, PreemptionRebuildsTheState) {
  const GrammarSource source{
      Kind::kJsonSchema,
      R"({"type":"array","items":{"type":"integer","minimum":10},"minItems":3,"maxItems":6})"};
  const auto undisturbed = MakeRig();
  const RequestId first = undisturbed->Add(Ask(source));
  undisturbed->Run();
  const std::vector<TokenId> expected = undisturbed->sink().sample(first).tokens;
  ASSERT_GT(expected.size(), 9U);
  const auto rig = MakeRig();
  const RequestId id = rig->Add(Ask(source));
  for (int i = 0; rig->Step(); ++i) {
    if (i % 7 == 5 && i < 40) rig->scheduler().PreemptRequest(id);
  }
  EXPECT_GT(rig->metrics().preemptions.load(), 0);
  EXPECT_EQ(rig->sink().sample(id).tokens, expected);
}

TEST_P(GrammarScheduling, EachSampleHasAStateOfItsOwn) {
  const auto rig = MakeRig();
  auto ask = Ask({Kind::kRegex, "[a-z]{4,30}!"});
  ask->request.sampling.n = 4;
  const RequestId id = rig->Add(std::move(ask));
  rig->Run();
  std::vector<std::string> texts;
  for (int i = 0; i < 4; ++i) {
    texts.push_back(Text(rig->sink().sample(id, i)));
    EXPECT_EQ(texts.back().back(), '!');
  }
  EXPECT_NE(texts[0], texts[1]);
}

// A ticket that nobody answers.
GrammarOrder Unanswered(std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return {std::make_shared<GrammarTicket>(), std::move(vocabulary)};
}

TEST_P(GrammarScheduling, WhoWaitsForAGrammarHoldsNobodyUp) {
  const auto rig = MakeRig();
  auto waiting = Ask({Kind::kChoice, R"(["a"])"});
  waiting->grammar = Unanswered(vocabulary_);
  const RequestId gated = rig->Add(std::move(waiting));
  auto limited = Ask({Kind::kChoice, R"(["a"])"});
  limited->grammar = Unanswered(vocabulary_);
  limited->request.deadline_us = rig->now_us() + 5;
  const RequestId late = rig->Add(std::move(limited));
  const RequestId other = rig->Add({.prompt_len = 5, .max_tokens = 20});
  while (rig->Step()) {
  }
  EXPECT_EQ(rig->sink().sample(other).finish, FinishReason::kLength);
  EXPECT_EQ(rig->sink().sample(late).error_code, static_cast<int>(StatusCode::kDeadline));
  EXPECT_FALSE(rig->sink().done(gated));
  EXPECT_EQ(rig->scheduler().num_requests(), 1);
  rig->scheduler().GrammarReady(gated + 100, rig->now_us());  // nobody's
  rig->scheduler().Cancel(gated, rig->now_us());
  rig->Run();
  EXPECT_EQ(rig->sink().sample(gated).finish, FinishReason::kCancelled);
}

TEST_P(GrammarScheduling, ABadGrammarFailsItsRequest) {
  const auto rig = MakeRig();
  const RequestId id = rig->Add(Ask({Kind::kRegex, "(a", "response_format"}));
  const RequestId other = rig->Add({.prompt_len = 5, .max_tokens = 2});
  rig->Run();
  EXPECT_EQ(rig->sink().sample(id).error_code, static_cast<int>(StatusCode::kInvalid));
  EXPECT_NE(rig->sink().sample(id).error.find("\"response_format\" cannot be enforced"),
            std::string::npos);
  EXPECT_EQ(rig->sink().sample(other).finish, FinishReason::kLength);
}

}  // namespace
}  // namespace deepinfer
