#include "base/logging.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

class LoggingTest : public testing::Test {
 protected:
  void TearDown() override { SetLogLevel(LogLevel::kInfo); }
};

TEST_F(LoggingTest, LevelsFilter) {
  testing::internal::CaptureStderr();
  LogDebug("hidden {}", 1);
  LogInfo("shown {}", 2);
  SetLogLevel(LogLevel::kError);
  LogWarning("hidden {}", 3);
  LogError("shown {}", 4);
  SetLogLevel(LogLevel::kOff);
  LogError("hidden {}", 5);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_NE(text.find("Z I shown 2\n"), std::string::npos);
  EXPECT_NE(text.find("Z E shown 4\n"), std::string::npos);
}

TEST_F(LoggingTest, AMessageIsOneLine) {
  testing::internal::CaptureStderr();
  LogWarning("a\nb\r\x1B[31m\xC3\xA9");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find(" W a\\nb\\x0d\\x1b[31m\xC3\xA9\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

}  // namespace
}  // namespace deepinfer
