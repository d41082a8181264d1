#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/engine_test_util.h"

namespace deepinfer {
namespace {

class SchedulerTest : public testing::TestWithParam<RigMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, SchedulerTest,
                         testing::Values(RigMode{false, 0}, RigMode{true, 0}, RigMode{false, 5},
                                         RigMode{true, 1}, RigMode{true, 5}, RigMode{true, 16}),
                         [](const testing::TestParamInfo<RigMode>& param) {
                           return Format("{}_drafts{}", param.param.overlap ? "overlap" : "serial",
                                         param.param.drafts);
                         });

TEST_P(SchedulerTest, OneRequestGetsTheTokensOfTheModel) {
  Rig rig(Rig::Config(), GetParam());
  const RequestSpec spec{.prompt_len = 100, .max_tokens = 20};
  const RequestId id = rig.Add(spec);
  rig.Run();
  EXPECT_EQ(rig.sink().sample(id).tokens, rig.Expected(id, spec));
  EXPECT_EQ(rig.sink().sample(id).finish, FinishReason::kLength);
  EXPECT_EQ(rig.sink().sample(id).usage.completion_tokens, 20);
  EXPECT_EQ(rig.sink().sample(id).usage.prompt_tokens, 100);
  // 100 prompt tokens and all outputs but the last: a known length costs no surplus step, and
  // accepted drafts are computed once.
  EXPECT_EQ(rig.runner().tokens_computed(), 119);
}

TEST_P(SchedulerTest, ChunksAndBatchesChangeNothing) {
  for (const int chunk : {1, 7, 64}) {
    SchedulerConfig config = Rig::Config();
    config.long_prefill_token_threshold = chunk;
    Rig rig(config, GetParam());
    std::vector<std::pair<RequestId, RequestSpec>> all;
    for (int i = 0; i < 12; ++i) {
      const RequestSpec spec{.prompt_len = 1 + i * 9, .max_tokens = 1 + i, .first = i * 50};
      all.emplace_back(rig.Add(spec), spec);
    }
    rig.Run();
    for (const auto& [id, spec] : all) {
      EXPECT_EQ(rig.sink().sample(id).tokens, rig.Expected(id, spec));
    }
  }
}

TEST_P(SchedulerTest, ABudgetOfOneTokenStillServesEverybody) {
  SchedulerConfig config = Rig::Config();
  config.max_num_batched_tokens = 1;
  Rig rig(config, GetParam());
  std::vector<std::pair<RequestId, RequestSpec>> all;
  for (int i = 0; i < 5; ++i) {
    const RequestSpec spec{.prompt_len = 5, .max_tokens = 40, .first = i * 50};
    all.emplace_back(rig.Add(spec), spec);
  }
  for (int i = 0; i < 120; ++i) rig.Step();
  // The delay of a prompt behind decodes is bounded, and decodes take turns.
  for (const auto& [id, spec] : all) EXPECT_GT(rig.sink().sample(id).tokens.size(), 2U) << id;
  rig.Run();
  for (const auto& [id, spec] : all) {
    EXPECT_EQ(rig.sink().sample(id).tokens, rig.Expected(id, spec));
  }
}

TEST_P(SchedulerTest, PrefixHitsSkipWholeBlocksButNeverTheLastToken) {
  Rig rig(Rig::Config(), GetParam());
  const RequestSpec spec{.prompt_len = 64, .max_tokens = 5};
  const RequestId first = rig.Add(spec);
  rig.Run();
  const int64_t computed = rig.runner().tokens_computed();
  const RequestId second = rig.Add(spec);
  rig.Run();
  EXPECT_EQ(rig.sink().sample(second).tokens, rig.Expected(second, spec));
  EXPECT_EQ(rig.sink().sample(first).usage.cached_tokens, 0);
  EXPECT_EQ(rig.sink().sample(second).usage.cached_tokens, 60);  // the last block is computed
  EXPECT_EQ(rig.runner().tokens_computed() - computed, 4 + 4);
  EXPECT_EQ(rig.metrics().prefix_cache_hits.load(), 60);
  EXPECT_EQ(rig.metrics().prefix_cache_queries.load(), 128);
  // The first half only: another continuation after 33 equal tokens hits 32.
  auto half = std::make_unique<RequestState>();
  for (int i = 0; i < 64; ++i) half->request.prompt.push_back(i < 33 ? 1 + i : 200);
  const RequestId third = rig.Add(std::move(half));
  rig.Run();
  EXPECT_EQ(rig.sink().sample(third).usage.cached_tokens, 32);
}

TEST_P(SchedulerTest, GeneratedTokensAreReusedToo) {
  Rig rig(Rig::Config(), GetParam());
  const RequestSpec spec{.prompt_len = 10, .max_tokens = 30};
  const RequestId first = rig.Add(spec);
  rig.Run();
  auto next = std::make_unique<RequestState>();
  for (int i = 0; i < 10; ++i) next->request.prompt.push_back(1 + i);
  for (const TokenId token : rig.sink().sample(first).tokens) next->request.prompt.push_back(token);
  next->request.prompt.push_back(9);
  const RequestId second = rig.Add(std::move(next));
  rig.Run();
  EXPECT_EQ(rig.sink().sample(second).usage.cached_tokens, 36);  // 39 computed before, whole blocks
}

TEST_P(SchedulerTest, SaltsAndOptOutsDoNotShare) {
  Rig rig(Rig::Config(), GetParam());
  const RequestSpec a{.prompt_len = 40, .max_tokens = 2, .salt = "a"};
  const RequestSpec b{.prompt_len = 40, .max_tokens = 2, .salt = "b"};
  rig.Add(a);
  rig.Run();
  const RequestId other = rig.Add(b);
  rig.Run();
  EXPECT_EQ(rig.sink().sample(other).usage.cached_tokens, 0);
  const RequestId same = rig.Add(a);
  rig.Run();
  EXPECT_EQ(rig.sink().sample(same).usage.cached_tokens, 36);
}

TEST_P(SchedulerTest, PreemptedSequencesResumeEqual) {
  SchedulerConfig config = Rig::Config();
  config.num_blocks = 40;  // 160 positions for 8 sequences of up to 70
  for (const bool caching : {true, false}) {
    config.prefix_caching = caching;
    Rig rig(config, GetParam());
    std::vector<std::pair<RequestId, RequestSpec>> all;
    for (int i = 0; i < 8; ++i) {
      const RequestSpec spec{.prompt_len = 10, .max_tokens = 60, .first = i * 30};
      all.emplace_back(rig.Add(spec), spec);
    }
    rig.Run();
    EXPECT_GT(rig.metrics().preemptions.load(), 0);
    for (const auto& [id, spec] : all) {
      EXPECT_EQ(rig.sink().sample(id).tokens, rig.Expected(id, spec));
    }
  }
}

TEST_P(SchedulerTest, PreemptedOnRequestInEveryState) {
  for (int steps = 0; steps < 12; ++steps) {
    Rig rig(Rig::Config(), GetParam());
    const RequestSpec spec{.prompt_len = 100, .max_tokens = 20, .n = 2, .prompt_logprobs = true};
    const RequestId id = rig.Add(spec);
    for (int i = 0; i < steps; ++i) rig.Step();
    rig.scheduler().PreemptRequest(id);
    rig.Step();
    rig.scheduler().PreemptRequest(id);
    rig.Run();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(rig.sink().sample(id, i).tokens, rig.Expected(id, spec, i)) << steps;
    }
    EXPECT_EQ(rig.sink().sample(id).prompt_logprobs.size(), 100U);
  }
}

TEST_P(SchedulerTest, TheNewestIsPreemptedAndTheOldestNever) {
  SchedulerConfig config = Rig::Config();
  config.num_blocks = 20;
  Rig rig(config, GetParam());
  const RequestId oldest = rig.Add({.prompt_len = 4, .max_tokens = 70, .first = 0});
  for (int i = 1; i < 4; ++i) rig.Add({.prompt_len = 4, .max_tokens = 40, .first = i * 50});
  int steps = 0;
  while (!rig.sink().done(oldest)) {
    rig.Step();
    ++steps;
  }
  // Its next step is always reserved: one step per token, plus the pipeline.
  EXPECT_LE(steps, 70 + 2);
  rig.Run();
}

TEST_P(SchedulerTest, PrioritiesRunFirst) {
  SchedulerConfig config = Rig::Config();
  config.max_num_seqs = 1;
  Rig rig(config, GetParam());
  const RequestId low = rig.Add({.prompt_len = 4, .max_tokens = 4, .priority = 5});
  const RequestId high = rig.Add({.prompt_len = 4, .max_tokens = 4, .priority = -1});
  while (!rig.sink().done(high)) {
    rig.Step();
    EXPECT_FALSE(rig.sink().done(low));
  }
  rig.Run();
}

TEST_P(SchedulerTest, SamplesShareTheirPromptAndComputeItOnce) {
  Rig rig(Rig::Config(), GetParam());
  for (const int prompt_len : {1, 4, 30, 33}) {
    const int64_t before = rig.runner().tokens_computed();
    const RequestSpec spec{.prompt_len = prompt_len, .max_tokens = 6, .n = 5, .first = prompt_len};
    const RequestId id = rig.Add(spec);
    rig.Run();
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(rig.sink().sample(id, i).tokens, rig.Expected(id, spec, i)) << i;
    }
    // The prompt once, its last token once more for each further sample, 5 outputs each.
    EXPECT_EQ(rig.runner().tokens_computed() - before, prompt_len + 4 + 5 * 5);
  }
}

TEST_P(SchedulerTest, MoreSamplesThanSlotsAndBlocks) {
  SchedulerConfig config = Rig::Config();
  config.max_num_seqs = 3;
  config.num_blocks = 20;
  Rig rig(config, GetParam());
  const RequestSpec spec{.prompt_len = 30, .max_tokens = 30, .n = 10};
  const RequestId id = rig.Add(spec);
  rig.Run();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(rig.sink().sample(id, i).tokens, rig.Expected(id, spec, i)) << i;
  }
}

TEST_P(SchedulerTest, CancelInEveryStateFreesWithinOneStep) {
  for (int steps = 0; steps < 14; ++steps) {
    for (const int n : {1, 3}) {
      Rig rig(Rig::Config(), GetParam());
      // Two chunks of prompt, then decodes.
      const RequestId id = rig.Add({.prompt_len = 100, .max_tokens = 300, .n = n});
      for (int i = 0; i < steps; ++i) rig.Step();
      rig.scheduler().Cancel(id, rig.now_us());
      EXPECT_TRUE(rig.sink().done(id));
      EXPECT_EQ(rig.sink().num_samples(id), n);
      for (int i = 0; i < n; ++i) {
        EXPECT_EQ(rig.sink().sample(id, i).finish, FinishReason::kCancelled);
      }
      rig.scheduler().Cancel(id, rig.now_us());  // idempotent
      rig.Step();
      EXPECT_EQ(rig.scheduler().blocks().num_used(), 0);
      EXPECT_EQ(rig.scheduler().num_free_slots(), 8);
      rig.Run();
    }
  }
}

TEST_P(SchedulerTest, ABadRowFailsAlone) {
  ScriptedRunnerOptions options;
  options.nan_token = 77;
  Rig rig(Rig::Config(), GetParam(), options);
  const RequestSpec good{.prompt_len = 20, .max_tokens = 5, .first = 100};
  const RequestId before = rig.Add(good);
  const RequestId bad = rig.Add({.prompt_len = 20, .max_tokens = 5, .first = 60});
  const RequestId after = rig.Add(good);
  rig.Run();
  EXPECT_EQ(rig.sink().sample(bad).finish, FinishReason::kError);
  EXPECT_EQ(rig.sink().sample(bad).error_code, static_cast<int>(StatusCode::kInternal));
  EXPECT_EQ(rig.sink().sample(before).tokens, rig.Expected(before, good));
  EXPECT_EQ(rig.sink().sample(after).tokens, rig.Expected(after, good));
  EXPECT_EQ(rig.metrics().corrupted_requests.load(), 1);
  // Nothing of it may be offered to an equal request.
  const RequestId again = rig.Add({.prompt_len = 20, .max_tokens = 5, .first = 60});
  rig.Run();
  EXPECT_EQ(rig.sink().sample(again).usage.cached_tokens, 0);
}

TEST_P(SchedulerTest, DeadlinesEndWaitingAndRunningRequests) {
  SchedulerConfig config = Rig::Config();
  config.max_num_seqs = 1;
  Rig rig(config, GetParam());
  const RequestId running =
      rig.Add({.prompt_len = 4, .max_tokens = 400, .deadline_us = rig.now_us() + 100});
  const RequestId waiting =
      rig.Add({.prompt_len = 4, .max_tokens = 4, .deadline_us = rig.now_us() + 50});
  const RequestId patient = rig.Add({.prompt_len = 4, .max_tokens = 4});
  EXPECT_EQ(rig.scheduler().NextDeadlineUs(), rig.now_us() + 50);
  for (int i = 0; i < 5; ++i) rig.Step();
  rig.Advance(1000);
  rig.Run();
  for (const RequestId id : {running, waiting}) {
    EXPECT_EQ(rig.sink().sample(id).finish, FinishReason::kError);
    EXPECT_EQ(rig.sink().sample(id).error_code, static_cast<int>(StatusCode::kDeadline));
  }
  EXPECT_EQ(rig.sink().sample(patient).finish, FinishReason::kLength);
}

TEST_P(SchedulerTest, StopIdsEosAndMinTokens) {
  SchedulerConfig config = Rig::Config();
  config.eos_ids = {50};
  ScriptedRunnerOptions options;
  options.script = {10, 50, 11, 50, 12};
  Rig rig(config, GetParam(), options);
  const auto add = [&](auto&& edit) {
    auto state = std::make_unique<RequestState>();
    state->request.prompt = {1, 2, 3};
    state->request.sampling.max_tokens = 5;
    edit(state->request.sampling);
    return rig.Add(std::move(state));
  };
  const RequestId plain = add([](SamplingParams&) {});
  const RequestId ignore = add([](SamplingParams& p) { p.ignore_eos = true; });
  const RequestId least = add([](SamplingParams& p) { p.min_tokens = 3; });
  const RequestId stop = add([](SamplingParams& p) {
    p.ignore_eos = true;
    p.stop_token_ids = {11};
  });
  const RequestId none = add([](SamplingParams& p) { p.max_tokens = 0; });
  rig.Run();
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(rig.sink().sample(plain).tokens, (Ids{10, 50}));
  EXPECT_EQ(rig.sink().sample(plain).finish, FinishReason::kStop);
  EXPECT_FALSE(rig.sink().sample(plain).stop_token.has_value());
  EXPECT_EQ(rig.sink().sample(ignore).tokens, (Ids{10, 50, 11, 50, 12}));
  EXPECT_EQ(rig.sink().sample(ignore).finish, FinishReason::kLength);
  EXPECT_EQ(rig.sink().sample(least).tokens, (Ids{10, 50, 11, 50}));
  EXPECT_EQ(rig.sink().sample(stop).tokens, (Ids{10, 50, 11}));
  EXPECT_EQ(rig.sink().sample(stop).stop_token, 11);
  EXPECT_TRUE(rig.sink().sample(none).tokens.empty());
  EXPECT_EQ(rig.sink().sample(none).finish, FinishReason::kLength);
}

TEST_P(SchedulerTest, PromptLogprobsComeOnceAndWhole) {
  SchedulerConfig config = Rig::Config();
  config.num_blocks = 30;
  config.long_prefill_token_threshold = 7;
  Rig rig(config, GetParam());
  rig.Add({.prompt_len = 60, .max_tokens = 2});
  rig.Run();  // fills the cache, which must not shorten the answer
  const RequestSpec spec{.prompt_len = 60, .max_tokens = 20, .n = 2, .prompt_logprobs = true};
  const RequestId id = rig.Add(spec);
  rig.Add({.prompt_len = 20, .max_tokens = 60, .priority = -1, .first = 90});
  rig.Run();
  const auto& logprobs = rig.sink().sample(id).prompt_logprobs;
  ASSERT_EQ(logprobs.size(), 60U);
  EXPECT_FALSE(logprobs[0].has_value());
  for (int i = 1; i < 60; ++i) EXPECT_EQ(logprobs[static_cast<size_t>(i)]->id, 1 + i);
  EXPECT_TRUE(rig.sink().sample(id, 1).prompt_logprobs.empty());
}

TEST(Scheduler, SaysWhatCanNeverFit) {
  SchedulerConfig config = Rig::Config();
  Request request;
  request.prompt.assign(512, 1);
  EXPECT_EQ(Scheduler::CheckFits(config, request).status().param(), "prompt");
  request.prompt.assign(500, 1);
  request.sampling.max_tokens = 100000;  // clamped to the context before the blocks are counted
  ASSERT_TRUE(Scheduler::CheckFits(config, request).ok());
  EXPECT_EQ(*Scheduler::CheckFits(config, request), 12);
  config.num_blocks = 129;  // 512 / 4 + 1
  EXPECT_TRUE(Scheduler::CheckFits(config, request).ok());
  config.num_blocks = 128;
  const Status status = Scheduler::CheckFits(config, request).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_NE(status.message().find("129"), std::string::npos) << status.message();
  request.prompt.clear();
  EXPECT_EQ(Scheduler::CheckFits(config, request).status().param(), "prompt");
}

TEST(Scheduler, TheKeyLimitBoundsPrefillRowsOfAStep) {
  SchedulerConfig config = Rig::Config();
  config.prefill_max_sum_seqlen_k = 40;
  Rig rig(config, {.overlap = false});
  for (int i = 0; i < 3; ++i) rig.Add({.prompt_len = 30, .max_tokens = 1, .first = i * 60});
  const StepPlan& plan = rig.scheduler().Plan(1);
  int64_t keys = 0;
  for (const PlanRow& row : plan.rows) keys += row.start + row.num_tokens;
  EXPECT_EQ(plan.rows.size(), 2U);
  EXPECT_EQ(keys, 40);
}

TEST(Scheduler, AdmissionStopsAtTheWatermark) {
  SchedulerConfig config = Rig::Config();
  config.num_blocks = 100;
  config.max_num_batched_tokens = 1000;
  Rig rig(config, {.overlap = false});
  for (int i = 0; i < 4; ++i) rig.Add({.prompt_len = 120, .max_tokens = 100, .first = i * 60});
  const StepPlan& plan = rig.scheduler().Plan(1);
  EXPECT_EQ(plan.rows.size(), 3U);  // 30 blocks each, 90 of 100
  EXPECT_EQ(rig.scheduler().blocks().num_used(), 90);
}

TEST(Scheduler, RowsGetDraftsOnlyWhenEveryRowHasItsToken) {
  SchedulerConfig config = Rig::Config();
  config.max_num_batched_tokens = 16;
  Rig rig(config, {.overlap = false, .drafts = 5});
  for (int i = 0; i < 4; ++i) rig.Add({.prompt_len = 3, .max_tokens = 100, .first = i * 60});
  rig.Step();
  const StepPlan& plan = rig.scheduler().Plan(rig.now_us());
  ASSERT_EQ(plan.rows.size(), 4U);
  for (const PlanRow& row : plan.rows) EXPECT_EQ(row.num_tokens, 4);  // 1 and 16 / 4 - 1
}

TEST(Scheduler, DraftsLeaveHalfOfTheStepToPrompts) {
  SchedulerConfig config = Rig::Config();
  config.max_num_batched_tokens = 32;
  Rig rig(config, {.overlap = false, .drafts = 16});
  for (int i = 0; i < 4; ++i) rig.Add({.prompt_len = 3, .max_tokens = 100, .first = i * 60});
  rig.Step();
  rig.Add({.prompt_len = 100, .max_tokens = 1, .first = 30});
  const StepPlan& plan = rig.scheduler().Plan(rig.now_us());
  ASSERT_EQ(plan.rows.size(), 5U);
  EXPECT_EQ(plan.rows[0].num_tokens, 4);
  EXPECT_EQ(plan.rows[4].num_tokens, 16);
}

TEST(Scheduler, DraftsTakeNoBlockFromOthers) {
  SchedulerConfig config = Rig::Config();
  config.num_blocks = 9;
  config.watermark = 1.0;
  Rig rig(config, {.overlap = false, .drafts = 5});
  // Two sequences of 16 positions fill 8 blocks; 2 drafts fit into a block of 4 with the token.
  const RequestSpec spec{.prompt_len = 13, .max_tokens = 4};
  const RequestId a = rig.Add(spec);
  const RequestSpec other{.prompt_len = 13, .max_tokens = 4, .first = 90};
  const RequestId b = rig.Add(other);
  rig.Run();
  EXPECT_EQ(rig.metrics().preemptions.load(), 0);
  EXPECT_EQ(rig.sink().sample(a).tokens, rig.Expected(a, spec));
  EXPECT_EQ(rig.sink().sample(b).tokens, rig.Expected(b, other));
}

TEST(Scheduler, CountsDrafts) {
  Rig rig(Rig::Config(), {.overlap = true, .drafts = 3});
  const RequestSpec spec{.prompt_len = 5, .max_tokens = 200};
  const RequestId id = rig.Add(spec);
  rig.Run();
  const EngineStats stats = rig.metrics().Snapshot(0);
  EXPECT_EQ(rig.sink().sample(id).tokens, rig.Expected(id, spec));
  EXPECT_GT(stats.spec_drafts, 50);
  EXPECT_GT(stats.spec_accepted_tokens, 20);
  EXPECT_GE(stats.spec_draft_tokens, stats.spec_accepted_tokens);
  ASSERT_EQ(stats.spec_accepted_per_position.size(), static_cast<size_t>(kDraftTokensMax));
  int64_t accepted = 0;
  for (const int64_t at : stats.spec_accepted_per_position) accepted += at;
  EXPECT_EQ(accepted, stats.spec_accepted_tokens);
  EXPECT_GE(stats.spec_accepted_per_position[0], stats.spec_accepted_per_position[2]);
  EXPECT_EQ(stats.spec_accepted_per_position[3], 0);
  EXPECT_EQ(stats.generation_tokens, 200);
}

// Row state comes back from a snapshot, or the prefix is computed again; the scripted model sees
// any other state.
TEST(SchedulerState, PrefixesAreReusedWhereASnapshotIs) {
  for (const int snapshots : {0, 1, 8}) {
    SCOPED_TRACE(snapshots);
    Rig rig(Rig::Config(), {.snapshots = snapshots});
    const RequestSpec spec{.prompt_len = 63, .max_tokens = 9};
    const auto run = [&](const RequestSpec& wanted) {
      const RequestId id = rig.Add(wanted);
      rig.Run();
      EXPECT_EQ(rig.sink().sample(id).tokens, rig.Expected(id, wanted));
      return rig.sink().sample(id).usage.cached_tokens;
    };
    EXPECT_EQ(run(spec), 0);
    const int64_t computed = rig.runner().tokens_computed();
    EXPECT_EQ(run(spec), snapshots > 0 ? 60 : 0);
    EXPECT_EQ(rig.runner().tokens_computed() - computed, snapshots > 0 ? 3 + 8 : 63 + 8);
    // A longer prompt continues from there; a shorter one has blocks but no state.
    EXPECT_EQ(run({.prompt_len = 100, .max_tokens = 3}), snapshots > 0 ? 60 : 0);
    EXPECT_EQ(run({.prompt_len = 50, .max_tokens = 3}), 0);
    // The one snapshot is by now that of the shorter prompt.
    const int64_t kept = snapshots == 0 ? 0 : snapshots == 1 ? 48 : 96;
    EXPECT_EQ(run({.prompt_len = 100, .max_tokens = 3}), kept);
  }
}

TEST(SchedulerState, SamplesOfAPromptComputeItOnce) {
  Rig rig(Rig::Config(), {.snapshots = 4});
  const RequestSpec spec{.prompt_len = 41, .max_tokens = 6, .n = 4};
  const RequestId id = rig.Add(spec);
  rig.Run();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(rig.sink().sample(id, i).tokens, rig.Expected(id, spec, i));
  }
  EXPECT_EQ(rig.runner().tokens_computed(), 41 + 3 * 1 + 4 * 5);
}

TEST(SchedulerState, LongPromptsTakeFewSnapshots) {
  SchedulerConfig config = Rig::Config();
  config.max_model_len = 9000;
  config.num_blocks = 2500;
  config.max_num_batched_tokens = 64;
  Rig rig(config, {.snapshots = 100});
  const RequestSpec spec{.prompt_len = 8200, .max_tokens = 2};
  const RequestId id = rig.Add(spec);
  rig.Run();
  EXPECT_EQ(rig.sink().sample(id).tokens, rig.Expected(id, spec));
  // Others that share half of it find a point not far before.
  const RequestSpec half{.prompt_len = 4100, .max_tokens = 2};
  const RequestId other = rig.Add(half);
  rig.Run();
  EXPECT_EQ(rig.sink().sample(other).tokens, rig.Expected(other, half));
  EXPECT_GT(rig.sink().sample(other).usage.cached_tokens, 3500);
}

// Compact mode: what a hit recomputes is the window before it, however long the prompt is, and the
// suffix is that of the whole prompt in every chunk.
TEST(SchedulerState, BoundedReplayRunsOneWindowAgain) {
  for (const int prompt_len : {100, 400}) {
    SchedulerConfig config = Rig::Config();
    config.has_state = true;
    config.replay_window = 20;
    config.keep_tokens = 30;
    EngineMetrics metrics(512);
    Scheduler scheduler(config, nullptr, &metrics);
    CollectSink sink;
    const auto run = [&](RequestId id) {
      auto state = std::make_unique<RequestState>();
      for (int i = 0; i < prompt_len; ++i) state->request.prompt.push_back(i);
      state->request.sampling.max_tokens = 1;
      state->max_output = 1;
      state->id = id;
      state->sink = &sink;
      scheduler.Admit(std::move(state));
      std::vector<PlanRow> rows;
      ReplayBounds bounds;
      while (!sink.done(id)) {
        const StepPlan& plan = scheduler.Plan(1);
        if (!plan.setups.empty()) bounds = plan.setups[0].replay;
        StepResult result;
        for (const PlanRow& row : plan.rows) {
          rows.push_back(row);
          RowResult& out = result.rows.emplace_back();
          out.sequence = row.sequence;
          out.slot = row.slot;
          out.num_emitted = row.sample ? 1 : 0;
        }
        result.emitted.resize(1);
        scheduler.Apply(plan, result, 1);
      }
      int64_t tokens = 0;
      for (const PlanRow& row : rows) tokens += row.num_tokens;
      EXPECT_EQ(bounds.suffix_begin, prompt_len - 30);
      EXPECT_EQ(rows.front().start, bounds.replay_begin);
      return std::pair(tokens, bounds);
    };
    const auto [cold, cold_bounds] = run(1);
    EXPECT_EQ(cold, prompt_len);
    EXPECT_EQ(cold_bounds.write_floor, 0);
    const auto [warm, bounds] = run(2);
    EXPECT_EQ(bounds.write_floor, prompt_len - 4);
    // The suffix begins before the window of the hit.
    EXPECT_EQ(bounds.replay_begin, prompt_len - 30);
    EXPECT_EQ(warm, 30);
    EXPECT_EQ(scheduler.Audit(), "");
  }
}

// Random traffic on a small cache: every request gets exactly the model's tokens, every invariant
// holds after every step, and nothing is left.
TEST(SchedulerProperty, RandomTraffic) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    const auto upto = [&](int n) { return static_cast<int>(rng() % static_cast<uint32_t>(n)); };
    SchedulerConfig config = Rig::Config();
    config.max_num_seqs = 1 + upto(8);
    config.max_num_batched_tokens = 1 + upto(60);
    config.max_model_len = 100;
    config.num_blocks = 27 + upto(60);
    config.long_prefill_token_threshold = upto(3) == 0 ? 1 + upto(20) : 0;
    config.prefill_max_sum_seqlen_k = upto(3) == 0 ? 20 + upto(100) : 0;
    config.prefix_caching = upto(4) != 0;
    Rig rig(config,
            {.overlap = upto(2) == 0, .drafts = upto(2) * upto(9), .snapshots = upto(10) - 5});
    struct Sent {
      RequestId id;
      RequestSpec spec;
      bool cancelled = false;
    };
    std::vector<Sent> sent;
    for (int step = 0; step < 300; ++step) {
      if (upto(3) == 0) {
        RequestSpec spec;
        spec.prompt_len = 1 + upto(60);
        spec.max_tokens = 1 + upto(39);
        spec.n = upto(5) == 0 ? 1 + upto(4) : 1;
        spec.priority = upto(4) == 0 ? upto(3) - 1 : 0;
        spec.first = upto(3) * 40;
        if (upto(5) == 0) spec.salt = "s";
        if (upto(6) == 0) spec.prompt_logprobs = true;
        sent.push_back({rig.Add(spec), spec});
      }
      if (upto(12) == 0 && !sent.empty()) {
        Sent& victim = sent[static_cast<size_t>(upto(static_cast<int>(sent.size())))];
        victim.cancelled |= !rig.sink().done(victim.id);
        rig.scheduler().Cancel(victim.id, rig.now_us());
      }
      rig.Step();
      if (testing::Test::HasFailure()) return;
    }
    rig.Run();
    for (const Sent& request : sent) {
      ASSERT_TRUE(rig.sink().done(request.id));
      for (int i = 0; i < request.spec.n && !request.cancelled; ++i) {
        ASSERT_EQ(rig.sink().sample(request.id, i).tokens,
                  rig.Expected(request.id, request.spec, i))
            << request.id << " sample " << i;
      }
      if (request.spec.prompt_logprobs && !request.cancelled) {
        ASSERT_EQ(rig.sink().sample(request.id).prompt_logprobs.size(),
                  static_cast<size_t>(request.spec.prompt_len));
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
