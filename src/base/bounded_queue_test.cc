#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace deepinfer {
namespace {

TEST(BoundedQueue, KeepsOrderAndCapacity) {
  BoundedQueue<int> queue(2);
  EXPECT_EQ(queue.TryPush(1), PushResult::kOk);
  EXPECT_EQ(queue.TryPush(2), PushResult::kOk);
  EXPECT_EQ(queue.TryPush(3), PushResult::kFull);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.TryPush(3), PushResult::kOk);
  EXPECT_EQ(queue.PopAll(), (std::deque<int>{2, 3}));
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueue, ARefusedItemIsNotMovedFrom) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_EQ(queue.TryPush(std::make_unique<int>(1)), PushResult::kOk);
  auto second = std::make_unique<int>(2);
  EXPECT_EQ(queue.TryPush(std::move(second)), PushResult::kFull);
  ASSERT_NE(second, nullptr);
  queue.Close();
  EXPECT_EQ(queue.Push(std::move(second)), PushResult::kClosed);
  ASSERT_NE(second, nullptr);
}

TEST(BoundedQueue, CloseDrainsAndWakesEverybody) {
  BoundedQueue<int> full(1);
  BoundedQueue<int> empty(1);
  EXPECT_EQ(full.TryPush(7), PushResult::kOk);
  PushResult pushed = PushResult::kOk;
  std::optional<int> popped = 0;
  std::thread producer([&] { pushed = full.Push(8); });
  std::thread consumer([&] { popped = empty.Pop(); });
  full.Close();
  empty.Close();
  producer.join();
  consumer.join();
  EXPECT_EQ(pushed, PushResult::kClosed);
  EXPECT_EQ(popped, std::nullopt);
  EXPECT_EQ(full.Pop(), 7);
  EXPECT_EQ(full.Pop(), std::nullopt);
}

TEST(BoundedQueue, PopForEndsWithoutAnItem) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.PopFor(1000), std::nullopt);
  EXPECT_EQ(queue.TryPush(4), PushResult::kOk);
  EXPECT_EQ(queue.PopFor(1000), 4);
}

TEST(BoundedQueue, LosesNothingBetweenManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(8);
  std::vector<std::thread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&queue, t] {
      for (int i = 0; i < kEach; ++i) (void)queue.Push(t * kEach + i);
    });
  }
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> consumers;
  for (int t = 0; t < kThreads; ++t) {
    consumers.emplace_back([&queue, &mine = seen[static_cast<size_t>(t)]] {
      while (std::optional<int> item = queue.Pop()) mine.push_back(*item);
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();
  std::vector<int> count(kThreads * kEach);
  for (const std::vector<int>& mine : seen) {
    for (int item : mine) ++count[static_cast<size_t>(item)];
  }
  EXPECT_EQ(count, std::vector<int>(kThreads * kEach, 1));
}

}  // namespace
}  // namespace deepinfer
