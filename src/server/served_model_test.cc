#include "server/served_model.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ServedModelTest, NamesAModelAfterItsPath) {
  EXPECT_EQ(ModelNameOf("/models/SmolLM2-135M.Q4_1.gguf"), "SmolLM2-135M.Q4_1");
  EXPECT_EQ(ModelNameOf("models/Qwen3-0.6B"), "Qwen3-0.6B");
  EXPECT_EQ(ModelNameOf("models/Qwen3-0.6B/"), "Qwen3-0.6B");
  EXPECT_EQ(ModelNameOf("models/./a/../b"), "b");
  EXPECT_EQ(ModelNameOf("big-00001-of-00012.gguf"), "big");
  EXPECT_EQ(ModelNameOf("big-0001-of-00012.gguf"), "big-0001-of-00012");
  EXPECT_EQ(ModelNameOf("model.safetensors"), "model");
  EXPECT_EQ(ModelNameOf("-00001-of-00012.gguf"), "-00001-of-00012");
}

TEST(ServedModelTest, AnswersToNameAndPath) {
  ServerConfig config;
  config.model = "tests/golden/data/llama";
  config.engine.num_kv_blocks = 64;
  config.engine.dtype = "float32";
  const auto served = LoadServedModel(config);
  ASSERT_TRUE(served.ok()) << served.status().message();
  EXPECT_EQ((*served)->dialect.names, std::vector<std::string>{"llama"});
  EXPECT_EQ((*served)->dialect.aliases, std::vector<std::string>{config.model});
  config.served_model_names = {"one", "two"};
  const auto named = LoadServedModel(config);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ((*named)->dialect.names, config.served_model_names);
  EXPECT_TRUE((*named)->dialect.aliases.empty());
}

}  // namespace
}  // namespace deepinfer
