// The runner alone, on a model and a backend that are a few lines long: row state, late inputs,
// head rows, bad rows. What it does with real models is in tests/stress.
#include "engine/model_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/check.h"
#include "engine/spec/replay_drafter.h"

namespace deepinfer {
namespace {

constexpr int kVocab = 100;
constexpr TokenId kNanToken = 66;

// Memory and host threads only: the fake model computes nothing through operators.
class FakeBackend final : public Backend {
 public:
  const BackendInfo& info() const override { return info_; }
  Result<Buffer> Allocate(size_t bytes) override { return real_->Allocate(bytes); }
  Result<std::unique_ptr<Weight>> Bind(const TensorFile& file, const TensorView& view,
                                       WeightRole role) override {
    return real_->Bind(file, view, role);
  }
  Result<std::unique_ptr<Weight>> BindExperts(const TensorFile& file,
                                              std::span<const TensorView> experts) override {
    return real_->BindExperts(file, experts);
  }
  void LendCore() override { ++lent; }
  void ReturnCore() override { ++returned; }
  int kv_element_bytes() const override { return 4; }
  std::unique_ptr<Activation> CreateActivation(int64_t cols,
                                               std::span<const Weight* const> readers) override {
    return real_->CreateActivation(cols, readers);
  }
  void Embed(const Weight&, const int32_t*, int, float*) override { DI_CHECK(false); }
  void NormQuantize(const float*, const int32_t*, int, const Weight*, float, Activation*) override {
    DI_CHECK(false);
  }
  void Linear(const LinearArgs&) override { DI_CHECK(false); }
  void RopeAndCache(const StepInput&, const AttentionSpec&, float*, float*, const float*) override {
    DI_CHECK(false);
  }
  void Attention(const StepInput&, const AttentionSpec&, const float*, float*) override {
    DI_CHECK(false);
  }
  void LatentAttention(const StepInput&, const LatentAttentionSpec&,
                       const LatentAttentionArgs&) override {
    DI_CHECK(false);
  }
  void Moe(const MoeArgs&) override { DI_CHECK(false); }
  void CopyBlocks(const StepInput& step,
                  std::span<const std::pair<int32_t, int32_t>> pairs) override {
    const auto bytes = static_cast<ptrdiff_t>(step.layout->block_bytes());
    for (const auto& [from, to] : pairs) {
      std::copy_n(step.cache_blocks + from * bytes, bytes, step.cache_blocks + to * bytes);
    }
  }
  void ParallelRows(int count, void (*body)(void* context, int i), void* context) override {
    for (int i = count - 1; i >= 0; --i) body(context, i);
  }

  std::atomic<int> lent{0};
  std::atomic<int> returned{0};

 private:
  BackendInfo info_;
  std::unique_ptr<Backend> real_ = *CreateBackend({.device = "cpu", .threads = 1});
};

// The next token is (sum of the sequence so far) mod vocabulary, read from the cache, or from a
// ring in the row's slot that remembers one position and leaves room for what may be taken back.
class FakeModel final : public Model {
 public:
  FakeModel() {
    info_.vocab = kVocab;
    info_.context_max = 64;
    layout_.history.push_back({"full", 1, 1, sizeof(float)});
  }
  const ModelInfo& info() const override { return info_; }
  const CacheLayout& cache_layout() const override { return layout_; }

  void UseRing(int rollback_max) {
    layout_.state.push_back({"ring", 1, 1 + rollback_max, sizeof(float)});
    layout_.rollback_max = rollback_max;
  }

  const float* Forward(const StepInput& step) override {
    if (step.suffix_begin != nullptr) {
      replay = {step.replay_begin[0], step.write_floor[0], step.suffix_begin[0]};
      lead.assign(step.lead_token, step.lead_token + kLeadTokens);
      suffix_tokens = step.shape.suffix_tokens;
    }
    if (layout_.has_state()) return ForwardOverRing(step);
    hidden_.assign(static_cast<size_t>(step.shape.num_tokens), 0.0F);
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      if (step.kind[t] == TokenKind::kDead) continue;
      const int position = step.position[t];
      float* cell = At(step, step.token_row[t], position);
      *cell = static_cast<float>(step.token[t]) +
              (position == 0 ? 0.0F : *At(step, step.token_row[t], position - 1));
      hidden_[static_cast<size_t>(t)] =
          step.token[t] == kNanToken ? std::numeric_limits<float>::quiet_NaN() : *cell;
    }
    return hidden_.data();
  }
  void Head(const float* hidden, const int32_t* row_index, int rows, float* logits) override {
    head_rows += rows;
    head_calls += 1;
    for (int i = 0; i < rows; ++i) {
      const float sum = hidden[row_index[i]];
      for (int v = 0; v < kVocab; ++v) logits[i * kVocab + v] = sum * 0.0F;
      if (!std::isnan(sum)) logits[i * kVocab + static_cast<int>(sum) % kVocab] = 5.0F;
    }
  }

  int head_rows = 0;
  int head_calls = 0;
  // Of the first row of the step.
  ReplayBounds replay;
  std::vector<int32_t> lead;
  int suffix_tokens = 0;

 private:
  // Reads the ring once, before it writes: a step may be longer than the ring.
  const float* ForwardOverRing(const StepInput& step) {
    hidden_.assign(static_cast<size_t>(step.shape.num_tokens), 0.0F);
    for (int r = 0; r < step.shape.num_rows; ++r) {
      auto* ring =
          reinterpret_cast<float*>(step.cache_slots + step.slot[r] * step.layout->slot_bytes());
      const int size = layout_.state[0].positions;
      const int begin = step.position[step.query_start[r]];
      float sum = begin == 0 ? 0.0F : ring[(begin - 1) % size];
      for (int t = step.query_start[r]; t < step.query_start[r + 1]; ++t) {
        sum += static_cast<float>(step.token[t]);
        hidden_[static_cast<size_t>(t)] = sum;
        ring[step.position[t] % size] = sum;
      }
    }
    return hidden_.data();
  }

  static float* At(const StepInput& step, int row, int position) {
    const int bt = step.layout->block_tokens;
    const int32_t block = step.block_table[row * step.block_table_stride + position / bt];
    return reinterpret_cast<float*>(step.cache_blocks + block * step.layout->block_bytes()) +
           position % bt;
  }

  ModelInfo info_;
  CacheLayout layout_;
  std::vector<float> hidden_;
};

TokenId TokenOf(const StepResult& result, size_t row) {
  const std::span<const EmittedToken> emitted = result.EmittedOf(result.rows[row]);
  return emitted.empty() ? -1 : emitted[0].id;
}

class ModelRunnerTest : public testing::Test {
 protected:
  void Start(const RunnerTestMode& test = {}, int drafts = 0,
             std::unique_ptr<Drafter> drafter = nullptr) {
    options_.test = test;
    options_.draft_tokens_max = drafts;
    runner_ = std::move(*ModelRunner::Create(&model_, &backend_, options_, std::move(drafter)));
  }

  void AddSetup(StepPlan* plan, int slot, const Request* request) {
    plan->setups.push_back(
        {.slot = slot, .sequence = slot + 1, .request = request, .length_max = 64});
  }

  void AddRow(StepPlan* plan, int slot, int start, const std::vector<TokenId>& tokens,
              const std::vector<int32_t>& blocks) {
    PlanRow row;
    row.sequence = slot + 1;
    row.slot = slot;
    row.reset = !blocks.empty();
    row.sample = true;
    row.start = start;
    row.num_tokens = tokens.empty() ? 1 : static_cast<int>(tokens.size());
    row.tokens_begin = static_cast<int>(plan->tokens.size());
    row.num_known = static_cast<int>(tokens.size());
    row.blocks_begin = static_cast<int>(plan->blocks.size());
    row.num_blocks = static_cast<int>(blocks.size());
    plan->tokens.insert(plan->tokens.end(), tokens.begin(), tokens.end());
    plan->blocks.insert(plan->blocks.end(), blocks.begin(), blocks.end());
    plan->rows.push_back(row);
  }

  const StepResult& Run(const StepPlan& plan, const LateInputs& late = {}) {
    const StepRunner::Ticket ticket = runner_->Launch(plan);
    runner_->Feed(ticket, late);
    return runner_->Collect(ticket);
  }

  static Request Greedy(std::vector<TokenId> prompt) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0.0F;
    return request;
  }

  FakeBackend backend_;
  FakeModel model_;
  ModelRunnerOptions options_{.num_slots = 4,
                              .max_num_batched_tokens = 64,
                              .max_model_len = 64,
                              .block_tokens = 16,
                              .num_blocks = 16,
                              .state_snapshots = 2};
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(ModelRunnerTest, ContinuesFromDeviceStateWhileTheHostKnowsNothing) {
  for (const bool poison : {false, true}) {
    Start({.delay_us_max = poison ? 500 : 0, .poison_host = poison});
    const Request request = Greedy({3, 4});
    StepPlan first;
    AddSetup(&first, 2, &request);
    AddRow(&first, 2, 0, {3, 4}, {5, 1});
    StepPlan second;
    AddRow(&second, 2, 2, {}, {});
    // The second step is launched before the first was collected.
    const StepRunner::Ticket a = runner_->Launch(first);
    runner_->Feed(a, {});
    const StepRunner::Ticket b = runner_->Launch(second);
    const StepResult& one = runner_->Collect(a);
    ASSERT_EQ(one.rows.size(), 1U);
    EXPECT_EQ(TokenOf(one, 0), 7);
    runner_->Feed(b, {});
    EXPECT_EQ(TokenOf(runner_->Collect(b), 0), 14);
  }
}

TEST_F(ModelRunnerTest, LendsACoreWithEveryStepThatEnds) {
  options_.lend_core_us = 0;
  Start();
  const Request request = Greedy({3, 4});
  StepPlan plan;
  AddSetup(&plan, 2, &request);
  AddRow(&plan, 2, 0, {3, 4}, {5, 1});
  for (int step = 1; step <= 3; ++step) {
    Run(plan);
    EXPECT_EQ(backend_.lent, step);
    EXPECT_LE(backend_.returned, step);
    plan = {};
    AddRow(&plan, 2, 1 + step, {}, {});
  }
}

TEST_F(ModelRunnerTest, LendsNoCoreToAnEngineThatNeedsLittle) {
  options_.lend_core_us = 1'000'000'000;
  Start();
  const Request request = Greedy({3, 4});
  StepPlan plan;
  AddSetup(&plan, 2, &request);
  AddRow(&plan, 2, 0, {3, 4}, {5, 1});
  for (int step = 1; step <= 3; ++step) {
    Run(plan);
    plan = {};
    AddRow(&plan, 2, 1 + step, {}, {});
  }
  EXPECT_EQ(backend_.lent, 0);
}

TEST_F(ModelRunnerTest, ABadRowFailsAlone) {
  Start();
  const Request good = Greedy({1});
  const Request nan = Greedy({kNanToken});
  const Request outside = Greedy({kVocab});
  StepPlan plan;
  AddSetup(&plan, 0, &good);
  AddSetup(&plan, 1, &nan);
  AddSetup(&plan, 2, &outside);
  AddSetup(&plan, 3, &good);
  AddRow(&plan, 0, 0, {1}, {0});
  AddRow(&plan, 1, 0, {kNanToken}, {1});
  AddRow(&plan, 2, 0, {kVocab}, {2});
  AddRow(&plan, 3, 0, {2}, {3});
  const StepResult& result = Run(plan);
  EXPECT_EQ(TokenOf(result, 0), 1);
  EXPECT_EQ(result.rows[1].status, RowStatus::kNan);
  EXPECT_EQ(result.rows[2].status, RowStatus::kBadId);
  EXPECT_EQ(TokenOf(result, 3), 2);
  // The next step of a bad row may be in flight already; its token cannot be trusted.
  StepPlan next;
  AddRow(&next, 0, 1, {}, {});
  AddRow(&next, 1, 1, {}, {});
  const StepResult& after = Run(next);
  EXPECT_EQ(TokenOf(after, 0), 2);
  EXPECT_EQ(after.rows[1].status, RowStatus::kBadId);
}

TEST_F(ModelRunnerTest, EndedRowsNeedNoHead) {
  Start();
  const Request request = Greedy({1});
  StepPlan plan;
  for (int slot = 0; slot < 3; ++slot) {
    AddSetup(&plan, slot, &request);
    AddRow(&plan, slot, 0, {slot + 1}, {slot});
  }
  const StepResult& result = Run(plan, {.ended_rows = {1}});
  EXPECT_EQ(model_.head_rows, 2);
  EXPECT_EQ(result.rows[0].num_emitted, 1);
  EXPECT_EQ(result.rows[1].num_emitted, 0);
  EXPECT_EQ(TokenOf(result, 2), 3);
}

TEST_F(ModelRunnerTest, CopiesBlocksBeforeTheStep) {
  Start();
  const Request request = Greedy({1, 2, 3});
  StepPlan plan;
  AddSetup(&plan, 0, &request);
  AddRow(&plan, 0, 0, {1, 2, 3}, {4});
  EXPECT_EQ(TokenOf(Run(plan), 0), 6);
  StepPlan fork;
  fork.block_copies.emplace_back(4, 9);
  AddSetup(&fork, 1, &request);
  AddRow(&fork, 1, 2, {30}, {9});
  AddRow(&fork, 0, 3, {}, {});
  const StepResult& result = Run(fork);
  EXPECT_EQ(TokenOf(result, 0), 33);
  EXPECT_EQ(TokenOf(result, 1), 12);
}

// What the fake model says after `prompt`.
std::vector<TokenId> Continuation(const std::vector<TokenId>& prompt, size_t count) {
  int sum = 0;
  for (const TokenId id : prompt) sum += id;
  std::vector<TokenId> tokens;
  while (tokens.size() < count) {
    tokens.push_back(sum % kVocab);
    sum += tokens.back();
  }
  return tokens;
}

// Drafts of every right depth, most of them wrong somewhere: neither the cache nor a ring that is
// as small as its contract allows keeps a trace of what was rejected.
TEST_F(ModelRunnerTest, RejectedDraftsLeaveNoTrace) {
  for (const int ring : {0, 5}) {
    if (ring > 0) model_.UseRing(ring);
    for (int depth = -1; depth <= 5; ++depth) {
      SCOPED_TRACE(depth);
      const Request request = Greedy({3, 4});
      std::vector<TokenId> want = Continuation(request.prompt, 55);
      std::vector<TokenId> text = request.prompt;
      text.insert(text.end(), want.begin(), want.end());
      Start({.delay_us_max = 50, .poison_host = true}, 5,
            std::make_unique<ReplayDrafter>(
                ReplayOptions{.texts = {text}, .depth = depth, .vocab = kVocab}));
      StepPlan plan;
      AddSetup(&plan, 1, &request);
      AddRow(&plan, 1, 0, {3, 4}, {5, 2, 7, 9});
      std::vector<TokenId> got;
      int64_t drafts = 0;
      while (got.size() < 40) {
        const StepResult& result = Run(plan);
        ASSERT_EQ(result.rows[0].status, RowStatus::kOk);
        if (depth >= 0 && plan.rows[0].num_known == 0) {
          EXPECT_EQ(result.rows[0].num_emitted, 1 + depth);
        }
        drafts += result.rows[0].num_drafts;
        for (const EmittedToken& token : result.EmittedOf(result.rows[0])) got.push_back(token.id);
        plan.Clear();
        AddRow(&plan, 1, 0, {}, {});
        plan.rows[0].num_tokens = 6;
      }
      got.resize(40);
      want.resize(40);
      EXPECT_EQ(got, want);
      EXPECT_GT(drafts, 20);
    }
  }
}

// The plan knows upper bounds only; a row that ended by length meanwhile computes nothing.
TEST_F(ModelRunnerTest, DraftsStopAtTheLastPosition) {
  const Request request = Greedy({3, 4});
  const std::vector<TokenId> want = Continuation(request.prompt, 6);
  std::vector<TokenId> text = request.prompt;
  text.insert(text.end(), want.begin(), want.end());
  Start(
      {}, 5,
      std::make_unique<ReplayDrafter>(ReplayOptions{.texts = {text}, .depth = 5, .vocab = kVocab}));
  StepPlan plan;
  AddSetup(&plan, 0, &request);
  plan.setups[0].length_max = 6;  // 5 outputs
  AddRow(&plan, 0, 0, {3, 4}, {1});
  EXPECT_EQ(TokenOf(Run(plan), 0), want[0]);
  plan.Clear();
  AddRow(&plan, 0, 2, {}, {});
  plan.rows[0].num_tokens = 6;
  const StepResult& second = Run(plan);
  ASSERT_EQ(second.rows[0].num_emitted, 4);
  EXPECT_EQ(second.EmittedOf(second.rows[0])[3].id, want[4]);
  const StepResult& third = Run(plan);
  EXPECT_EQ(third.rows[0].num_emitted, 0);
  EXPECT_EQ(third.rows[0].status, RowStatus::kOk);
}

// What was accepted before logits went wrong is kept, as without drafts.
TEST_F(ModelRunnerTest, TokensBeforeABadDraftStand) {
  // 33 + 33 = 66, after which the model fails.
  const Request request = Greedy({33});
  Start({}, 5,
        std::make_unique<ReplayDrafter>(
            ReplayOptions{.texts = {{33, 33, 66, 66}}, .depth = 5, .vocab = kVocab}));
  StepPlan plan;
  AddSetup(&plan, 0, &request);
  AddRow(&plan, 0, 0, {33}, {1});
  EXPECT_EQ(TokenOf(Run(plan), 0), 33);
  plan.Clear();
  AddRow(&plan, 0, 1, {}, {});
  plan.rows[0].num_tokens = 6;
  const StepResult& result = Run(plan);
  EXPECT_EQ(result.rows[0].status, RowStatus::kNan);
  ASSERT_EQ(result.rows[0].num_emitted, 1);
  EXPECT_EQ(result.EmittedOf(result.rows[0])[0].id, 66);
}

// A snapshot brings a slot's state back into any slot, whatever ran there and in its own meanwhile.
TEST_F(ModelRunnerTest, SnapshotsBringStateBack) {
  model_.UseRing(3);
  Start();
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7};  // 73
  const Request request = Greedy(prompt);
  StepPlan plan;
  AddSetup(&plan, 0, &request);
  AddRow(&plan, 0, 0, prompt, {0, 1});
  plan.rows[0].save_state = 1;
  EXPECT_EQ(TokenOf(Run(plan), 0), 73);
  plan.Clear();
  AddSetup(&plan, 2, &request);
  AddRow(&plan, 2, 0, {50, 51, 52}, {3});
  AddRow(&plan, 0, 0, {}, {});
  Run(plan);
  plan.Clear();
  AddSetup(&plan, 2, &request);
  plan.setups[0].load_state = 1;
  AddRow(&plan, 2, 16, {20}, {3, 4});
  EXPECT_EQ(TokenOf(Run(plan), 0), 93);
}

TEST_F(ModelRunnerTest, ReplayBoundsGoWithEveryStepOfASequence) {
  options_.compact = true;
  Start();
  std::vector<TokenId> prompt;
  for (int i = 0; i < 30; ++i) prompt.push_back(i);
  const Request request = Greedy(prompt);
  StepPlan plan;
  AddSetup(&plan, 1, &request);
  plan.setups[0].replay = {.replay_begin = 10, .write_floor = 16, .suffix_begin = 20};
  AddRow(&plan, 1, 10, {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}, {0, 1});
  Run(plan);
  EXPECT_EQ(model_.lead, (std::vector<int32_t>{9, 8, 7}));
  EXPECT_EQ(model_.suffix_tokens, 2);
  EXPECT_EQ(model_.replay.replay_begin, 10);
  EXPECT_EQ(model_.replay.write_floor, 16);
  EXPECT_EQ(model_.replay.suffix_begin, 20);
  plan.Clear();
  AddRow(&plan, 1, 22, {22, 23, 24, 25, 26, 27, 28, 29}, {});
  Run(plan);
  EXPECT_EQ(model_.lead, (std::vector<int32_t>{-1, -1, -1}));  // the state has them
  EXPECT_EQ(model_.suffix_tokens, 8);
  EXPECT_EQ(model_.replay.suffix_begin, 20);
}

TEST_F(ModelRunnerTest, PromptLogprobsNameThePromptTokens) {
  Start();
  Request request = Greedy({1, 2, 3, 50, 51});
  request.sampling.prompt_logprobs = 1;
  StepPlan plan;
  AddSetup(&plan, 0, &request);
  AddRow(&plan, 0, 0, {1, 2, 3}, {0});
  plan.rows[0].prompt_logprobs = true;
  plan.rows[0].sample = false;
  const StepResult& first = Run(plan);
  ASSERT_EQ(first.rows[0].prompt_logprobs.size(), 3U);  // of the tokens at 1, 2 and 3
  EXPECT_EQ(first.rows[0].num_emitted, 0);
  EXPECT_EQ(first.rows[0].prompt_logprobs[0].id, 2);
  EXPECT_EQ(first.rows[0].prompt_logprobs[1].id, 3);
  EXPECT_EQ(first.rows[0].prompt_logprobs[1].rank, 1);  // 1 + 2 predicts 3
  EXPECT_EQ(first.rows[0].prompt_logprobs[2].id, 50);
  StepPlan rest;
  AddRow(&rest, 0, 3, {50, 51}, {});
  rest.rows[0].prompt_logprobs = true;
  const StepResult& second = Run(rest);
  ASSERT_EQ(second.rows[0].prompt_logprobs.size(), 1U);
  EXPECT_EQ(second.rows[0].prompt_logprobs[0].id, 51);
  EXPECT_EQ(TokenOf(second, 0), 7);  // 107 mod 100
}

}  // namespace
}  // namespace deepinfer
