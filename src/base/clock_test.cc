#include "base/clock.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Clock, RealTimeNeverGoesBack) {
  const RealClock clock;
  int64_t last = clock.NowUs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.NowUs();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(clock.UnixUs(), int64_t{1700000000} * 1000000);
}

TEST(Clock, ManualTimeMovesOnlyWhenAdvanced) {
  ManualClock clock(5);
  const Clock& seen = clock;
  EXPECT_EQ(seen.NowUs(), 5);
  clock.Advance(10);
  EXPECT_EQ(seen.NowUs(), 15);
}

}  // namespace
}  // namespace deepinfer
