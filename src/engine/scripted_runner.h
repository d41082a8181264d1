// A StepRunner without a model, for tests of everything above the runner. It keeps a shadow of the
// KV memory: every position holds a hash of the tokens up to it, read and written through the block
// tables of the plans alone, and the next token is a function of that hash. So a block that was
// freed too early, shared wrongly, not copied or not computed changes the tokens and is reported.
// Rejected drafts leave garbage there. Called by the engine thread; steps run in Collect, after the
// next one may have been launched.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/step_runner.h"

namespace deepinfer {

struct ScriptedRunnerOptions {
  int num_slots = 1;
  int32_t num_blocks = 1;
  int block_tokens = 16;
  int vocab = 256;
  // Output tokens of every sample in turn, by output index; afterwards, and when empty, tokens
  // follow from the hash. For one that a grammar forbids comes the next id that it allows.
  std::vector<TokenId> script = {};
  // A row whose newest token is this one gets logits that are not numbers; -1: none.
  TokenId nan_token = -1;
  // Rows that may verify drafts commit 1 to 1 + this many tokens, by the hash; the rest of what
  // they ran is rejected.
  int draft_tokens_max = 0;
  // The hash before a row's first token comes from the slot, which snapshots alone can bring back.
  bool has_state = false;
  // Busy time of a step.
  int64_t step_us = 0;
};

class ScriptedRunner final : public StepRunner {
 public:
  explicit ScriptedRunner(ScriptedRunnerOptions options);

  Ticket Launch(const StepPlan& plan) override;
  const StepDrafts& DraftsOf(Ticket ticket) override;
  void Feed(Ticket ticket, const LateInputs& late) override;
  const StepResult& Collect(Ticket ticket) override;

  // The token that follows `tokens` (prompt and `outputs` of output) in a sample.
  TokenId Next(uint64_t seed, int sample, std::span<const TokenId> tokens, int outputs) const;

  // What broke the contract of plans first; empty while nothing did.
  const std::string& fault() const { return fault_; }
  int64_t tokens_computed() const { return tokens_computed_; }
  int64_t steps() const { return steps_; }

 private:
  struct Slot {
    SlotSetup setup;
    std::vector<int32_t> blocks;
    int length = 0;
    TokenId last_token = 0;
    int outputs = 0;
    uint64_t state = 0;
  };
  struct Launched {
    Ticket ticket = 0;
    const StepPlan* plan = nullptr;
    bool fed = false;
    LateInputs late;
  };

  void Run(const Launched& step);
  void RunRow(const StepPlan& plan, const PlanRow& row, RowResult* result);
  void ContinueRow(const PlanRow& row, Slot* slot, RowResult* result);
  void RunToken(Slot* slot, TokenId token, RowResult* result);
  void Emit(Slot* slot, RowResult* result);
  uint64_t* At(Slot* slot, int position);
  TokenId Pick(const Slot& slot, uint64_t hash) const;
  TokenId Allowed(TokenId id) const;
  void Fault(std::string what);

  const ScriptedRunnerOptions options_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> memory_;  // [num_blocks, block_tokens]
  std::unordered_map<int32_t, uint64_t> snapshots_;
  std::deque<Launched> launched_;
  // Of the row that runs: its mask, or nullptr. Such a row has no drafts.
  const uint64_t* mask_ = nullptr;
  StepDrafts no_drafts_;
  StepResult result_;
  std::string fault_;
  Ticket next_ticket_ = 1;
  int64_t tokens_computed_ = 0;
  int64_t steps_ = 0;
};

}  // namespace deepinfer
