// Compilation on other threads: sharing, limits, deadlines, destruction with work in the queue.
#include "text/grammar/grammar_builder.h"

#include <condition_variable>
#include <mutex>

#include "text/grammar/grammar_test_util.h"
#include "text/grammar/mask_cache.h"

namespace deepinfer {
namespace {

// Counts the calls of on_ready and waits for them.
class ReadyCount {
 public:
  std::function<void()> Callback() {
    return [this] {
      const std::lock_guard lock(mutex_);
      ++count_;
      changed_.notify_all();
    };
  }
  bool WaitFor(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

const GrammarSource kGood = {GrammarSource::Kind::kJsonSchema, R"({"type":"integer"})"};
const GrammarSource kBad = {GrammarSource::Kind::kJsonSchema, R"({"type":"integre"})"};

TEST(GrammarBuilderTest, CompilesOnceForEqualSources) {
  ReadyCount ready;
  const RealClock clock;
  GrammarBuilder builder({.threads = 2}, &clock);
  std::vector<std::shared_ptr<const GrammarTicket>> tickets;
  for (int i = 0; i < 20; ++i) tickets.push_back(builder.Submit(kGood, ready.Callback()));
  const auto bad = builder.Submit(kBad, ready.Callback());
  ASSERT_TRUE(ready.WaitFor(21));
  for (const auto& ticket : tickets) {
    ASSERT_TRUE(ticket->ready());
    ASSERT_TRUE(ticket->result().ok());
    EXPECT_EQ(*ticket->result(), *tickets[0]->result());
  }
  ASSERT_TRUE(bad->ready());
  EXPECT_EQ(bad->result().status().code(), StatusCode::kInvalid);
  const GrammarBuilder::Stats stats = builder.stats();
  EXPECT_EQ(stats.submitted, 21);
  EXPECT_EQ(stats.compiled, 1);
  EXPECT_EQ(stats.failed, 1);
  EXPECT_EQ(stats.cache_hits, 19);
  EXPECT_EQ(stats.waiting, 0);
}

TEST(GrammarBuilderTest, WarmsTheMasksOfPatterns) {
  const SmallVocabulary small(JsonWords());
  ReadyCount ready;
  const RealClock clock;
  GrammarBuilder builder({.threads = 1, .vocabulary = small.vocabulary}, &clock);
  const auto ticket = builder.Submit(
      {GrammarSource::Kind::kJsonSchema, R"({"type":"string","pattern":"^[a-z]+-[0-9]{2}$"})"},
      ready.Callback());
  ASSERT_TRUE(ready.WaitFor(1));
  ASSERT_TRUE(ticket->result().ok());
  const size_t warm = small.vocabulary->cache().stats().bytes;
  EXPECT_GT(warm, 0U);
  GrammarMatcher matcher(*ticket->result(), small.vocabulary);
  std::vector<uint64_t> mask(small.vocabulary->mask_words());
  for (const char c : std::string("\"ab-12\"")) {
    ASSERT_TRUE(matcher.FillMask(mask));
    ASSERT_TRUE(matcher.Accept(static_cast<TokenId>(c)));
  }
  EXPECT_TRUE(matcher.IsComplete());
}

TEST(GrammarBuilderTest, CacheKeepsItsLimit) {
  ReadyCount ready;
  const RealClock clock;
  GrammarBuilder builder({.threads = 1, .cache_bytes_max = 20'000}, &clock);
  for (int i = 0; i < 50; ++i) {
    builder.Submit({GrammarSource::Kind::kChoice, "[\"choice " + std::to_string(i) + "\"]"},
                   ready.Callback());
  }
  ASSERT_TRUE(ready.WaitFor(50));
  EXPECT_LE(builder.stats().cache_bytes, 20'000U);
  EXPECT_EQ(builder.stats().compiled, 50);
}

// The worker is held inside a callback, so that the queue fills and time passes.
TEST(GrammarBuilderTest, FullQueueAndDeadlineAreErrors) {
  ManualClock clock;
  GrammarBuilder builder({.threads = 1, .queue_max = 1, .compile_us_max = 1000}, &clock);
  std::mutex gate;
  gate.lock();
  ReadyCount entered;
  ReadyCount ready;
  builder.Submit(kGood, [&, signal = entered.Callback()] {
    signal();
    const std::lock_guard wait(gate);
  });
  ASSERT_TRUE(entered.WaitFor(1));
  const auto late = builder.Submit({GrammarSource::Kind::kRegex, "a"}, ready.Callback());
  const auto refused = builder.Submit({GrammarSource::Kind::kRegex, "b"}, ready.Callback());
  ASSERT_TRUE(ready.WaitFor(1));
  ASSERT_TRUE(refused->ready());
  EXPECT_EQ(refused->result().status().code(), StatusCode::kExhausted);
  clock.Advance(2000);
  gate.unlock();
  ASSERT_TRUE(ready.WaitFor(2));
  ASSERT_TRUE(late->ready());
  EXPECT_EQ(late->result().status().code(), StatusCode::kDeadline);
  // Neither failure is remembered.
  const auto again = builder.Submit({GrammarSource::Kind::kRegex, "a"}, ready.Callback());
  ASSERT_TRUE(ready.WaitFor(3));
  EXPECT_TRUE(again->result().ok());
}

TEST(GrammarBuilderTest, TicketsOutliveTheBuilder) {
  std::vector<std::shared_ptr<const GrammarTicket>> tickets;
  {
    const RealClock clock;
    GrammarBuilder builder({.threads = 2}, &clock);
    for (int i = 0; i < 30; ++i) {
      tickets.push_back(
          builder.Submit({GrammarSource::Kind::kRegex, "x{" + std::to_string(i) + "}"}));
    }
  }
  for (const auto& ticket : tickets) {
    ASSERT_TRUE(ticket->ready());
    // Compiled, or dropped while it waited.
    const Status& status = ticket->result().status();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnavailable) << status.message();
  }
}

}  // namespace
}  // namespace deepinfer
