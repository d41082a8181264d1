#include "server/auth.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

HttpHeaders With(std::vector<std::pair<std::string, std::string>> fields) {
  HttpHeaders headers;
  for (auto& [name, value] : fields) headers.Add(name, value);
  return headers;
}

TEST(AuthTest, WithoutKeysEverythingIsOpen) {
  const Auth auth({});
  EXPECT_TRUE(auth.open());
  EXPECT_TRUE(auth.Allows(With({})));
}

TEST(AuthTest, EachKeyOpensInBothSpellings) {
  const Auth auth({"first", "second"});
  EXPECT_TRUE(auth.Allows(With({{"Authorization", "Bearer first"}})));
  EXPECT_TRUE(auth.Allows(With({{"authorization", "bearer second"}})));
  EXPECT_TRUE(auth.Allows(With({{"X-Api-Key", "second"}})));
}

TEST(AuthTest, EverythingElseIsDenied) {
  const Auth auth({"first"});
  EXPECT_FALSE(auth.Allows(With({})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", ""}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "Bearer"}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "Bearer "}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "first"}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "Basic first"}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "Bearer firs"}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "Bearer first "}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "Bearer First"}})));
  EXPECT_FALSE(auth.Allows(With({{"X-Api-Key", ""}})));
  EXPECT_FALSE(auth.Allows(With({{"Authorization", "Bearer first"}, {"X-Api-Key", "first"}})));
  EXPECT_FALSE(
      auth.Allows(With({{"Authorization", "Bearer first"}, {"Authorization", "Bearer x"}})));
}

}  // namespace
}  // namespace deepinfer
