#include "apps/command_line.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "apps/engine_flags.h"

namespace deepinfer {
namespace {

std::optional<int> ParseWords(CommandLine* line, std::vector<std::string> words) {
  words.insert(words.begin(), "deepinfer test");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return line->Parse(static_cast<int>(argv.size()), argv.data());
}

std::string WriteConfig(const std::string& text) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "deepinfer_command_line_test.yaml").string();
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fputs(text.c_str(), file);
  std::fclose(file);
  return path;
}

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() : line_("deepinfer test", "summary") {
    line_.Add("model", &model_, "a positional");
    line_.Add("-p,--port", &port_, "a number");
    line_.Add("--top-p", &top_p_, "a real number");
    line_.Add("--key", &keys_, "repeats");
    line_.AddSwitch("--cache", &cache_, "a switch");
    line_.AddChoice("--dtype", {"auto", "float32"}, &dtype_, "a choice");
    line_.AddBytes("--bytes", &bytes_, "a size");
    line_.AddAuto("--length", &length_, "a number or auto");
    line_.MarkSecret("key");
    line_.EnableConfigFile();
  }
  ~CommandLineTest() override { unsetenv("DEEPINFER_PORT"); }

  CommandLine line_;
  std::string model_;
  int port_ = 8000;
  std::optional<float> top_p_;
  std::vector<std::string> keys_;
  bool cache_ = true;
  std::string dtype_ = "auto";
  int64_t bytes_ = 0;
  int length_ = 7;
};

TEST_F(CommandLineTest, FlagsBindEveryKind) {
  EXPECT_EQ(ParseWords(&line_,
                       {"m.gguf", "-p", "1", "--top-p", "0.5", "--key", "a", "--key", "b",
                        "--no-cache", "--dtype", "float32", "--bytes", "4GiB", "--length", "auto"}),
            std::nullopt);
  EXPECT_EQ(model_, "m.gguf");
  EXPECT_EQ(port_, 1);
  EXPECT_EQ(top_p_, 0.5F);
  EXPECT_EQ(keys_, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(cache_);
  EXPECT_EQ(dtype_, "float32");
  EXPECT_EQ(bytes_, int64_t{4} << 30);
  EXPECT_EQ(length_, 0);
  EXPECT_TRUE(line_.Given("port"));
}

TEST_F(CommandLineTest, UnsetFlagsKeepTheirDefaults) {
  EXPECT_EQ(ParseWords(&line_, {}), std::nullopt);
  EXPECT_EQ(port_, 8000);
  EXPECT_EQ(top_p_, std::nullopt);
  EXPECT_TRUE(cache_);
  EXPECT_EQ(length_, 7);
  EXPECT_FALSE(line_.Given("port"));
}

TEST_F(CommandLineTest, FlagBeatsEnvironmentBeatsFile) {
  const std::string path = WriteConfig("port: 1\ncache: false\nkey: [x, y]\ntop_p: 0.25\n");
  EXPECT_EQ(ParseWords(&line_, {"--config", path}), std::nullopt);
  EXPECT_EQ(port_, 1);
  EXPECT_FALSE(cache_);
  EXPECT_EQ(keys_, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(top_p_, 0.25F);
  setenv("DEEPINFER_PORT", "2", 1);
  EXPECT_EQ(ParseWords(&line_, {"--config", path}), std::nullopt);
  EXPECT_EQ(port_, 2);
  EXPECT_EQ(ParseWords(&line_, {"--config", path, "--port", "3"}), std::nullopt);
  EXPECT_EQ(port_, 3);
  const std::string shown = line_.EffectiveConfig();
  EXPECT_NE(shown.find("port: 3\n"), std::string::npos) << shown;
  EXPECT_NE(shown.find("key: \"(hidden)\"\n"), std::string::npos) << shown;
}

TEST_F(CommandLineTest, WrongValuesAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {{"--port", "x"},
                                                       {"--port", "1.5"},
                                                       {"--port", "99999999999"},
                                                       {"--port", ""},
                                                       {"--top-p", "nan"},
                                                       {"--top-p", "inf"},
                                                       {"--dtype", "int3"},
                                                       {"--bytes", "4X"},
                                                       {"--bytes", "-1"},
                                                       {"--bytes", "99999999999T"},
                                                       {"--length", "long"},
                                                       {"--unknown"},
                                                       {"m1", "m2"},
                                                       {"--port"},
                                                       {"--cache=maybe"}};
  for (const auto& words : wrong) {
    EXPECT_EQ(ParseWords(&line_, words), 2) << words[0] << (words.size() > 1 ? words[1] : "");
  }
  EXPECT_EQ(ParseWords(&line_, {"--config", "/nonexistent.yaml"}), 2);
  for (const char* text :
       {"prt: 1\n", "port: [1", "- 1\n", "port: {a: 1}\n", "port: x\n", "port: 1\nport: 2\n"}) {
    EXPECT_EQ(ParseWords(&line_, {"--config", WriteConfig(text)}), 2) << text;
  }
}

TEST(CommandLineListTest, TakesValuesUpToTheNextFlag) {
  std::vector<std::string> names;
  std::string model;
  int port = 0;
  const auto parse = [&](const std::vector<std::string>& words) {
    names.clear();
    model.clear();
    CommandLine line("deepinfer test", "summary");
    line.Add("-m,--model,MODEL", &model, "model");
    line.AddList("--name", &names, "names");
    line.Add("--port", &port, "port");
    return ParseWords(&line, words);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(parse({"m.gguf", "--name", "a", "b", "--port", "1"}), std::nullopt);
  EXPECT_EQ(model, "m.gguf");
  EXPECT_EQ(names, (Names{"a", "b"}));
  EXPECT_EQ(parse({"--name", "a", "--name=b", "--model", "m"}), std::nullopt);
  EXPECT_EQ(names, (Names{"a", "b"}));
  EXPECT_EQ(parse({"--name"}), 2);
}

TEST_F(CommandLineTest, HelpAndPrintConfigEndTheProcess) {
  EXPECT_EQ(ParseWords(&line_, {"--help"}), 0);
  EXPECT_EQ(ParseWords(&line_, {"--print-config"}), 0);
}

TEST(EngineFlagsTest, BindsTheFields) {
  EngineConfig config;
  CommandLine line("deepinfer test", "summary");
  AddEngineFlags(&line, &config);
  EXPECT_EQ(ParseWords(&line, {"--max-model-len", "2048", "--max-num-seqs", "7",
                               "--no-enable-prefix-caching", "--kv-cache-memory-bytes", "1G"}),
            std::nullopt);
  EXPECT_EQ(config.max_model_len, 2048);
  EXPECT_EQ(config.max_num_seqs, 7);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_EQ(config.kv_cache_memory_bytes, int64_t{1} << 30);
}

}  // namespace
}  // namespace deepinfer
