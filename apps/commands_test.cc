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

// What would be parsed and then ignored, and values that no model makes good.
TEST(CommandsTest, FlagsWithoutAnEffectAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {
      {"generate", "--prompt", "hi", "--logprobs", "2"},
      {"generate", "--prompt", "hi", "--prompt-logprobs", "2"},
      {"generate", "--prompt", "hi", "--resume"},
      {"generate", "--input", "a.jsonl", "--output", "b.jsonl", "--raw"},
      {"generate", "--prompt", "hi", "--block-size", "17"},
      {"generate", "--prompt", "hi", "--max-model-len", "-1"},
      {"generate", "--prompt", "hi", "--threads", "-1"},
      {"chat", "--logprobs", "2"},
      {"chat", "--n", "2"},
      {"serve", "--block-size", "17"},
      {"serve", "--served-model-name", "name", "model.gguf"},
      {"tokenize", "--decode", "[1]", "--prompt", "hi"},
      {"tokenize", "--decode", "[1]", "--json"},
      {"tokenize", "--decode", "[1]", "--no-add-special-tokens"},
      {"model", "quantize", "m.gguf"},
      {"model", "quantize", "m.gguf", "o.gguf", "--threads", "-1"},
      {"model", "random"},
      {"model", "random", "o", "--size", "1G"},
      {"model", "random", "o", "--arch", "deepseek-v4.1", "--preset", "smol"},
      {"model", "random", "o", "--arch", "other"},
      {"bench", "speculation", "--output-len", "1"},
      {"bench", "speculation", "--block-size", "17"},
      {"bench", "serve", "--num-prompts", "0"},
  };
  for (const std::vector<std::string>& words : wrong) {
    std::string shown;
    for (const std::string& word : words) shown += word + " ";
    for (const Command& command : Commands()) {
      if (command.name != words[0]) continue;
      EXPECT_EQ(RunCommand(command, words), kExitUsage) << shown;
    }
  }
}

}  // namespace
}  // namespace deepinfer
