#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace deepinfer {
namespace {

using Ids = std::vector<TokenId>;

TEST(PrefixIndex, FollowsChainsAndChecksTokens) {
  PrefixIndex index(8, 4);
  const PrefixNode root = index.AcquireRoot("");
  const auto first = index.Insert(root, Ids{1, 2, 3, 4}, 0);
  const auto second = index.Insert(first.node, Ids{5, 6, 7, 8}, 3);
  EXPECT_EQ(first.block, 0);
  EXPECT_EQ(second.block, 3);
  EXPECT_EQ(index.Find(root, Ids{1, 2, 3, 4}).block, 0);
  EXPECT_EQ(index.Find(first.node, Ids{5, 6, 7, 8}).block, 3);
  EXPECT_EQ(index.Find(root, Ids{5, 6, 7, 8}).block, -1);
  EXPECT_EQ(index.Find(first.node, Ids{5, 6, 7, 9}).block, -1);
  EXPECT_EQ(index.Find(second.node, Ids{5, 6, 7, 8}).block, -1);
}

TEST(PrefixIndex, OffersTheEntryThatExists) {
  PrefixIndex index(8, 2);
  const PrefixNode root = index.AcquireRoot("");
  const auto first = index.Insert(root, Ids{1, 2}, 0);
  const auto again = index.Insert(root, Ids{1, 2}, 5);
  EXPECT_EQ(again.block, 0);
  EXPECT_EQ(again.node.serial, first.node.serial);
  EXPECT_EQ(index.num_entries(), 1);
}

TEST(PrefixIndex, AnEqualHashUnderAnotherParentIsNoHit) {
  PrefixIndex index(8, 2);
  const PrefixNode root = index.AcquireRoot("");
  index.Insert(root, Ids{1, 2}, 0);
  PrefixNode forged = root;
  forged.serial += 1000;
  EXPECT_EQ(index.Find(forged, Ids{1, 2}).block, -1);
  EXPECT_EQ(index.Insert(forged, Ids{1, 2}, 1).block, -1);
}

TEST(PrefixIndex, ErasedParentsMakeTheirChildrenUnreachable) {
  PrefixIndex index(8, 2);
  const PrefixNode root = index.AcquireRoot("");
  const auto first = index.Insert(root, Ids{1, 2}, 0);
  index.Insert(first.node, Ids{3, 4}, 1);
  index.Erase(0);
  EXPECT_EQ(index.Find(root, Ids{1, 2}).block, -1);
  const auto renewed = index.Insert(root, Ids{1, 2}, 2);
  // The block of {3, 4} was computed after the erased entry, not after this one.
  EXPECT_EQ(index.Find(renewed.node, Ids{3, 4}).block, -1);
}

TEST(PrefixIndex, SaltsSeparateTenantsAndTheirRootsGo) {
  PrefixIndex index(8, 2);
  const PrefixNode a = index.AcquireRoot("tenant-a");
  const PrefixNode b = index.AcquireRoot("tenant-b");
  index.Insert(a, Ids{1, 2}, 0);
  EXPECT_EQ(index.Find(b, Ids{1, 2}).block, -1);
  index.ReleaseRoot(a);
  index.ReleaseRoot(b);
  EXPECT_EQ(index.num_roots(), 1);  // a has a block
  const PrefixNode again = index.AcquireRoot("tenant-a");
  EXPECT_EQ(index.Find(again, Ids{1, 2}).block, 0);
  index.ReleaseRoot(again);
  index.Erase(0);
  EXPECT_EQ(index.num_roots(), 0);
  const PrefixNode fresh = index.AcquireRoot("tenant-a");
  EXPECT_NE(fresh.serial, a.serial);
  index.ReleaseRoot(fresh);
}

TEST(PrefixIndex, AgreesWithAMapUnderRandomTraffic) {
  constexpr int kBlocks = 300;
  std::mt19937 rng(3);
  PrefixIndex index(kBlocks, 1);
  const PrefixNode root = index.AcquireRoot("");
  std::map<TokenId, int32_t> expected;
  std::vector<TokenId> token_of(kBlocks, -1);
  for (int step = 0; step < 100000; ++step) {
    const auto token = static_cast<TokenId>(rng() % 400);
    const auto block = static_cast<int32_t>(rng() % kBlocks);
    if (token_of[static_cast<size_t>(block)] >= 0) {
      index.Erase(block);
      expected.erase(token_of[static_cast<size_t>(block)]);
      token_of[static_cast<size_t>(block)] = -1;
    } else if (!expected.contains(token)) {
      ASSERT_EQ(index.Insert(root, Ids{token}, block).block, block);
      expected[token] = block;
      token_of[static_cast<size_t>(block)] = token;
    }
    const auto probe = static_cast<TokenId>(rng() % 400);
    const auto it = expected.find(probe);
    ASSERT_EQ(index.Find(root, Ids{probe}).block, it == expected.end() ? -1 : it->second);
  }
  EXPECT_EQ(index.num_entries(), static_cast<int32_t>(expected.size()));
}

}  // namespace
}  // namespace deepinfer
