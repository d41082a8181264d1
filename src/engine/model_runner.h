// Executes plans on a model: keeps row state on the device, gathers the arrays of a step from it,
// runs forward, head, sampling with verification of drafts, and drafting. Owned by the engine; owns
// the one runner thread, on which the model, the backend, the drafter and everything below "runner
// thread" is used. Model and backend must outlive it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/bounded_queue.h"
#include "base/rng.h"
#include "deepinfer/status.h"
#include "engine/sampler.h"
#include "engine/spec/drafter.h"
#include "engine/step_runner.h"
#include "models/model.h"

namespace deepinfer {

// Makes what must not matter vary: proves that a step depends on device state and on what was
// launched and fed, in that order, and on nothing that the host happens to hold.
struct RunnerTestMode {
  int delay_us_max = 0;      // random waits before the stages of a step
  bool poison_host = false;  // counters of the plan that only the host needs become garbage,
                             // step arrays and logits too as soon as they were used
  uint64_t seed = 1;
};

// How a draft is judged: by the token that would be sampled without it, or by rejection sampling.
enum class VerifyMode : uint8_t { kShared, kRejection };

struct ModelRunnerOptions {
  int num_slots = 1;
  int max_num_batched_tokens = 1;
  int max_model_len = 1;
  int block_tokens = 16;
  int32_t num_blocks = 1;
  int draft_tokens_max = 0;     // with a drafter
  int32_t state_snapshots = 0;  // of a slot's state
  bool compact = false;         // plans carry replay bounds
  VerifyMode verify = VerifyMode::kShared;
  // The engine thread is lent a core when it works this long for a step, on average. A helper that
  // gives up its core may wait to get it back, so a short wait of the engine costs less.
  int64_t lend_core_us = 60;
  RunnerTestMode test;
};

class ModelRunner final : public StepRunner {
 public:
  // Reserves the KV pool and starts the thread. `drafter` nullptr: no speculation. Errors: not
  // enough address space.
  static Result<std::unique_ptr<ModelRunner>> Create(Model* model, Backend* backend,
                                                     const ModelRunnerOptions& options,
                                                     std::unique_ptr<Drafter> drafter = nullptr);
  ~ModelRunner() override;

  Ticket Launch(const StepPlan& plan) override;
  const StepDrafts& DraftsOf(Ticket ticket) override;
  void Feed(Ticket ticket, const LateInputs& late) override;
  const StepResult& Collect(Ticket ticket) override;
  WeightStats Stats() const override;

 private:
  // Device state of a row slot; outlives the steps that use it.
  struct RowState {
    int64_t sequence = 0;
    int32_t length = 0;      // positions in the cache that are final
    int32_t length_max = 0;  // positions it may ever compute
    int32_t last_token = 0;  // sampled last
    int32_t num_blocks = 0;
    bool bad_token = false;  // last_token cannot be trusted
    DraftTokens drafts;      // follow last_token
    ReplayBounds replay;
    std::vector<TokenId> history;      // prompt and output, for drafters that need it
    const Request* request = nullptr;  // only while a step of the sequence is in flight
    std::unique_ptr<RowSampler> sampler;
  };
  // A row of hidden states that needs logits.
  struct HeadRow {
    int32_t hidden = 0;
    int plan_row = 0;
    int position = 0;      // of the token that the logits predict
    TokenId target = -1;   // >= 0: log-probability of this prompt token; else sample
    TokenLogprob logprob;  // of the target
    SampledToken sampled;
    std::vector<float> embedding;
  };
  // Head rows that one thread handles in order: one of a prompt, or a sampled row with its drafts.
  struct HeadGroup {
    int begin = 0;
    int count = 0;
    int emitted = 0;                  // of a sampled row: tokens that are final
    const uint64_t* masks = nullptr;  // of a sampled row under a grammar: so many
    int num_masks = 0;
  };
  struct Launched {
    Ticket ticket = 0;
    const StepPlan* plan = nullptr;
  };

  void CountHostTime(int64_t now_ns);  // engine thread
  ModelRunner(Model* model, Backend* backend, const ModelRunnerOptions& options,
              std::unique_ptr<Drafter> drafter);
  Status Reserve();

  // Runner thread.
  void Loop();
  bool EngineNeedsCore() const {
    return host_ns_.load(std::memory_order_relaxed) >= 1000 * options_.lend_core_us;
  }
  bool RunStep(const StepPlan& plan, StepResult* result);
  void ApplySetups(const StepPlan& plan);
  void CopyBlocks(const StepPlan& plan, const StepInput& input);
  void FillReplay(const StepPlan& plan, StepInput* input);
  void LoadState(int32_t snapshot, int slot);
  void SaveStates(const StepPlan& plan);
  StepInput GatherInputs(const StepPlan& plan, StepResult* result);
  int GatherRow(const StepPlan& plan, size_t index, int input_row, RowResult* result);
  int QueryTokens(const PlanRow& row, const RowState& state) const;
  void PublishDrafts(const StepPlan& plan);
  void ListHeadRows(const StepPlan& plan, const LateInputs& late, const StepResult& result);
  void ListPromptRows(const PlanRow& row, int plan_row, int32_t first, int32_t last);
  void AddMasks(const LateInputs& late);
  void EmbedRow(const StepPlan& plan, const float* hidden, HeadRow* head);
  void AddHeadRow(int hidden, int plan_row, int position, TokenId target);
  void RunHead(const StepPlan& plan, const float* hidden);
  void RunHeadGroup(const StepPlan& plan, HeadGroup* group, HeadRow* rows, float* logits);
  void VerifyRow(RowState* state, HeadGroup* group, HeadRow* rows, float* logits);
  void Finish(const StepPlan& plan, StepResult* result);
  void FinishSampled(const PlanRow& row, const HeadGroup& group, RowResult* out,
                     StepResult* result);
  void Draft();
  void Delay();
  void PoisonPlan(StepPlan* plan) const;
  void PoisonArrays();

  Model* const model_;
  Backend* const backend_;
  const ModelRunnerOptions options_;
  const std::unique_ptr<Drafter> drafter_;
  CacheLayout layout_;  // the model's, with the engine's block size
  const int vocab_;
  const int blocks_per_row_;
  int head_rows_max_ = 1;

  // Device memory.
  Backend::Buffer cache_blocks_;
  Backend::Buffer cache_slots_;
  Backend::Buffer snapshots_;  // [state_snapshots] of a slot's bytes
  Backend::Buffer arrays_;
  Backend::Buffer block_tables_;  // [num_slots, blocks_per_row] of the row states
  Backend::Buffer step_tables_;   // [num_slots, blocks of the longest row] of a step
  Backend::Buffer logits_;        // [head_rows_max, vocab]
  int32_t* token_ = nullptr;
  int32_t* position_ = nullptr;
  int32_t* token_row_ = nullptr;
  int32_t* query_start_ = nullptr;
  int32_t* kv_len_ = nullptr;
  int32_t* slot_ = nullptr;
  int32_t* row_index_ = nullptr;  // [head_rows_max]
  int32_t* replay_begin_ = nullptr;
  int32_t* write_floor_ = nullptr;
  int32_t* suffix_begin_ = nullptr;
  int32_t* lead_token_ = nullptr;  // [num_slots, kLeadTokens]
  TokenKind* kind_ = nullptr;
  size_t arrays_bytes_ = 0;

  // Runner thread.
  std::vector<RowState> rows_;
  std::vector<HeadRow> head_rows_;
  std::vector<HeadGroup> head_groups_;
  std::vector<uint8_t> ended_;        // by plan row
  std::vector<int32_t> input_row_;    // by plan row: its row of the step, -1: computes nothing
  std::vector<DraftRow> draft_rows_;  // what goes on after the step
  size_t mask_words_ = 0;             // of a mask of the step
  StepPlan poisoned_plan_;
  uint32_t delays_ = 0;

  std::array<StepResult, 3> results_;
  BoundedQueue<Launched> launched_;
  BoundedQueue<StepDrafts> drafts_;
  BoundedQueue<LateInputs> fed_;
  BoundedQueue<Ticket> done_;
  std::atomic<int64_t> host_ns_{0};  // of the engine thread for a step, on average
  int64_t collected_ns_ = 0;         // engine thread: when Collect returned last
  Ticket next_ticket_ = 1;           // engine thread
  StepDrafts taken_drafts_;          // engine thread: what DraftsOf returned last
  std::thread thread_;
};

}  // namespace deepinfer
