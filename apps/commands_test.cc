#include "apps/commands.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace deepinfer {
namespace {

int RunCommand(const Command& command, std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return command.run(static_cast<int>(words.size()), argv.data());
}

// A flag that cannot be registered ends every use of its command.
TEST(CommandsTest, EveryCommandHasHelpAndRefusesUnknownFlags) {
  for (const Command& command : Commands()) {
    EXPECT_EQ(RunCommand(command, {command.name, "--help"}), kExitOk) << command.name;
    EXPECT_EQ(RunCommand(command, {command.name, "--no-such-flag"}), kExitUsage) << command.name;
    std::vector<std::string> parts;
    if (command.name == std::string("bench")) parts = {"latency", "throughput", "serve"};
    if (command.name == std::string("grammar")) parts = {"check"};
    if (command.name == std::string("model"))
      parts = {"list", "pull", "info", "quantize", "random"};
    for (const std::string& part : parts) {
      EXPECT_EQ(RunCommand(command, {command.name, part, "--help"}), kExitOk) << part;
      EXPECT_EQ(RunCommand(command, {command.name, part, "--no-such-flag"}), kExitUsage) << part;
    }
  }
}

}  // namespace
}  // namespace deepinfer
