#include "base/env.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>

namespace deepinfer {
namespace {

class EnvTest : public testing::Test {
 protected:
  static constexpr const char* kName = "DEEPINFER_TEST_VALUE";
  void TearDown() override { unsetenv(kName); }
  static void Set(const char* value) { setenv(kName, value, 1); }
};

TEST_F(EnvTest, EmptyIsAbsent) {
  EXPECT_FALSE(GetEnv(kName).has_value());
  Set("");
  EXPECT_FALSE(GetEnv(kName).has_value());
  EXPECT_EQ(GetEnvInt(kName, 7, 0, 9).value(), 7);
  Set("x");
  EXPECT_EQ(GetEnv(kName).value(), "x");
}

TEST_F(EnvTest, Switches) {
  EXPECT_TRUE(GetEnvBool(kName, true).value());
  for (const char* value : {"1", "true", "ON", "Yes"}) {
    Set(value);
    EXPECT_TRUE(GetEnvBool(kName, false).value()) << value;
  }
  for (const char* value : {"0", "False", "off", "NO"}) {
    Set(value);
    EXPECT_FALSE(GetEnvBool(kName, true).value()) << value;
  }
  Set("2");
  EXPECT_EQ(GetEnvBool(kName, true).status().param(), kName);
}

TEST_F(EnvTest, NumbersAreWholeAndInRange) {
  Set("5");
  EXPECT_EQ(GetEnvInt(kName, 0, 1, 5).value(), 5);
  for (const char* value : {"6", "0", "5x", " 5", "5.0", "99999999999999999999"}) {
    Set(value);
    EXPECT_FALSE(GetEnvInt(kName, 3, 1, 5).ok()) << value;
  }
}

TEST_F(EnvTest, WarnsOfUnknownNamesAndOfThoseWithoutEffect) {
  Set("1");
  setenv("DEEPINFER_ENABLE_MTP_VARLEN", "4", 1);
  const std::vector<std::string> warnings = EnvWarnings({});
  const auto mentions = [&](const char* text) {
    return std::any_of(warnings.begin(), warnings.end(), [&](const std::string& warning) {
      return warning.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(mentions("DEEPINFER_TEST_VALUE is unknown"));
  EXPECT_TRUE(
      mentions("DEEPINFER_ENABLE_MTP_VARLEN (verification lengths chosen by confidence) "
               "has no effect"));
  const std::string flags[] = {kName, "DEEPINFER_ENABLE_MTP_VARLEN"};
  for (const std::string& warning : EnvWarnings(flags)) {
    EXPECT_EQ(warning.find(kName), std::string::npos);
    EXPECT_EQ(warning.find("MTP_VARLEN"), std::string::npos);
  }
  unsetenv("DEEPINFER_ENABLE_MTP_VARLEN");
}

}  // namespace
}  // namespace deepinfer
