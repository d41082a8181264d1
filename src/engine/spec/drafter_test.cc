#include <gtest/gtest.h>

#include <numeric>

#include "engine/spec/create_drafter.h"
#include "engine/spec/ngram_drafter.h"
#include "engine/spec/replay_drafter.h"

namespace deepinfer {
namespace {

using Ids = std::vector<TokenId>;

Ids LookUp(const Ids& history, int least, int most, int count) {
  DraftTokens drafts;
  LookUpContinuation(history, least, most, count, &drafts);
  return {drafts.ids.begin(), drafts.ids.begin() + drafts.count};
}

TEST(NgramDrafter, ProposesWhatFollowedTheLongestMatch) {
  // 7 8 stands twice before; only the first follows 6.
  EXPECT_EQ(LookUp({6, 7, 8, 1, 2, 3, 9, 7, 8, 4, 5, 6, 7, 8}, 1, 3, 3), (Ids{1, 2, 3}));
  EXPECT_EQ(LookUp({6, 7, 8, 1, 2, 3, 9, 7, 8, 4, 5, 6, 7, 8}, 1, 2, 3), (Ids{4, 5, 6}));
}

TEST(NgramDrafter, ProposesNothingBelowTheShortestMatch) {
  EXPECT_EQ(LookUp({1, 2, 3, 4, 2}, 2, 4, 5), Ids{});
  EXPECT_EQ(LookUp({1, 2, 3, 4, 2}, 1, 4, 2), (Ids{3, 4}));
  EXPECT_EQ(LookUp({1}, 1, 4, 5), Ids{});
  EXPECT_EQ(LookUp({}, 1, 4, 5), Ids{});
  EXPECT_EQ(LookUp({1, 2, 3}, 1, 4, 5), Ids{});
}

TEST(NgramDrafter, GoesRoundInARepetition) {
  EXPECT_EQ(LookUp({9, 1, 2, 1, 2}, 1, 4, 5), (Ids{1, 2, 1, 2, 1}));
  EXPECT_EQ(LookUp({4, 4}, 1, 4, 3), (Ids{4, 4, 4}));
}

TEST(ReplayDrafter, IsRightToItsDepthAndWrongBehind) {
  Ids text(30);
  std::iota(text.begin(), text.end(), 0);
  for (int depth = 0; depth <= 5; ++depth) {
    ReplayDrafter drafter({.texts = {{5, 5, 5}, text}, .depth = depth, .vocab = 100});
    DraftTokens drafts;
    std::vector<DraftRow> rows(1);
    rows[0].history = std::span(text).first(10);
    rows[0].drafts_max = 5;
    rows[0].drafts = &drafts;
    drafter.Propose(rows, {});
    ASSERT_EQ(drafts.count, 5);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(drafts.ids[static_cast<size_t>(i)] == 10 + i, i < depth);
    }
  }
}

TEST(CreateDrafter, RangesNameTheField) {
  const auto param = [](auto&& edit) {
    SpeculativeConfig config;
    edit(&config);
    return CheckSpeculative(config).param();
  };
  EXPECT_TRUE(CheckSpeculative({}).ok());
  EXPECT_EQ(param([](auto* c) { c->method = "eagle"; }), "speculative.method");
  EXPECT_EQ(param([](auto* c) { c->verify = "maybe"; }), "speculative.verify");
  EXPECT_EQ(param([](auto* c) { c->num_speculative_tokens = -1; }),
            "speculative.num_speculative_tokens");
  EXPECT_EQ(param([](auto* c) { c->num_speculative_tokens = 17; }),
            "speculative.num_speculative_tokens");
  EXPECT_EQ(param([](auto* c) { c->prompt_lookup_max = 65; }), "speculative.prompt_lookup_max");
  EXPECT_EQ(param([](auto* c) {
              c->prompt_lookup_max = 2;
              c->prompt_lookup_min = 3;
            }),
            "speculative.prompt_lookup_min");
}

}  // namespace
}  // namespace deepinfer
