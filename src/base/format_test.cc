#include "base/format.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Format, WritesIntegersFloatsAndText) {
  EXPECT_EQ(Format("{} of {} at {:.2f} {}", 3, size_t{4}, 1.5, "x"), "3 of 4 at 1.50 x");
  EXPECT_EQ(Format("{}", 0.1), "0.1");
  EXPECT_EQ(Format("{}", 0.1F), "0.1");
}

}  // namespace
}  // namespace deepinfer
