// What the scheduler asks of one step and what the runner answers: plain values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer {

// One sequence's part of a step. Blocks and tokens named here are sent once and kept by the runner
// in its row state (the runner owns the block table of a slot after they were sent).
struct PlanRow {
  int64_t sequence = 0;              // host identity, echoed in the result
  int slot = 0;                      // row slot of the runner
  bool reset = false;                // first row of this sequence in this slot: clear row state
  int start = 0;                     // position of the first query token
  int num_tokens = 0;                // query tokens (upper bound)
  // Known tokens (prompt or replayed); empty: the token sampled last for this slot, which only the
  // device may know yet.
  std::vector<TokenId> tokens;
  std::vector<int32_t> new_blocks;   // block ids appended to the slot's table before the step
  bool sample = false;               // the last query token is sampled
  int64_t sample_position = 0;       // absolute position of the token that will be sampled
  // Wants the log-probability of every prompt token that follows a query token of this row.
  bool prompt_logprobs = false;
};

struct StepPlan {
  int64_t step = 0;
  std::vector<PlanRow> rows;
  std::vector<std::pair<int32_t, int32_t>> block_copies;   // before the step: (source, destination)
  bool empty() const { return rows.empty(); }
};

enum class RowStatus : uint8_t { kOk, kNan, kBadId };

struct RowResult {
  int64_t sequence = 0;
  int slot = 0;
  RowStatus status = RowStatus::kOk;
  std::vector<TokenId> tokens;            // sampled; empty when the row did not sample
  std::vector<TokenLogprob> logprobs;     // one per token when asked for
  std::vector<TokenLogprob> prompt_logprobs;  // see PlanRow::prompt_logprobs
};

struct StepResult {
  int64_t step = 0;
  std::vector<RowResult> rows;            // in plan order
  int64_t device_us = 0;                  // time the step took on the device
};

}  // namespace deepinfer
