#include "server/inference_call.h"

#include <gtest/gtest.h>

#include <condition_variable>

#include "base/format.h"
#include "engine/engine_parts.h"
#include "engine/scripted_runner.h"

namespace deepinfer {
namespace {

// Writes "PROMPT:TOKENS FINISH;" for each delta.
class PlainResponse final : public ResponseStream {
 public:
  explicit PlainResponse(DialectCall::Mode mode) : mode_(mode) {}
  void OnDelta(int prompt, OutputDelta delta, std::string* out) override {
    std::string* to = mode_ == DialectCall::Mode::kStream ? out : &whole_;
    *to += Format("{}:{} {};", prompt, delta.token_ids.size(), static_cast<int>(delta.finish));
  }
  void Finish(std::string* out) override {
    *out += mode_ == DialectCall::Mode::kStream ? "DONE" : whole_;
  }
  void Fail(const Status& status, std::string* out) override {
    *out += "FAILED " + status.message();
  }

 private:
  const DialectCall::Mode mode_;
  std::string whole_;
};

// A scripted engine and a plain dialect.
class InferenceCallTest : public testing::Test {
 protected:
  ~InferenceCallTest() override { Stop(); }

  // The order of a server: no request is left, then no task, then no engine.
  void Stop() {
    if (engine_ != nullptr) {
      EXPECT_TRUE(engine_->Drain(20'000).ok());
    }
    prep_.reset();
    engine_.reset();
  }

  void StartEngine(int64_t step_us = 0, TokenId nan_token = -1, int64_t queued_max = 1000) {
    EngineConfig config;
    config.max_num_seqs = 4;
    config.num_kv_blocks = 256;
    config.max_model_len = 1024;
    config.max_num_queued_reqs = queued_max;
    ScriptedRunnerOptions options;
    options.step_us = step_us;
    options.nan_token = nan_token;
    auto engine = Engine::Create(config, ScriptedParts(config, options, nullptr, {}));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = *std::move(engine);
    prep_ = std::make_unique<TaskPool>(1);
    context_ = {.engine = engine_.get(), .prep = prep_.get(), .counters = &counters_};
  }

  std::shared_ptr<ResponseWriter> Writer(size_t buffer_max = 1 << 20) {
    return std::make_shared<ResponseWriter>("id", buffer_max, [this] {
      std::lock_guard lock(mutex_);
      ++wakes_;
      changed_.notify_all();
    });
  }

  DialectCall Parsed(DialectCall::Mode mode, std::vector<int> max_tokens, TokenId first = 5) {
    DialectCall parsed;
    parsed.mode = mode;
    for (const int tokens : max_tokens) {
      Request request;
      request.prompt = {first, 6, 7};
      request.sampling.max_tokens = tokens;
      request.sampling.ignore_eos = true;
      request.sampling.temperature = 0;
      parsed.requests.push_back(std::move(request));
    }
    parsed.response = std::make_unique<PlainResponse>(mode);
    return parsed;
  }

  // Everything the writer was told, until it is finished.
  ResponseWriter::Taken Collect(ResponseWriter* writer) {
    ResponseWriter::Taken all;
    std::unique_lock lock(mutex_);
    while (!all.finished) {
      const int seen = wakes_;
      lock.unlock();
      ResponseWriter::Taken taken = writer->Take();
      lock.lock();
      if (taken.whole) all.whole = std::move(taken.whole);
      if (taken.start) all.start = std::move(taken.start);
      all.bytes += taken.bytes;
      all.finished = taken.finished;
      if (all.finished) break;
      if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return wakes_ > seen; })) {
        ADD_FAILURE() << "no end";
        break;
      }
    }
    return all;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int wakes_ = 0;
  ServerCounters counters_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TaskPool> prep_;  // its tasks call the engine
  InferenceCall::Context context_;
};

TEST_F(InferenceCallTest, StreamsEveryTokenOfEveryPrompt) {
  StartEngine();
  const auto writer = Writer();
  std::make_shared<InferenceCall>(context_, Parsed(DialectCall::Mode::kStream, {3, 5}), writer)
      ->Start();
  const ResponseWriter::Taken taken = Collect(writer.get());
  ASSERT_TRUE(taken.start.has_value());
  EXPECT_EQ(taken.start->status, 200);
  EXPECT_EQ(*taken.start->headers.Find("cache-control"), "no-cache");
  EXPECT_TRUE(taken.bytes.ends_with("DONE")) << taken.bytes;
  const std::string length = Format(" {};", static_cast<int>(FinishReason::kLength));
  EXPECT_NE(taken.bytes.find("0:1" + length), std::string::npos) << taken.bytes;
  EXPECT_NE(taken.bytes.find("1:1" + length), std::string::npos) << taken.bytes;
  EXPECT_EQ(counters_.responses(), (std::vector<std::pair<int, int64_t>>{{200, 1}}));
}

TEST_F(InferenceCallTest, FoldsAWholeAnswer) {
  StartEngine();
  const auto writer = Writer();
  std::make_shared<InferenceCall>(context_, Parsed(DialectCall::Mode::kWhole, {4}), writer)
      ->Start();
  const ResponseWriter::Taken taken = Collect(writer.get());
  ASSERT_TRUE(taken.whole.has_value());
  EXPECT_EQ(taken.whole->status, 200);
  EXPECT_TRUE(taken.whole->body.ends_with(Format("{};", static_cast<int>(FinishReason::kLength))))
      << taken.whole->body;
}

TEST_F(InferenceCallTest, RefusalIsAnsweredWithItsStatus) {
  StartEngine();
  const auto writer = Writer();
  DialectCall parsed = Parsed(DialectCall::Mode::kStream, {4, 4});
  parsed.requests[1].prompt = {100'000};  // no such token
  std::make_shared<InferenceCall>(context_, std::move(parsed), writer)->Start();
  const ResponseWriter::Taken taken = Collect(writer.get());
  ASSERT_TRUE(taken.whole.has_value());
  EXPECT_EQ(taken.whole->status, 400);
  EXPECT_FALSE(taken.start.has_value());
  EXPECT_TRUE(engine_->Drain(5000).ok());
}

TEST_F(InferenceCallTest, ClientThatLeavesCancels) {
  for (const auto mode : {DialectCall::Mode::kWhole, DialectCall::Mode::kStream}) {
    StartEngine(2000);
    const auto writer = Writer();
    const auto call = std::make_shared<InferenceCall>(context_, Parsed(mode, {1000, 1000}), writer);
    call->Start();
    writer->Close(CloseReason::kPeerLeft);
    Collect(writer.get());
    EXPECT_TRUE(engine_->Drain(5000).ok());
    const EngineStats stats = engine_->Stats();
    EXPECT_EQ(stats.requests_cancelled, 2);
    EXPECT_EQ(stats.kv_blocks_used, 0);
    EXPECT_LT(stats.steps, 500);
    Stop();
  }
  EXPECT_EQ(counters_.responses(), (std::vector<std::pair<int, int64_t>>{{499, 2}}));
}

TEST_F(InferenceCallTest, ClientThatLeftBeforeTheStartCancels) {
  StartEngine(2000);
  const auto writer = Writer();
  writer->Close(CloseReason::kPeerLeft);
  std::make_shared<InferenceCall>(context_, Parsed(DialectCall::Mode::kWhole, {1000}), writer)
      ->Start();
  EXPECT_TRUE(engine_->Drain(5000).ok());
  EXPECT_EQ(engine_->Stats().requests_cancelled, 1);
}

TEST_F(InferenceCallTest, FailureMidwayEndsTheStreamAndItsSiblings) {
  StartEngine(0, /*nan_token=*/9);
  const auto writer = Writer();
  DialectCall parsed = Parsed(DialectCall::Mode::kStream, {1000, 1000});
  parsed.requests[0].prompt = {5, 9};
  std::make_shared<InferenceCall>(context_, std::move(parsed), writer)->Start();
  const ResponseWriter::Taken taken = Collect(writer.get());
  EXPECT_NE(taken.bytes.find("FAILED "), std::string::npos) << taken.bytes;
  EXPECT_EQ(taken.bytes.find("DONE"), std::string::npos);
  EXPECT_TRUE(engine_->Drain(5000).ok());
  EXPECT_EQ(engine_->Stats().kv_blocks_used, 0);
}

TEST_F(InferenceCallTest, FullQueueIs429) {
  StartEngine(20'000, -1, /*queued_max=*/1);
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  int refused = 0;
  for (int i = 0; i < 12; ++i) {
    writers.push_back(Writer());
    std::make_shared<InferenceCall>(context_, Parsed(DialectCall::Mode::kWhole, {1000}),
                                    writers.back())
        ->Start();
    const ResponseWriter::Taken taken = writers.back()->Take();
    if (!taken.whole) continue;
    EXPECT_EQ(taken.whole->status, 429);
    EXPECT_NE(taken.whole->headers.Find("retry-after"), nullptr);
    ++refused;
  }
  EXPECT_GT(refused, 0);
  for (const auto& writer : writers) writer->Close(CloseReason::kPeerLeft);
  EXPECT_TRUE(engine_->Drain(20'000).ok());
}

TEST_F(InferenceCallTest, ManyCallsAtOnceAllEnd) {
  StartEngine();
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  for (int i = 0; i < 100; ++i) {
    writers.push_back(Writer());
    const auto mode = i % 2 == 0 ? DialectCall::Mode::kWhole : DialectCall::Mode::kStream;
    std::make_shared<InferenceCall>(context_, Parsed(mode, {1 + i % 7, 2}), writers.back())
        ->Start();
    if (i % 5 == 0) writers.back()->Close(CloseReason::kPeerLeft);
  }
  for (const auto& writer : writers) Collect(writer.get());
  EXPECT_TRUE(engine_->Drain(5000).ok());
  EXPECT_EQ(engine_->Stats().kv_blocks_used, 0);
}

}  // namespace
}  // namespace deepinfer
