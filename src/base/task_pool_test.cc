#include "base/task_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <string>

namespace deepinfer {
namespace {

TEST(TaskPool, DestructionRunsWhatIsQueued) {
  std::atomic<int> ran{0};
  {
    TaskPool pool(2, 4);
    for (int i = 0; i < 100; ++i)
      pool.Submit([&ran, token = std::make_unique<int>(1)] { ran += *token; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(TaskPool, AsyncReturnsResults) {
  TaskPool pool(1);
  auto number = pool.Async([] { return 42; });
  auto text = pool.Async([] { return std::string("x"); });
  EXPECT_EQ(number.get(), 42);
  EXPECT_EQ(text.get(), "x");
}

TEST(TaskPool, TrySubmitRefusesWhenFull) {
  std::latch started(1);
  std::latch release(1);
  std::atomic<int> ran{0};
  TaskPool pool(1, 1);
  pool.Submit([&] {
    started.count_down();
    release.wait();
  });
  started.wait();
  EXPECT_EQ(pool.TrySubmit([&] { ++ran; }), PushResult::kOk);
  EXPECT_EQ(pool.TrySubmit([&] { ++ran; }), PushResult::kFull);
  release.count_down();
  pool.Async([] {}).get();
  EXPECT_EQ(ran, 1);
}

TEST(TaskPool, AFailingTaskEndsAlone) {
  TaskPool pool(1);
  testing::internal::CaptureStderr();
  pool.Submit([] { (void)std::string().at(1); });
  EXPECT_EQ(pool.Async([] { return 1; }).get(), 1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("background task failed"),
            std::string::npos);
}

}  // namespace
}  // namespace deepinfer
