#include "net/http_target.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(HttpTargetTest, SplitsAndDecodes) {
  const auto target = ParseHttpTarget("/v1/models/a%2Fb%20c?x=1&y");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->path, "/v1/models/a/b c");
  EXPECT_EQ(target->query, "x=1&y");
  EXPECT_EQ(ParseHttpTarget("http://evil/v1/models?a")->path, "/v1/models");
  EXPECT_EQ(ParseHttpTarget("http://evil")->path, "/");
  EXPECT_EQ(ParseHttpTarget("http://evil?a")->query, "a");
  EXPECT_EQ(ParseHttpTarget("*")->path, "*");
}

TEST(HttpTargetTest, Refuses) {
  for (const char* bad : {"", "a", "host:80", "/%", "/%1", "/%gg", "/a%00", "/a%0a", "/a/../b",
                          "/a/%2e%2e", "/.", "/a#b", "ftp://x/"}) {
    EXPECT_FALSE(ParseHttpTarget(bad).ok()) << bad;
  }
}

TEST(HttpTargetTest, QueryValues) {
  EXPECT_EQ(QueryValue("a=1&b=x+y%21&c", "b"), "x y!");
  EXPECT_EQ(QueryValue("a=1&c", "c"), "");
  EXPECT_EQ(QueryValue("a=1", "b"), std::nullopt);
  EXPECT_EQ(QueryValue("a=%g", "a"), std::nullopt);
}

}  // namespace
}  // namespace deepinfer
