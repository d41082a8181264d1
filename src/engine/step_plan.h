// What the scheduler asks of one step and what the runner answers: plain values.
// A plan's variable parts lie in shared arrays of the plan, so that plans are reused without
// allocating.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer {

// Bounded replay of a sequence, as in StepInput; sent with its slot.
struct ReplayBounds {
  int replay_begin = 0;
  int write_floor = 0;
  int suffix_begin = 0;
};

// Per-sequence data the runner needs to sample, sent with the first plan of a slot.
struct SlotSetup {
  int slot = 0;
  int64_t sequence = 0;
  const Request* request = nullptr;  // alive until no step of the sequence is in flight
  int sample_index = 0;
  uint64_t seed = 0;
  int length_max = 0;       // positions that the sequence may ever compute
  int32_t load_state = -1;  // >= 0: the slot's state becomes this snapshot before the step
  ReplayBounds replay;
  std::vector<TokenId> emitted;  // output tokens before a preemption, for penalties
};

// One sequence's part of a step. Blocks and tokens named here are sent once and kept by the runner
// in its row state (the runner owns the block table of a slot after they were sent).
// A row without known tokens continues from row state: the token sampled last, then the drafts that
// follow it, as far as num_tokens and SlotSetup::length_max allow. How many tokens the step before
// committed is known to the runner alone, so `start` and `num_tokens` are upper bounds. A row whose
// sequence has reached length_max meanwhile computes nothing.
struct PlanRow {
  int64_t sequence = 0;  // host identity, echoed in the result
  int slot = 0;          // row slot of the runner
  bool reset = false;    // first row of this sequence in this slot: clear row state
  bool sample = false;   // the last query token is sampled
  // Wants the log-probability of every prompt token that follows a query token of this row.
  bool prompt_logprobs = false;
  int start = 0;       // position of the first query token
  int num_tokens = 0;  // query tokens
  // Known tokens (prompt or replayed), num_tokens of them; none: from row state.
  int tokens_begin = 0;
  int num_known = 0;
  // Block ids appended to the slot's table before the step.
  int blocks_begin = 0;
  int num_blocks = 0;
  // >= 0: the slot's state after this row is saved as this snapshot.
  int32_t save_state = -1;
};

struct StepPlan {
  int64_t step = 0;
  bool wants_drafts = false;      // a row verifies drafts under a grammar: see DraftsOf
  std::vector<SlotSetup> setups;  // before the rows
  std::vector<PlanRow> rows;
  std::vector<TokenId> tokens;
  std::vector<int32_t> blocks;
  std::vector<std::pair<int32_t, int32_t>> block_copies;  // before the step: (source, destination)

  bool empty() const { return rows.empty(); }
  std::span<const TokenId> TokensOf(const PlanRow& row) const {
    return std::span(tokens).subspan(static_cast<size_t>(row.tokens_begin),
                                     static_cast<size_t>(row.num_known));
  }
  std::span<const int32_t> BlocksOf(const PlanRow& row) const {
    return std::span(blocks).subspan(static_cast<size_t>(row.blocks_begin),
                                     static_cast<size_t>(row.num_blocks));
  }
  // Empties the plan and keeps its memory.
  void Clear() {
    wants_drafts = false;
    setups.clear();
    rows.clear();
    tokens.clear();
    blocks.clear();
    block_copies.clear();
  }
};

// The drafts that the rows of a plan verify, in plan order.
struct StepDrafts {
  std::vector<int32_t> end;  // by row: of its ids
  std::vector<TokenId> ids;

  std::span<const TokenId> Of(size_t row) const {
    if (row >= end.size()) return {};
    const size_t begin = row == 0 ? 0 : static_cast<size_t>(end[row - 1]);
    return std::span(ids).subspan(begin, static_cast<size_t>(end[row]) - begin);
  }
};

// Masks of one row: of its first sampled token, then after each of its drafts. A row samples at
// most so many tokens in the step.
struct RowMasks {
  int32_t row = 0;
  int32_t first = 0;
  int32_t count = 0;  // at least one
};

// What a launched plan still needs from the step before it. Each part is waited for at its point
// of use, so it may arrive while the step runs.
struct LateInputs {
  // Rows of the plan whose sequence ended meanwhile: they run, but need no head and no sample.
  std::vector<int32_t> ended_rows;
  // Rows whose tokens keep to a grammar, in plan order.
  std::vector<RowMasks> masks;
  // [masks, mask_words]: bit id % 64 of word id / 64 for each token that may be sampled. Unchanged
  // until the plan was applied.
  const uint64_t* mask_bits = nullptr;
  size_t mask_words = 0;
};

enum class RowStatus : uint8_t {
  kOk,
  kNan,
  kBadId,
  kNoToken,  // every token is forbidden
};

struct EmittedToken {
  TokenId id = 0;
  TokenLogprob logprob;          // when asked for
  std::vector<float> embedding;  // with the first token after a prompt that asks for it
};

struct RowResult {
  int64_t sequence = 0;
  int slot = 0;
  // Not kOk: what went wrong after the tokens that were emitted.
  RowStatus status = RowStatus::kOk;
  int num_drafts = 0;  // verified
  // Sampled tokens, in order: the drafts that were accepted and the one after them.
  int emitted_begin = 0;
  int num_emitted = 0;
  std::vector<TokenLogprob> prompt_logprobs;  // see PlanRow::prompt_logprobs
};

struct StepResult {
  int64_t step = 0;
  std::vector<RowResult> rows;  // in plan order
  std::vector<EmittedToken> emitted;
  int64_t device_us = 0;  // time the step took on the device

  std::span<const EmittedToken> EmittedOf(const RowResult& row) const {
    return std::span(emitted).subspan(static_cast<size_t>(row.emitted_begin),
                                      static_cast<size_t>(row.num_emitted));
  }
};

}  // namespace deepinfer
