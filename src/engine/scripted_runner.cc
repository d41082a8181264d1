#include "engine/scripted_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/hash.h"

namespace deepinfer {
namespace {

uint64_t Extend(uint64_t hash, TokenId token) { return HashBytes64(&token, sizeof token, hash); }

}  // namespace

ScriptedRunner::ScriptedRunner(ScriptedRunnerOptions options)
    : options_(std::move(options)),
      slots_(static_cast<size_t>(options_.num_slots)),
      memory_(static_cast<size_t>(options_.num_blocks) *
              static_cast<size_t>(options_.block_tokens)) {}

StepRunner::Ticket ScriptedRunner::Launch(const StepPlan& plan) {
  if (plan.rows.empty()) Fault("an empty plan was launched");
  if (launched_.size() > 1) Fault("more than two steps are open");
  launched_.push_back({next_ticket_, &plan, false, {}});
  return next_ticket_++;
}

void ScriptedRunner::Feed(Ticket ticket, const LateInputs& late) {
  for (Launched& step : launched_) {
    if (step.ticket != ticket) continue;
    if (step.fed) Fault("a step was fed twice");
    step.fed = true;
    step.ended_rows = late.ended_rows;
    return;
  }
  Fault("an unknown step was fed");
}

const StepResult& ScriptedRunner::Collect(Ticket ticket) {
  DI_CHECK(!launched_.empty() && launched_.front().ticket == ticket, "step {} is not next", ticket);
  const Launched step = std::move(launched_.front());
  launched_.pop_front();
  if (!step.fed) Fault("a step was collected before it was fed");
  const auto begin = std::chrono::steady_clock::now();
  Run(step);
  const auto busy = std::chrono::microseconds(options_.step_us);
  while (std::chrono::steady_clock::now() - begin < busy) {
  }
  result_.device_us = options_.step_us;
  return result_;
}

void ScriptedRunner::Run(const Launched& step) {
  const StepPlan& plan = *step.plan;
  ++steps_;
  for (const SlotSetup& setup : plan.setups) {
    slots_[static_cast<size_t>(setup.slot)] = {
        setup, {}, 0, 0, static_cast<int>(setup.emitted.size())};
  }
  const auto bt = static_cast<ptrdiff_t>(options_.block_tokens);
  for (const auto& [from, to] : plan.block_copies) {
    std::copy_n(memory_.begin() + from * bt, bt, memory_.begin() + to * bt);
  }
  result_.step = plan.step;
  result_.rows.assign(plan.rows.size(), {});
  for (size_t i = 0; i < plan.rows.size(); ++i) RunRow(plan, plan.rows[i], &result_.rows[i]);
  for (const int32_t row : step.ended_rows) result_.rows[static_cast<size_t>(row)].sampled = false;
}

uint64_t* ScriptedRunner::At(Slot* slot, int position) {
  const int block_index = position / options_.block_tokens;
  if (block_index >= static_cast<int>(slot->blocks.size())) {
    Fault(Format("sequence {}: no block for position {}", slot->setup.sequence, position));
    return memory_.data();
  }
  return memory_.data() +
         static_cast<size_t>(slot->blocks[static_cast<size_t>(block_index)]) *
             static_cast<size_t>(options_.block_tokens) +
         static_cast<size_t>(position % options_.block_tokens);
}

void ScriptedRunner::RunRow(const StepPlan& plan, const PlanRow& row, RowResult* result) {
  Slot& slot = slots_[static_cast<size_t>(row.slot)];
  result->sequence = row.sequence;
  result->slot = row.slot;
  if (slot.setup.sequence != row.sequence) {
    Fault(Format("slot {} was not set up for {}", row.slot, row.sequence));
  }
  if (row.reset) {
    slot.blocks.clear();
    slot.length = row.start;
  }
  const std::span<const int32_t> blocks = plan.BlocksOf(row);
  slot.blocks.insert(slot.blocks.end(), blocks.begin(), blocks.end());
  if (slot.length != row.start) {
    Fault(
        Format("sequence {}: starts at {}, {} are computed", row.sequence, row.start, slot.length));
  }
  std::span<const TokenId> tokens = plan.TokensOf(row);
  if (tokens.empty()) tokens = {&slot.last_token, 1};
  if (static_cast<int>(tokens.size()) != row.num_tokens) Fault("token count of a row");
  const Request& request = *slot.setup.request;
  for (const TokenId token : tokens) {
    const uint64_t before = slot.length == 0 ? 1 : *At(&slot, slot.length - 1);
    const uint64_t hash = Extend(before, token);
    *At(&slot, slot.length) = hash;
    ++slot.length;
    ++tokens_computed_;
    if (token == options_.nan_token) result->status = RowStatus::kNan;
    if (row.prompt_logprobs && slot.length < static_cast<int>(request.prompt.size())) {
      const TokenId target = request.prompt[static_cast<size_t>(slot.length)];
      result->prompt_logprobs.push_back({target, -static_cast<float>(hash % 1000) * 0.01F, 1, {}});
    }
  }
  if (!row.sample || result->status != RowStatus::kOk) return;
  result->sampled = true;
  const uint64_t hash = *At(&slot, slot.length - 1);
  result->token = Pick(slot, hash);
  result->logprob = {result->token, -static_cast<float>(hash % 1000) * 0.01F, 1, {}};
  slot.last_token = result->token;
  ++slot.outputs;
}

TokenId ScriptedRunner::Pick(const Slot& slot, uint64_t hash) const {
  const auto at = static_cast<size_t>(slot.outputs);
  if (at < options_.script.size()) return options_.script[at];
  const auto key = slot.setup.seed + static_cast<uint64_t>(slot.setup.sample_index);
  return static_cast<TokenId>(HashBytes64(&hash, sizeof hash, key) %
                              static_cast<uint64_t>(options_.vocab));
}

TokenId ScriptedRunner::Next(uint64_t seed, int sample, std::span<const TokenId> tokens,
                             int outputs) const {
  uint64_t hash = 1;
  for (const TokenId token : tokens) hash = Extend(hash, token);
  Slot slot;
  slot.setup.seed = seed;
  slot.setup.sample_index = sample;
  slot.outputs = outputs;
  return Pick(slot, hash);
}

void ScriptedRunner::Fault(std::string what) {
  if (fault_.empty()) fault_ = std::move(what);
}

}  // namespace deepinfer
