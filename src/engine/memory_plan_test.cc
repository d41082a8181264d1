#include "engine/memory_plan.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// 16 tokens of 2 layers and 100 bytes a row: 3200 bytes a block.
CacheLayout Layout() {
  CacheLayout layout;
  layout.history.push_back({"full", 1, 2, 100});
  return layout;
}

TEST(MemoryPlan, TakesHalfOfWhatIsAvailableAndShortensTheContext) {
  EngineConfig config;
  const MemoryPlan plan = *PlanMemory(config, Layout(), 100'000, 2 * 101 * 3200);
  EXPECT_EQ(plan.num_blocks, 101);
  EXPECT_EQ(plan.max_model_len, 1600);
  EXPECT_EQ(plan.kv_bytes, 101 * 3200);
}

TEST(MemoryPlan, TakesNoMoreThanAllSlotsNeed) {
  EngineConfig config;
  config.max_num_seqs = 4;
  const MemoryPlan plan = *PlanMemory(config, Layout(), 160, int64_t{1} << 40);
  EXPECT_EQ(plan.num_blocks, 4 * 11);
  EXPECT_EQ(plan.max_model_len, 160);
}

TEST(MemoryPlan, ExplicitSizesWin) {
  EngineConfig config;
  config.kv_cache_memory_bytes = 3200 * 20 + 100;
  EXPECT_EQ(PlanMemory(config, Layout(), 10'000, 0)->num_blocks, 20);
  config.num_kv_blocks = 30;
  EXPECT_EQ(PlanMemory(config, Layout(), 10'000, 0)->num_blocks, 30);
}

TEST(MemoryPlan, SaysWhatDoesNotFit) {
  EngineConfig config;
  config.max_model_len = 200;
  EXPECT_EQ(PlanMemory(config, Layout(), 100, 1 << 30).status().param(), "max_model_len");
  config.num_kv_blocks = 13;  // 200 tokens need 13 blocks and one to spare
  EXPECT_EQ(PlanMemory(config, Layout(), 1000, 0).status().param(), "max_model_len");
  config.num_kv_blocks = 14;
  EXPECT_EQ(PlanMemory(config, Layout(), 1000, 0)->max_model_len, 200);
  EXPECT_EQ(PlanMemory(EngineConfig{}, Layout(), 1000, 100).status().code(),
            StatusCode::kExhausted);
}

// As above, and 1000 bytes of state for every row.
CacheLayout LayoutWithState() {
  CacheLayout layout = Layout();
  layout.state.push_back({"windows", 1, 10, 100});
  return layout;
}

TEST(MemoryPlan, RowStateAndItsSnapshotsComeOffFirst) {
  EngineConfig config;
  config.max_num_seqs = 4;
  config.state_cache_memory_bytes = 20'500;
  const MemoryPlan plan = *PlanMemory(config, LayoutWithState(), 100'000, 24'000 + 2 * 101 * 3200);
  EXPECT_EQ(plan.state_snapshots, 20);
  EXPECT_EQ(plan.state_bytes, 24'000);
  EXPECT_EQ(plan.num_blocks, 101);
  EXPECT_EQ(PlanMemory(config, Layout(), 100'000, 2 * 101 * 3200)->state_bytes, 0);

  config.enable_prefix_caching = false;  // nothing to bring back
  EXPECT_EQ(PlanMemory(config, LayoutWithState(), 100'000, 1 << 20)->state_snapshots, 0);
  EXPECT_EQ(PlanMemory(config, LayoutWithState(), 100'000, 1 << 20)->state_bytes, 4'000);
  config.enable_prefix_caching = true;
  config.yoco_prefill_truncation_mode = "compact";
  EXPECT_EQ(PlanMemory(config, LayoutWithState(), 100'000, 1 << 20)->state_snapshots, 0);
}

TEST(MemoryPlan, SaysWhenRowStateLeavesNoRoom) {
  EngineConfig config;  // 256 MiB of snapshots
  const Status status = PlanMemory(config, LayoutWithState(), 1000, 64 << 20).status();
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_NE(status.message().find("state_cache_memory_bytes"), std::string::npos);
  config.num_kv_blocks = 100;  // whoever sets the size has counted himself
  EXPECT_EQ(PlanMemory(config, LayoutWithState(), 1000, 64 << 20)->num_blocks, 100);
}

TEST(MemoryPlan, BlockSizesFollowTheLayout) {
  EXPECT_EQ(LayoutInBlocks(Layout(), 32)->block_bytes(), 6400);
  for (const int size : {0, 8, 24, 272, -16}) {
    EXPECT_EQ(LayoutInBlocks(Layout(), size).status().param(), "block_size") << size;
  }
  CacheLayout compressed = Layout();
  compressed.history[0].ratio = 32;
  EXPECT_FALSE(LayoutInBlocks(compressed, 16).ok());
  EXPECT_TRUE(LayoutInBlocks(compressed, 64).ok());
}

}  // namespace
}  // namespace deepinfer
