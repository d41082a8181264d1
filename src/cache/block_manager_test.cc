#include "cache/block_manager.h"

#include <gtest/gtest.h>

#include <random>

#include "cache/prefix_index.h"

namespace deepinfer {
namespace {

std::vector<TokenId> Tokens(int first, int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(BlockManager, HandsOutTheLowestFreeBlock) {
  BlockManager blocks(200, nullptr);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(blocks.Allocate(), i);
  EXPECT_EQ(blocks.Allocate(), -1);
  blocks.Release(150);
  blocks.Release(7);
  blocks.Release(64);
  EXPECT_EQ(blocks.Allocate(), 7);
  EXPECT_EQ(blocks.Allocate(), 64);
  EXPECT_EQ(blocks.Allocate(), 150);
  EXPECT_EQ(blocks.num_used(), 200);
  EXPECT_TRUE(blocks.Consistent());
}

TEST(BlockManager, FreesWithTheLastReference) {
  BlockManager blocks(4, nullptr);
  const int32_t block = blocks.Allocate();
  blocks.Retain(block);
  blocks.Release(block);
  EXPECT_EQ(blocks.num_used(), 1);
  blocks.Release(block);
  EXPECT_EQ(blocks.num_used(), 0);
  EXPECT_EQ(blocks.num_free(), 4);
}

TEST(BlockManager, EvictsTheIdleBlockReleasedFirst) {
  PrefixIndex index(3, 2);
  BlockManager blocks(3, &index);
  PrefixNode node = index.AcquireRoot("");
  for (int i = 0; i < 3; ++i) {
    const int32_t block = blocks.Allocate();
    node = index.Insert(node, Tokens(i * 2, 2), block).node;
    blocks.MarkCached(block);
  }
  for (const int32_t block : {2, 1, 0}) blocks.Release(block);
  EXPECT_EQ(blocks.num_used(), 0);
  EXPECT_EQ(blocks.num_available(), 3);
  blocks.Retain(2);  // a hit makes it used again
  blocks.Release(2);
  EXPECT_EQ(blocks.Allocate(), 1);
  EXPECT_EQ(blocks.Allocate(), 0);
  EXPECT_EQ(index.num_entries(), 1);
  EXPECT_EQ(blocks.Allocate(), 2);
  EXPECT_EQ(index.num_entries(), 0);
  EXPECT_EQ(blocks.Allocate(), -1);
  EXPECT_TRUE(blocks.Consistent());
}

TEST(BlockManager, ForgetsABlockThatMustNotBeOffered) {
  PrefixIndex index(2, 1);
  BlockManager blocks(2, &index);
  const PrefixNode root = index.AcquireRoot("");
  const int32_t block = blocks.Allocate();
  index.Insert(root, Tokens(5, 1), block);
  blocks.MarkCached(block);
  blocks.Forget(block);
  EXPECT_EQ(index.Find(root, Tokens(5, 1)).block, -1);
  blocks.Release(block);
  EXPECT_EQ(blocks.num_free(), 2);
}

TEST(BlockManager, RandomTrafficKeepsItsCounters) {
  std::mt19937 rng(7);
  PrefixIndex index(5000, 1);
  BlockManager blocks(5000, &index);
  const PrefixNode root = index.AcquireRoot("");
  std::vector<int32_t> held;
  int next_token = 0;
  for (int step = 0; step < 40000; ++step) {
    switch (rng() % 4) {
      case 0:
      case 1: {
        const int32_t block = blocks.Allocate();
        if (block < 0) break;
        EXPECT_EQ(blocks.references(block), 1);
        if (rng() % 2 == 0) {
          EXPECT_EQ(index.Insert(root, Tokens(next_token++, 1), block).block, block);
          blocks.MarkCached(block);
        }
        held.push_back(block);
        break;
      }
      case 2:
        if (!held.empty()) {
          const size_t at = rng() % held.size();
          blocks.Release(held[at]);
          held[at] = held.back();
          held.pop_back();
        }
        break;
      default:
        if (next_token > 0) {
          const auto match = index.Find(root, Tokens(static_cast<int>(rng() % next_token), 1));
          if (match.block >= 0) {
            blocks.Retain(match.block);
            held.push_back(match.block);
          }
        }
    }
    if (step % 4000 == 0) {
      ASSERT_TRUE(blocks.Consistent());
    }
  }
  for (const int32_t block : held) blocks.Release(block);
  EXPECT_EQ(blocks.num_used(), 0);
  EXPECT_TRUE(blocks.Consistent());
  blocks.DropIdle();
  EXPECT_EQ(blocks.num_free(), 5000);
  EXPECT_EQ(index.num_entries(), 0);
}

}  // namespace
}  // namespace deepinfer
