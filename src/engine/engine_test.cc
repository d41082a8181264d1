#include "deepinfer/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "engine/engine_parts.h"
#include "engine/engine_test_util.h"
#include "engine/scripted_runner.h"

namespace deepinfer {
namespace {

// Waits for the end of requests from the test's thread.
class WaitSink final : public OutputSink {
 public:
  void OnOutput(OutputDelta delta) override {
    const std::lock_guard lock(mutex_);
    if (delta.last) ++ended_;
    tokens_ += static_cast<int64_t>(delta.token_ids.size());
    fold_.OnOutput(std::move(delta));
    changed_.notify_all();
  }
  void WaitEnded(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= count; });
  }
  void WaitTokens(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_ >= count; });
  }
  CollectSink::Sample sample(RequestId id, int index = 0) {
    const std::lock_guard lock(mutex_);
    return fold_.sample(id, index);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  CollectSink fold_;
  int64_t ended_ = 0;
  int64_t tokens_ = 0;
};

EngineConfig SmallConfig() {
  EngineConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 512;
  return config;
}

std::unique_ptr<Engine> MakeEngine(const EngineConfig& config, ScriptedRunnerOptions options = {}) {
  Result<std::unique_ptr<Engine>> engine =
      Engine::Create(config, ScriptedParts(config, std::move(options), nullptr, {}));
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

Request MakeRequest(int prompt_len, int max_tokens) {
  Request request;
  for (int i = 0; i < prompt_len; ++i) request.prompt.push_back(1 + i % 200);
  request.sampling.max_tokens = max_tokens;
  request.sampling.seed = 11;
  return request;
}

TEST(Engine, AnswersTheSameWithOverlapAndWithout) {
  std::vector<std::vector<TokenId>> answers;
  for (const bool overlap : {true, false}) {
    EngineConfig config = SmallConfig();
    config.async_scheduling = overlap;
    WaitSink sink;
    auto engine = MakeEngine(config);
    std::vector<RequestId> ids;
    for (int i = 1; i <= 20; ++i) {
      ids.push_back(*engine->Submit(MakeRequest(i * 7, i * 3), &sink));
    }
    sink.WaitEnded(20);
    for (size_t i = 0; i < 20; ++i) answers.push_back(sink.sample(ids[i]).tokens);
  }
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(answers[i], answers[i + 20]);
    EXPECT_EQ(answers[i].size(), (i + 1) * 3);
  }
}

TEST(Engine, RefusesBadRequestsAtOnceAndNamesTheParameter) {
  WaitSink sink;
  auto engine = MakeEngine(SmallConfig());
  const auto param = [&](Request request) {
    const Result<RequestId> id = engine->Submit(std::move(request), &sink);
    EXPECT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), StatusCode::kInvalid);
    return id.status().param();
  };
  EXPECT_EQ(param(Request{}), "prompt");
  EXPECT_EQ(param(MakeRequest(512, 1)), "prompt");
  Request bad_id = MakeRequest(4, 4);
  bad_id.prompt[2] = 256;
  EXPECT_EQ(param(bad_id), "prompt");
  bad_id.prompt[2] = -1;
  EXPECT_EQ(param(bad_id), "prompt");
  Request nan = MakeRequest(4, 4);
  nan.sampling.temperature = std::nanf("");
  EXPECT_EQ(param(nan), "temperature");
  Request stop = MakeRequest(4, 4);
  stop.sampling.stop = {"x"};
  EXPECT_EQ(param(stop), "stop");  // no tokenizer
}

TEST(Engine, QueueLimitsAreNamedWithTheirValue) {
  EngineConfig config = SmallConfig();
  config.max_num_seqs = 1;
  config.max_num_queued_reqs = 3;
  config.max_num_queued_tokens = 40;
  WaitSink sink;
  auto engine = MakeEngine(config, {.step_us = 2000});
  ASSERT_TRUE(engine->Submit(MakeRequest(4, 400), &sink).ok());
  sink.WaitTokens(1);  // it runs
  ASSERT_TRUE(engine->Submit(MakeRequest(10, 1), &sink).ok());
  const Status tokens = engine->Submit(MakeRequest(31, 1), &sink).status();
  EXPECT_EQ(tokens.code(), StatusCode::kExhausted);
  EXPECT_NE(tokens.message().find("max_num_queued_tokens is 40"), std::string::npos)
      << tokens.message();
  ASSERT_TRUE(engine->Submit(MakeRequest(10, 1), &sink).ok());
  ASSERT_TRUE(engine->Submit(MakeRequest(10, 1), &sink).ok());
  const Status requests = engine->Submit(MakeRequest(1, 1), &sink).status();
  EXPECT_EQ(requests.code(), StatusCode::kExhausted);
  EXPECT_NE(requests.message().find("max_num_queued_reqs is 3"), std::string::npos);
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.waiting, 3);
  EXPECT_EQ(stats.waiting_tokens, 30);
  EXPECT_EQ(stats.rejected_queue_full, 1);
  EXPECT_EQ(stats.rejected_queue_tokens, 1);
}

TEST(Engine, CancelFreesTheBlocksOfARunningRequest) {
  WaitSink sink;
  auto engine = MakeEngine(SmallConfig(), {.step_us = 200});
  const RequestId id = *engine->Submit(MakeRequest(100, 400), &sink);
  sink.WaitTokens(3);
  EXPECT_GT(engine->Stats().kv_blocks_used, 0);
  engine->Cancel(id);
  engine->Cancel(id);
  engine->Cancel(987654);
  sink.WaitEnded(1);
  EXPECT_EQ(sink.sample(id).finish, FinishReason::kCancelled);
  ASSERT_TRUE(engine->Drain(10000).ok());
  EXPECT_EQ(engine->Stats().kv_blocks_used, 0);
  EXPECT_EQ(engine->Stats().running, 0);
}

TEST(Engine, DrainFinishesWhatIsQueuedAndRefusesMore) {
  WaitSink sink;
  auto engine = MakeEngine(SmallConfig());
  std::vector<RequestId> ids;
  for (int i = 0; i < 30; ++i) ids.push_back(*engine->Submit(MakeRequest(20, 20), &sink));
  EXPECT_TRUE(engine->Drain(-1).ok());
  for (const RequestId id : ids) EXPECT_EQ(sink.sample(id).finish, FinishReason::kLength);
  EXPECT_EQ(engine->Submit(MakeRequest(1, 1), &sink).status().code(), StatusCode::kUnavailable);
}

TEST(Engine, DrainCancelsWhatDoesNotEndInTime) {
  WaitSink sink;
  auto engine = MakeEngine(SmallConfig(), {.step_us = 3000});
  const RequestId id = *engine->Submit(MakeRequest(4, 500), &sink);
  const Status status = engine->Drain(20);
  EXPECT_EQ(status.code(), StatusCode::kDeadline);
  EXPECT_NE(status.message().find("1 requests"), std::string::npos) << status.message();
  EXPECT_EQ(sink.sample(id).finish, FinishReason::kCancelled);
}

TEST(Engine, DestructionEndsEveryRequest) {
  WaitSink sink;
  std::vector<RequestId> ids;
  {
    auto engine = MakeEngine(SmallConfig(), {.step_us = 1000});
    for (int i = 0; i < 30; ++i) ids.push_back(*engine->Submit(MakeRequest(4, 500), &sink));
  }
  for (const RequestId id : ids) EXPECT_EQ(sink.sample(id).finish, FinishReason::kCancelled);
}

TEST(Engine, DeadlinesEndRequests) {
  WaitSink sink;
  auto engine = MakeEngine(SmallConfig(), {.step_us = 2000});
  Request request = MakeRequest(4, 500);
  request.deadline_us = RealClock().NowUs() + 30'000;
  const RequestId id = *engine->Submit(std::move(request), &sink);
  sink.WaitEnded(1);
  EXPECT_EQ(sink.sample(id).finish, FinishReason::kError);
  EXPECT_EQ(sink.sample(id).error_code, static_cast<int>(StatusCode::kDeadline));
}

TEST(Engine, UnseededRequestsDifferAndSeededOnesDoNot) {
  WaitSink sink;
  auto engine = MakeEngine(SmallConfig());
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    Request request = MakeRequest(5, 20);
    if (i < 2) request.sampling.seed.reset();
    ids.push_back(*engine->Submit(std::move(request), &sink));
  }
  sink.WaitEnded(4);
  EXPECT_NE(sink.sample(ids[0]).tokens, sink.sample(ids[1]).tokens);
  EXPECT_EQ(sink.sample(ids[2]).tokens, sink.sample(ids[3]).tokens);
}

TEST(Engine, StatsCountWhatHappened) {
  WaitSink sink;
  auto engine = MakeEngine(SmallConfig());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine->Submit(MakeRequest(64, 10), &sink).ok());
    sink.WaitEnded(i + 1);
  }
  ASSERT_TRUE(engine->Drain(-1).ok());
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.prompt_tokens, 192);
  EXPECT_EQ(stats.generation_tokens, 30);
  EXPECT_EQ(stats.requests_length, 3);
  EXPECT_EQ(stats.prefix_cache_queries, 192);
  EXPECT_EQ(stats.prefix_cache_hits, 96);  // 48 of 64 twice: the last block is computed
  EXPECT_GE(stats.steps, 30);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  for (const HistogramSnapshot& histogram : stats.histograms) {
    if (histogram.name == "time_to_first_token_seconds") {
      EXPECT_EQ(histogram.count, 3U);
    }
    if (histogram.name == "inter_token_latency_seconds") {
      EXPECT_EQ(histogram.count, 27U);
    }
    if (histogram.name == "request_prompt_tokens") {
      EXPECT_EQ(histogram.sum, 192);
    }
    EXPECT_EQ(histogram.counts.size(), histogram.bounds.size() + 1);
  }
}

TEST(Engine, TheStepAgeStartsWithTheWorkNotWithTheIdleTimeBefore) {
  ManualClock clock(1000);
  WaitSink sink;
  EngineParts parts = ScriptedParts(SmallConfig(), {.step_us = 5000}, nullptr, {});
  parts.clock = &clock;
  auto engine = std::move(*Engine::Create(SmallConfig(), std::move(parts)));
  clock.Advance(60'000'000);
  EXPECT_EQ(engine->Stats().last_step_age_us, 60'000'000);
  EXPECT_EQ(engine->Stats().running + engine->Stats().waiting, 0);
  ASSERT_TRUE(engine->Submit(MakeRequest(4, 400), &sink).ok());
  EXPECT_EQ(engine->Stats().last_step_age_us, 0);
}

// Many clients submit and cancel at once while the cache is too small for all of them.
TEST(Engine, StressFromManyThreads) {
  EngineConfig config = SmallConfig();
  config.max_num_seqs = 24;
  config.num_kv_blocks = 60;
  config.max_model_len = 200;
  for (const bool overlap : {true, false}) {
    config.async_scheduling = overlap;
    WaitSink sink;
    auto engine = MakeEngine(config);
    std::vector<std::thread> clients;
    std::atomic<int64_t> sent{0};
    for (uint32_t c = 0; c < 4; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937 rng(c);
        for (int i = 0; i < 150; ++i) {
          Request request =
              MakeRequest(1 + static_cast<int>(rng() % 120), 1 + static_cast<int>(rng() % 80));
          request.sampling.n = rng() % 8 == 0 ? 3 : 1;
          request.priority = static_cast<int>(rng() % 3);
          const Result<RequestId> id = engine->Submit(std::move(request), &sink);
          ASSERT_TRUE(id.ok()) << id.status().message();
          ++sent;
          if (rng() % 4 == 0) engine->Cancel(*id);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    sink.WaitEnded(sent.load());
    ASSERT_TRUE(engine->Drain(-1).ok());
    const EngineStats stats = engine->Stats();
    EXPECT_EQ(stats.kv_blocks_used, 0);
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
    EXPECT_EQ(stats.waiting_tokens, 0);
    EXPECT_GT(stats.preemptions, 0);
  }
}

TEST(Engine, ConfigurationErrorsNameTheField) {
  EngineConfig config = SmallConfig();
  config.max_num_seqs = 0;
  EXPECT_EQ(Engine::CheckConfig(config).param(), "max_num_seqs");
  config = SmallConfig();
  config.kv_cache_watermark = std::nan("");
  EXPECT_EQ(Engine::CheckConfig(config).param(), "kv_cache_watermark");
  config = SmallConfig();
  config.block_size = 17;
  EXPECT_EQ(Engine::CheckConfig(config).param(), "block_size");
  config = SmallConfig();
  config.max_model_len = -1;
  EXPECT_EQ(Engine::CheckConfig(config).param(), "max_model_len");
  config = SmallConfig();
  config.threads = -1;
  EXPECT_EQ(Engine::CheckConfig(config).param(), "threads");
}

TEST(Engine, AGrammarNeedsATokenizer) {
  const std::unique_ptr<Engine> engine = MakeEngine(SmallConfig());
  WaitSink sink;
  Request request = MakeRequest(5, 5);
  request.sampling.grammar = GrammarSource{GrammarSource::Kind::kRegex, "a"};
  const Result<RequestId> id = engine->Submit(request, &sink);
  EXPECT_EQ(id.status().code(), StatusCode::kInvalid);
  EXPECT_EQ(id.status().param(), "grammar");
  EXPECT_EQ(engine->Stats().waiting, 0);
}

}  // namespace
}  // namespace deepinfer
