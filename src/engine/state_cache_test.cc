#include "engine/state_cache.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(StateCache, KeepsTheMostRecentlyUsed) {
  StateCache cache(2);
  cache.Keep(cache.Reserve(), 10);
  cache.Keep(cache.Reserve(), 11);
  const int32_t ten = cache.Find(10);
  EXPECT_GE(ten, 0);
  const int32_t third = cache.Reserve();  // takes the place of 11
  EXPECT_NE(third, ten);
  EXPECT_EQ(cache.Find(11), -1);
  cache.Keep(third, 12);
  EXPECT_EQ(cache.Find(10), ten);
  EXPECT_EQ(cache.Find(12), third);
  EXPECT_TRUE(cache.Consistent());
}

TEST(StateCache, ReservedOnesAreNotTaken) {
  StateCache cache(2);
  const int32_t a = cache.Reserve();
  const int32_t b = cache.Reserve();
  EXPECT_EQ(cache.Reserve(), -1);
  cache.Drop(a);
  EXPECT_EQ(cache.Reserve(), a);
  cache.Keep(a, 5);
  cache.Keep(b, 5);  // the key has one
  EXPECT_EQ(cache.Find(5), a);
  EXPECT_EQ(cache.num_kept(), 1);
  EXPECT_EQ(cache.num_reserved(), 0);
  EXPECT_EQ(cache.Reserve(), b);
  EXPECT_TRUE(cache.Consistent());
}

TEST(StateCache, WithoutRoomThereIsNothing) {
  StateCache cache(0);
  EXPECT_EQ(cache.Reserve(), -1);
  EXPECT_EQ(cache.Find(1), -1);
}

}  // namespace
}  // namespace deepinfer
