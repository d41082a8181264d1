// Prefix hits that end inside a block and inside a pair of tokens, through the runner of the
// engine: plans may name any length, the prefix index offers whole blocks alone. Tokens are those
// of the reference, cache rows those of the model driven by hand, and rows before the hit stay.
#include <gtest/gtest.h>

#include <map>

#include "base/check.h"
#include "base/format.h"
#include "engine/model_runner.h"
#include "models/loaded_model.h"
#include "tests/golden/v41_runner.h"

namespace deepinfer {
namespace {

constexpr const char* kDirectory = "tests/golden/data/deepseek_v41";
constexpr int kBlockTokens = 16;
constexpr int kPositions = 160;

// The model, and where the runner keeps its rows.
class Watched final : public Model {
 public:
  explicit Watched(Model* model) : model_(model) {}
  const ModelInfo& info() const override { return model_->info(); }
  const CacheLayout& cache_layout() const override { return model_->cache_layout(); }
  const float* Forward(const StepInput& step) override {
    pool_ = step.cache_blocks;
    return model_->Forward(step);
  }
  void Head(const float* hidden, const int32_t* row_index, int rows, float* logits) override {
    model_->Head(hidden, row_index, rows, logits);
  }
  const std::byte* pool() const { return pool_; }  // between steps

 private:
  Model* const model_;
  const std::byte* pool_ = nullptr;
};

// Every entry of the first `tokens` tokens, by group, layer and number.
using Entries = std::map<std::string, std::vector<std::byte>>;

Entries ReadEntries(const CacheLayout& layout, const std::byte* pool,
                    const std::vector<int32_t>& table, int tokens) {
  Entries entries;
  for (size_t g = 0; g < layout.history.size(); ++g) {
    const HistoryGroup& group = layout.history[g];
    const int per_block = layout.block_tokens / group.ratio;
    for (int layer = 0; layer < group.layers; ++layer) {
      for (int e = 0; e < tokens / group.ratio; ++e) {
        const std::byte* row =
            pool + table[static_cast<size_t>(e / per_block)] * layout.block_bytes();
        row += layout.history_offset(g, layer) + e % per_block * group.row_bytes;
        entries[Format("{} {} {}", group.name, layer, e)] = {row, row + group.row_bytes};
      }
    }
  }
  return entries;
}

class PlanRig {
 public:
  PlanRig(LoadedModel* model, const std::vector<int32_t>& prompt) : model_(model->model.get()) {
    request_.prompt = prompt;
    request_.sampling.temperature = 0.0F;
    Result<std::unique_ptr<ModelRunner>> runner =
        ModelRunner::Create(&model_, model->backend.get(),
                            {.num_slots = 2,
                             .max_num_batched_tokens = kPositions,
                             .max_model_len = kPositions,
                             .block_tokens = kBlockTokens,
                             .num_blocks = 24,
                             .compact = true});
    DI_CHECK(runner.ok(), "{}", runner.status().message());
    runner_ = std::move(runner).value();
    // Two tables that share the blocks of the first 64 tokens, in no order.
    for (int i = 0; i < kPositions / kBlockTokens; ++i) {
      table_[0].push_back((i * 7 + 3) % 10);
      table_[1].push_back(i < 4 ? table_[0].back() : 20 - i);
    }
    layout_ = model_.cache_layout();
    layout_.block_tokens = kBlockTokens;
  }

  // The first row of slot `slot`, from `start` on; `count` known tokens.
  std::vector<TokenId> Begin(int slot, int start, int count, const ReplayBounds& replay) {
    StepPlan plan;
    plan.setups.push_back({.slot = slot,
                           .sequence = slot + 1,
                           .request = &request_,
                           .length_max = kPositions,
                           .replay = replay});
    AddKnown(slot, start, count, &plan);
    plan.rows[0].reset = true;
    plan.rows[0].num_blocks = static_cast<int>(table_[slot].size());
    plan.blocks = table_[slot];
    return Run(plan);
  }
  std::vector<TokenId> Go(int slot, int start, int count) {
    StepPlan plan;
    AddKnown(slot, start, count, &plan);
    return Run(plan);
  }
  // The token sampled last.
  std::vector<TokenId> Decode(int slot, int start) {
    StepPlan plan;
    plan.rows.push_back(
        {.sequence = slot + 1, .slot = slot, .sample = true, .start = start, .num_tokens = 1});
    return Run(plan);
  }
  Entries Rows(int slot, int tokens) const {
    return ReadEntries(layout_, model_.pool(), table_[slot], tokens);
  }
  const CacheLayout& layout() const { return layout_; }

 private:
  void AddKnown(int slot, int start, int count, StepPlan* plan) {
    const auto begin = request_.prompt.begin() + start;
    plan->tokens.assign(begin, begin + count);
    plan->rows.push_back({.sequence = slot + 1,
                          .slot = slot,
                          .sample = start + count == static_cast<int>(request_.prompt.size()),
                          .start = start,
                          .num_tokens = count,
                          .num_known = count});
  }
  std::vector<TokenId> Run(StepPlan& plan) {
    plan.step = ++step_;
    const StepRunner::Ticket ticket = runner_->Launch(plan);
    runner_->Feed(ticket, {});
    const StepResult& result = runner_->Collect(ticket);
    EXPECT_EQ(result.rows.at(0).status, RowStatus::kOk);
    std::vector<TokenId> ids;
    for (const EmittedToken& token : result.EmittedOf(result.rows[0])) ids.push_back(token.id);
    return ids;
  }

  Watched model_;
  Request request_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<int32_t> table_[2];
  CacheLayout layout_;
  int64_t step_ = 0;
};

void ExpectHit(LoadedModel* model, const std::vector<int32_t>& prompt, const Json& hit, int chunk) {
  const int at = static_cast<int>(*hit.Find("hit")->AsInt());
  const int total = static_cast<int>(prompt.size());
  const ReplayBounds replay{
      .replay_begin = static_cast<int>(*hit.Find("recompute_from")->AsInt()),
      .write_floor = at,
      .suffix_begin = total - static_cast<int>(*hit.Find("keep_tokens")->AsInt())};
  const std::vector<int32_t> greedy = GoldenIds(*hit.Find("greedy"));

  PlanRig rig(model, prompt);
  rig.Begin(0, 0, at, {});
  const Entries before = rig.Rows(0, at);
  std::vector<TokenId> got;
  for (int start = replay.replay_begin; start < total; start += chunk) {
    const int count = std::min(chunk, total - start);
    got =
        start == replay.replay_begin ? rig.Begin(1, start, count, replay) : rig.Go(1, start, count);
    EXPECT_EQ(got.empty(), start + count < total);
  }
  const Entries after = rig.Rows(0, at);
  EXPECT_TRUE(before == after) << "rows before the hit were written";
  const auto count = static_cast<int>(greedy.size());
  for (int i = 1; i < count; ++i) {
    const std::vector<TokenId> next = rig.Decode(1, total + i - 1);
    got.insert(got.end(), next.begin(), next.end());
  }
  EXPECT_EQ(got, greedy);

  V41Runner by_hand(kDirectory, {.device = "cpu", .threads = 2, .dtype = ComputeDtype::kFloat32}, 1,
                    kPositions);
  by_hand.Step({{.sequence = 0, .start = 0, .tokens = {prompt.begin(), prompt.begin() + at}}});
  by_hand.rows()->PoisonSlots();
  by_hand.Generate(0, prompt, count, chunk,
                   {.replay_begin = replay.replay_begin,
                    .write_floor = replay.write_floor,
                    .suffix_begin = replay.suffix_begin},
                   replay.replay_begin);
  const Entries want = ReadEntries(rig.layout(), by_hand.rows()->Step({}).cache_blocks,
                                   by_hand.rows()->table(0), total + count - 1);
  const Entries rows = rig.Rows(1, total + count - 1);
  ASSERT_EQ(rows.size(), want.size());
  for (const auto& [name, row] : want) EXPECT_TRUE(rows.at(name) == row) << name;
}

TEST(ReplayPlan, HitsOfAnyLength) {
  LoadOptions options;
  options.path = kDirectory;
  options.backend.threads = 2;
  options.backend.dtype = ComputeDtype::kFloat32;
  Result<std::unique_ptr<LoadedModel>> model = OpenModel(options);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Json golden = ReadGoldenJson(std::string(kDirectory) + "/golden.json");
  std::vector<int64_t> lengths;
  for (const Json& item : golden.Find("cases")->items()) {
    const Json* hits = item.Find("prefix_hits");
    if (hits == nullptr) continue;
    for (const Json& hit : hits->items()) {
      lengths.push_back(*hit.Find("hit")->AsInt());
      for (const int chunk : {1000, 7}) {
        SCOPED_TRACE(Format("hit of {}, chunks of {}", lengths.back(), chunk));
        ExpectHit(model->get(), GoldenIds(*item.Find("prompt")), hit, chunk);
      }
    }
  }
  EXPECT_EQ(lengths, (std::vector<int64_t>{64, 33}));
}

}  // namespace
}  // namespace deepinfer
