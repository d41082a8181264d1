#include "base/helper_trust.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kMs = 1'000'000;

// A helper, its caller and a virtual clock.
struct Pair {
  HelperTrust trust;
  int64_t now_ns = 0;
  int64_t worked_ns = 0;
  int64_t lost_ns = 0;  // by waiting
  int64_t benches = 0;

  // Both work, then the caller waits for a helper that does not run.
  void Work(int64_t together_ns, int64_t stall_ns) {
    now_ns += together_ns + stall_ns;
    worked_ns += together_ns + stall_ns;
    if (stall_ns == 0) return;
    lost_ns += stall_ns;
    trust.Lost(now_ns, stall_ns, worked_ns, 1);
    if (trust.benched()) ++benches;
  }
  void SitOut() {
    now_ns = trust.benched_until_ns();
    EXPECT_TRUE(trust.TryReturn(now_ns, worked_ns));
  }
};

TEST(HelperTrust, StaysWhileItPays) {
  Pair pair;
  for (int i = 0; i < 10'000; ++i) pair.Work(kMs, kMs / 10);
  EXPECT_FALSE(pair.trust.benched());
}

TEST(HelperTrust, MeritsExcuseOnlyALittle) {
  Pair pair;
  for (int i = 0; i < 10'000; ++i) pair.Work(kMs, kMs / 10);
  pair.Work(0, kMs * 6 / 10);
  EXPECT_FALSE(pair.trust.benched());
  pair.Work(0, 5 * kMs);
  EXPECT_TRUE(pair.trust.benched());
}

TEST(HelperTrust, LosesItsCoreNowAndThenAndStillPays) {
  Pair pair;
  for (int i = 0; i < 1000; ++i) pair.Work(20 * kMs, 3 * kMs);
  EXPECT_FALSE(pair.trust.benched());
}

TEST(HelperTrust, ANeighbourThatStaysCostsLessThanAThirtieth) {
  Pair pair;
  while (pair.now_ns < 10'000 * kMs) {
    pair.Work(kMs / 10, 4 * kMs);
    ASSERT_TRUE(pair.trust.benched());
    pair.SitOut();
  }
  EXPECT_LT(pair.lost_ns, pair.now_ns / 30);
  EXPECT_LT(pair.benches, 100);
}

TEST(HelperTrust, SmallLossesAddUp) {
  Pair pair;
  for (int i = 0; i < 100 && !pair.trust.benched(); ++i) pair.Work(kMs / 100, kMs / 10);
  EXPECT_TRUE(pair.trust.benched());
  EXPECT_LT(pair.lost_ns, kMs);
}

TEST(HelperTrust, BenchesShrinkAgainOnceItPaid) {
  Pair pair;
  int64_t longest = 0;
  for (int i = 0; i < 10; ++i) {
    pair.Work(0, 4 * kMs);
    ASSERT_TRUE(pair.trust.benched());
    longest = pair.trust.benched_until_ns() - pair.now_ns;
    pair.SitOut();
  }
  for (int i = 0; i < 1000; ++i) pair.Work(kMs, kMs / 10);
  pair.Work(0, 8 * kMs);
  ASSERT_TRUE(pair.trust.benched());
  EXPECT_LT(pair.trust.benched_until_ns() - pair.now_ns, longest / 4);
}

TEST(HelperTrust, ReturnsNotBeforeItsTime) {
  Pair pair;
  EXPECT_FALSE(pair.trust.TryReturn(kMs, 0));  // was never away
  pair.Work(0, 4 * kMs);
  ASSERT_TRUE(pair.trust.benched());
  EXPECT_FALSE(pair.trust.TryReturn(pair.trust.benched_until_ns() - 1, pair.worked_ns));
  EXPECT_TRUE(pair.trust.benched());
  EXPECT_TRUE(pair.trust.TryReturn(pair.trust.benched_until_ns(), pair.worked_ns));
  EXPECT_FALSE(pair.trust.benched());
}

}  // namespace
}  // namespace deepinfer
