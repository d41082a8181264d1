#include "models/registry.h"

#include <gtest/gtest.h>

#include "base/format.h"
#include "models/loaded_model.h"

namespace deepinfer {
namespace {

// What planning says about a checkpoint is what its model keeps.
TEST(Registry, LayoutsAreToldWithoutWeights) {
  for (const char* family : {"llama", "llama3rope", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3",
                             "deepseek_v4", "deepseek_v4_swa", "deepseek_v41"}) {
    const std::string path = Format("tests/golden/data/{}", family);
    LoadOptions options;
    options.path = path;
    options.backend.threads = 1;
    const auto model = OpenModel(options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const auto told = LayoutOfModel(**checkpoint, (*model)->backend->kv_element_bytes());
    ASSERT_TRUE(told.ok()) << told.status().message();
    const CacheLayout& kept = (*model)->model->cache_layout();
    EXPECT_EQ(told->block_bytes(), kept.block_bytes()) << family;
    EXPECT_EQ(told->slot_bytes(), kept.slot_bytes()) << family;
    EXPECT_EQ(told->rollback_max, kept.rollback_max) << family;
    EXPECT_EQ(told->replay_window, kept.replay_window) << family;
    ASSERT_EQ(told->history.size(), kept.history.size()) << family;
    for (size_t i = 0; i < kept.history.size(); ++i) {
      EXPECT_EQ(told->history[i].name, kept.history[i].name) << family;
      EXPECT_EQ(told->history_offset(i, 0), kept.history_offset(i, 0)) << family;
    }
    ASSERT_EQ(told->state.size(), kept.state.size()) << family;
    for (size_t i = 0; i < kept.state.size(); ++i) {
      EXPECT_EQ(told->state[i].name, kept.state[i].name) << family;
      EXPECT_EQ(told->state_offset(i, 0), kept.state_offset(i, 0)) << family;
    }
  }
}

}  // namespace
}  // namespace deepinfer
