#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace deepinfer {
namespace {

constexpr int kVocab = 500;

std::vector<float> RandomLogits(uint32_t seed, int vocab = kVocab, float spread = 3.0F) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(rng);
  return logits;
}

TokenId Draw(const SamplingParams& params, std::vector<float> logits, int64_t position,
             uint64_t seed = 7, int index = 0, std::span<const TokenId> emitted = {}) {
  RowSampler sampler(params, index, seed, static_cast<int>(logits.size()), {}, {}, emitted);
  const SampledToken token = sampler.Sample(logits.data(), position);
  EXPECT_EQ(token.status, RowStatus::kOk);
  return token.id;
}

// The plain definition: argmax over every allowed id of scaled logit + noise.
TokenId PlainGumbel(const std::vector<float>& logits, float temperature, uint64_t key,
                    int64_t position, const std::vector<bool>& keep) {
  TokenId best = -1;
  double best_score = -1e300;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!keep[i]) continue;
    const double score = static_cast<double>(logits[i]) / static_cast<double>(temperature) +
                         GumbelNoise(key, position, static_cast<TokenId>(i));
    if (score > best_score) {
      best_score = score;
      best = static_cast<TokenId>(i);
    }
  }
  return best;
}

// Samples with the sampler's own history; `likely` wins wherever it may.
std::vector<TokenId> SampleAlong(RowSampler* sampler, std::span<const TokenId> likely) {
  std::vector<TokenId> out;
  for (const TokenId id : likely) {
    std::vector<float> logits(kVocab, 0.0F);
    logits[static_cast<size_t>(id)] = 50.0F;
    const SampledToken token = sampler->Sample(logits.data(), static_cast<int64_t>(out.size()));
    EXPECT_EQ(token.status, RowStatus::kOk);
    sampler->Observe(token.id);
    out.push_back(token.id);
  }
  return out;
}

TEST(RowSampler, KeepsTheThinkingBudget) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.thinking = ThinkingBudget{.tokens = 3, .begin = -1, .end = {8, 9}};
  using Ids = std::vector<TokenId>;
  const auto run = [&](const Ids& likely, const Ids& emitted) {
    RowSampler sampler(params, 0, 7, kVocab, {}, {}, emitted);
    return SampleAlong(&sampler, likely);
  };
  EXPECT_EQ(run({1, 1, 1, 1, 1, 1, 1}, {}), (Ids{1, 1, 1, 8, 9, 1, 1}));
  // It ends by itself: in time, and with the mark across the bound.
  EXPECT_EQ(run({1, 8, 9, 1, 1, 1}, {}), (Ids{1, 8, 9, 1, 1, 1}));
  EXPECT_EQ(run({1, 1, 8, 9, 1, 1}, {}), (Ids{1, 1, 8, 8, 9, 1}));
  // After a preemption in the middle it is the same.
  EXPECT_EQ(run({1, 1, 1}, {1, 1, 1, 8}), (Ids{9, 1, 1}));
  params.thinking->begin = 7;
  EXPECT_EQ(run({1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1}, {}), (Ids{1, 1, 1, 1, 7, 1, 1, 1, 8, 9, 1}));
  params.thinking = ThinkingBudget{.tokens = 0, .begin = -1, .end = {8}};
  EXPECT_EQ(run({1, 1}, {}), (Ids{8, 1}));
}

TEST(RowSampler, ForgetsWhatDraftsSaidOfThinking) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.thinking = ThinkingBudget{.tokens = 2, .begin = 7, .end = {8}};
  RowSampler sampler(params, 0, 7, kVocab, {}, {}, {});
  for (const TokenId id : {7, 1, 8}) sampler.Observe(id);
  for (const TokenId id : {8, 1, 7}) sampler.Forget(id);
  const std::vector<TokenId> likely = {7, 1, 1, 1, 1};
  EXPECT_EQ(SampleAlong(&sampler, likely), (std::vector<TokenId>{7, 1, 1, 8, 1}));
}

TEST(RowSampler, GreedyTakesTheFirstOfEqualMaxima) {
  std::vector<float> logits = RandomLogits(1);
  logits[123] = logits[321] = 99.0F;
  SamplingParams params;
  params.temperature = 0.0F;
  EXPECT_EQ(Draw(params, logits, 5), 123);
}

TEST(RowSampler, PruningNeverChangesTheDraw) {
  for (int position = 0; position < 200; ++position) {
    const std::vector<float> logits = RandomLogits(static_cast<uint32_t>(position));
    SamplingParams params;
    params.temperature = 0.1F + 0.01F * static_cast<float>(position);
    EXPECT_EQ(Draw(params, logits, position), PlainGumbel(logits, params.temperature, 7, position,
                                                          std::vector<bool>(logits.size(), true)));
  }
}

TEST(RowSampler, TopKAndMinPKeepWhatTheirDefinitionKeeps) {
  for (int position = 0; position < 200; ++position) {
    const std::vector<float> logits = RandomLogits(static_cast<uint32_t>(position) + 1000);
    std::vector<float> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    SamplingParams params;
    params.top_k = 1 + position % 40;
    std::vector<bool> keep(logits.size());
    for (size_t i = 0; i < keep.size(); ++i) {
      keep[i] = logits[i] >= sorted[static_cast<size_t>(params.top_k) - 1];
    }
    EXPECT_EQ(Draw(params, logits, position), PlainGumbel(logits, 1.0F, 7, position, keep));
    SamplingParams min_p;
    min_p.min_p = 0.05F;
    for (size_t i = 0; i < keep.size(); ++i) keep[i] = std::exp(logits[i] - sorted[0]) >= 0.05F;
    EXPECT_EQ(Draw(min_p, logits, position), PlainGumbel(logits, 1.0F, 7, position, keep));
  }
}

TEST(RowSampler, TopPKeepsTheSmallestHeadWithTheMass) {
  for (int position = 0; position < 200; ++position) {
    // A small spread gives a flat distribution: the nucleus is wide.
    const float spread = position % 2 == 0 ? 0.1F : 8.0F;
    const std::vector<float> logits =
        RandomLogits(static_cast<uint32_t>(position) + 2000, kVocab, spread);
    std::vector<TokenId> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    double total = 0;
    for (float x : logits) total += std::exp(static_cast<double>(x));
    std::vector<bool> keep(logits.size());
    double mass = 0;
    for (TokenId id : order) {
      keep[static_cast<size_t>(id)] = true;
      mass += std::exp(static_cast<double>(logits[static_cast<size_t>(id)]));
      if (mass >= 0.8 * total) break;
    }
    SamplingParams params;
    params.top_p = 0.8F;
    EXPECT_EQ(Draw(params, logits, position), PlainGumbel(logits, 1.0F, 7, position, keep));
  }
}

TEST(RowSampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F, -1.0F};
  double total = 0;
  for (float x : logits) total += std::exp(static_cast<double>(x));
  std::map<TokenId, int> seen;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++seen[Draw({}, logits, i)];
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = std::exp(static_cast<double>(logits[i])) / total;
    EXPECT_NEAR(static_cast<double>(seen[static_cast<TokenId>(i)]) / kDraws, expected, 0.015);
  }
}

TEST(RowSampler, KeyIsSeedPlusSampleIndex) {
  const std::vector<float> logits = RandomLogits(3);
  int differ = 0;
  for (int position = 0; position < 50; ++position) {
    EXPECT_EQ(Draw({}, logits, position, 7, 2), Draw({}, logits, position, 9, 0));
    differ += Draw({}, logits, position, 7, 0) != Draw({}, logits, position, 7, 1) ? 1 : 0;
  }
  EXPECT_GT(differ, 10);
}

TEST(RowSampler, PenaltiesBiasAllowedAndBadWords) {
  std::vector<float> logits(kVocab, 0.0F);
  logits[10] = 5.0F;
  logits[11] = 4.9F;
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  const std::vector<TokenId> emitted = {10};

  SamplingParams presence = greedy;
  presence.presence_penalty = 0.5F;
  EXPECT_EQ(Draw(presence, logits, 1, 7, 0, emitted), 11);
  SamplingParams frequency = greedy;
  frequency.frequency_penalty = 0.5F;
  EXPECT_EQ(Draw(frequency, logits, 1, 7, 0, emitted), 11);
  SamplingParams repetition = greedy;
  repetition.repetition_penalty = 2.0F;
  EXPECT_EQ(Draw(repetition, logits, 1, 7, 0, emitted), 11);
  SamplingParams bias = greedy;
  bias.logit_bias = {{42, 100.0F}};
  EXPECT_EQ(Draw(bias, logits, 1), 42);
  SamplingParams allowed = greedy;
  allowed.allowed_token_ids = {3, 11, 4};
  EXPECT_EQ(Draw(allowed, logits, 1), 11);
  SamplingParams bad = greedy;
  bad.bad_words = {{10, 10}};
  EXPECT_EQ(Draw(bad, logits, 1), 10);
  EXPECT_EQ(Draw(bad, logits, 1, 7, 0, emitted), 11);
}

TEST(RowSampler, PromptCountsForRepetitionOnly) {
  std::vector<float> logits(kVocab, 0.0F);
  logits[10] = 5.0F;
  logits[11] = 4.9F;
  const std::vector<TokenId> prompt = {10};
  SamplingParams params;
  params.temperature = 0.0F;
  params.presence_penalty = 2.0F;
  RowSampler presence(params, 0, 7, kVocab, {}, prompt, {});
  std::vector<float> copy = logits;
  EXPECT_EQ(presence.Sample(copy.data(), 1).id, 10);
  params.presence_penalty = 0.0F;
  params.repetition_penalty = 1.5F;
  RowSampler repetition(params, 0, 7, kVocab, {}, prompt, {});
  copy = logits;
  EXPECT_EQ(repetition.Sample(copy.data(), 1).id, 11);
}

TEST(RowSampler, MinTokensMasksEosUntilReached) {
  std::vector<float> logits(kVocab, 0.0F);
  logits[2] = 9.0F;
  logits[5] = 1.0F;
  SamplingParams params;
  params.temperature = 0.0F;
  params.min_tokens = 2;
  const std::vector<TokenId> eos = {2};
  RowSampler sampler(params, 0, 7, kVocab, eos, {}, {});
  for (int step = 0; step < 3; ++step) {
    std::vector<float> copy = logits;
    const TokenId id = sampler.Sample(copy.data(), step).id;
    EXPECT_EQ(id, step < 2 ? 5 : 2);
    sampler.Observe(id);
  }
}

TEST(RowSampler, LogprobsAreThoseOfTheUneditedLogits) {
  std::vector<float> logits = RandomLogits(4);
  double total = 0;
  for (float x : logits) total += std::exp(static_cast<double>(x));
  SamplingParams params;
  params.temperature = 0.0F;
  params.logprobs = 3;
  params.logit_bias = {{42, 100.0F}};
  RowSampler sampler(params, 0, 7, kVocab, {}, {}, {});
  std::vector<float> copy = logits;
  const SampledToken token = sampler.Sample(copy.data(), 1);
  EXPECT_EQ(token.id, 42);
  EXPECT_NEAR(token.logprob.logprob, static_cast<double>(logits[42]) - std::log(total), 1e-5);
  ASSERT_EQ(token.logprob.top.size(), 3U);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(token.logprob.top[i].second, static_cast<double>(sorted[i]) - std::log(total),
                1e-5);
  }
  const auto above =
      std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logits[42]; });
  EXPECT_EQ(token.logprob.rank, above + 1);
}

TEST(RowSampler, BadLogitsFailTheRow) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t where : {size_t{0}, size_t{250}, size_t{499}}) {
      std::vector<float> logits = RandomLogits(5);
      logits[where] = bad;
      RowSampler sampler({}, 0, 7, kVocab, {}, {}, {});
      EXPECT_EQ(sampler.Sample(logits.data(), 1).status, RowStatus::kNan);
    }
  }
  std::vector<float> none(kVocab, -std::numeric_limits<float>::infinity());
  RowSampler sampler({}, 0, 7, kVocab, {}, {}, {});
  EXPECT_EQ(sampler.Sample(none.data(), 1).status, RowStatus::kNan);
}

std::vector<uint64_t> MaskOf(const std::vector<TokenId>& ids) {
  std::vector<uint64_t> mask(static_cast<size_t>(kVocab) / 64 + 1, 0);
  for (const TokenId id : ids) mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  return mask;
}

TEST(RowSampler, AMaskLeavesWhatItNames) {
  const std::vector<TokenId> allowed = {3, 64, 65, 300, kVocab - 1};
  const std::vector<uint64_t> mask = MaskOf(allowed);
  for (const float temperature : {0.0F, 1.0F}) {
    for (const bool filtered : {false, true}) {
      SamplingParams params;
      params.temperature = temperature;
      if (filtered) params.top_p = 0.7F;
      if (filtered) params.top_k = 4;
      RowSampler sampler(params, 0, 7, kVocab, {}, {}, {});
      // The same as when those ids alone are given.
      params.allowed_token_ids = allowed;
      RowSampler listed(params, 0, 7, kVocab, {}, {}, {});
      for (int position = 0; position < 50; ++position) {
        std::vector<float> logits = RandomLogits(static_cast<uint64_t>(position));
        std::vector<float> copy = logits;
        const TokenId id = sampler.Sample(logits.data(), position, mask.data()).id;
        EXPECT_NE(std::find(allowed.begin(), allowed.end(), id), allowed.end());
        EXPECT_EQ(id, listed.Sample(copy.data(), position).id);
      }
    }
  }
}

TEST(RowSampler, LogprobsUnderAMaskAreAmongWhatItLeaves) {
  SamplingParams params;
  params.logprobs = 3;
  params.logit_bias = {{64, 5.0F}};  // no part of log-probabilities
  RowSampler sampler(params, 0, 7, kVocab, {}, {}, {});
  std::vector<float> logits = RandomLogits(5);
  const double a = std::exp(static_cast<double>(logits[3]));
  const double b = std::exp(static_cast<double>(logits[64]));
  const std::vector<uint64_t> mask = MaskOf({3, 64});
  const SampledToken token = sampler.Sample(logits.data(), 1, mask.data());
  ASSERT_EQ(token.status, RowStatus::kOk);
  const double own = token.id == 3 ? a : b;
  EXPECT_NEAR(static_cast<double>(token.logprob.logprob), std::log(own / (a + b)), 1e-5);
  EXPECT_LE(token.logprob.rank, 2);
}

TEST(RowSampler, NothingLeftIsSaid) {
  SamplingParams params;
  params.allowed_token_ids = {1, 2};
  RowSampler sampler(params, 0, 7, kVocab, {}, {}, {});
  std::vector<float> logits = RandomLogits(5);
  const std::vector<uint64_t> mask = MaskOf({3, 64});
  EXPECT_EQ(sampler.Sample(logits.data(), 1, mask.data()).status, RowStatus::kNoToken);
}

TEST(RowSampler, MinTokensYieldsWhereAMaskLeavesAnEndAlone) {
  SamplingParams params;
  params.min_tokens = 10;
  params.stop_token_ids = {9, 9};
  const TokenId eos[] = {9};
  RowSampler sampler(params, 0, 7, kVocab, eos, {}, {});
  std::vector<float> logits = RandomLogits(5);
  const std::vector<uint64_t> end = MaskOf({9});
  EXPECT_EQ(sampler.Sample(logits.data(), 1, end.data()).id, 9);
  logits = RandomLogits(5);
  const std::vector<uint64_t> more = MaskOf({9, 10});
  EXPECT_EQ(sampler.Sample(logits.data(), 1, more.data()).id, 10);
}

TEST(RowSampler, WhatIsNoTextIsNeverChosen) {
  const TokenId never[] = {250};
  for (const float temperature : {0.0F, 1.0F, 2.0F}) {
    for (const int top_k : {0, 3}) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_k = top_k;
      params.logit_bias = {{250, 90.0F}};
      RowSampler sampler(params, 0, 7, kVocab, {}, {}, {}, never);
      params.logit_bias.clear();
      params.bad_words = {{250}};  // forbidden by the request
      RowSampler twin(params, 0, 7, kVocab, {}, {}, {});
      for (int64_t position = 0; position < 50; ++position) {
        std::vector<float> logits = RandomLogits(3);
        logits[250] = 30.0F;
        std::vector<float> same = logits, proposed = logits;
        const SampledToken token = sampler.Sample(logits.data(), position);
        ASSERT_EQ(token.status, RowStatus::kOk);
        EXPECT_NE(token.id, 250);
        EXPECT_EQ(token.id, twin.Sample(same.data(), position).id);
        EXPECT_NE(sampler.Propose(proposed.data(), position), 250);
        sampler.Forget(token.id);
      }
    }
  }
}

// Observe and Forget leave nothing behind: the same tokens as a sampler that never saw the drafts.
TEST(RowSampler, ForgetUndoesObserve) {
  SamplingParams params;
  params.temperature = 0.8F;
  params.frequency_penalty = 1.5F;
  params.repetition_penalty = 1.3F;
  params.bad_words = {{3, 4}};
  params.min_tokens = 3;
  const std::vector<TokenId> prompt = {1, 2, 3};
  const std::vector<TokenId> eos = {9};
  RowSampler touched(params, 0, 5, kVocab, eos, prompt, {});
  RowSampler plain(params, 0, 5, kVocab, eos, prompt, {});
  for (uint32_t step = 0; step < 40; ++step) {
    for (const TokenId id : {3, 7, 3}) touched.Observe(id);
    for (const TokenId id : {3, 7, 3}) touched.Forget(id);
    std::vector<float> logits = RandomLogits(step);
    std::vector<float> same = logits;
    const TokenId id = touched.Sample(logits.data(), step).id;
    ASSERT_EQ(id, plain.Sample(same.data(), step).id);
    touched.Observe(id);
    plain.Observe(id);
  }
}

// Whatever is drafted, rejection sampling gives the distribution of the filtered logits.
TEST(RowSampler, RejectionKeepsTheDistribution) {
  constexpr int kSmall = 8;
  constexpr int kDraws = 40000;
  const std::vector<float> logits = RandomLogits(3, kSmall, 1.0F);
  for (const float top_p : {1.0F, 0.8F}) {
    SamplingParams params;
    params.temperature = 0.9F;
    params.top_p = top_p;
    std::vector<double> want(kSmall, 0.0);
    std::vector<double> got(kSmall, 0.0);
    RowSampler sampler(params, 0, 11, kSmall, {}, {}, {});
    int accepted = 0;
    for (int i = 0; i < kDraws; ++i) {
      std::vector<float> scratch = logits;
      want[static_cast<size_t>(sampler.Sample(scratch.data(), i).id)] += 1.0 / kDraws;
      scratch = logits;
      const TokenId draft = i % kSmall;
      const TokenId id = sampler.SampleOrReject(scratch.data(), i, draft).id;
      got[static_cast<size_t>(id)] += 1.0 / kDraws;
      accepted += id == draft ? 1 : 0;
    }
    for (size_t id = 0; id < kSmall; ++id) EXPECT_NEAR(got[id], want[id], 0.012) << id;
    EXPECT_NEAR(static_cast<double>(accepted) / kDraws, 1.0 / kSmall, 0.01);
  }
}

TEST(RowSampler, GreedyRejectionIsGreedy) {
  SamplingParams params;
  params.temperature = 0.0F;
  RowSampler sampler(params, 0, 1, kVocab, {}, {}, {});
  std::vector<float> logits = RandomLogits(2);
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  EXPECT_EQ(sampler.SampleOrReject(logits.data(), 4, 17).id, best);
}

}  // namespace
}  // namespace deepinfer
