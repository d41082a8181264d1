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

// The `count` ids from `first` on, each half as likely as the one before.
std::vector<std::pair<TokenId, float>> Top(TokenId first, float logprob, int count, int vocab) {
  std::vector<std::pair<TokenId, float>> top;
  for (int i = 0; i < std::min(count, vocab); ++i) {
    top.emplace_back((first + i) % vocab, logprob - 0.7F * static_cast<float>(i));
  }
  return top;
}

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

const StepDrafts& ScriptedRunner::DraftsOf(Ticket ticket) {
  if (launched_.empty() || launched_.back().ticket != ticket ||
      !launched_.back().plan->wants_drafts) {
    Fault("drafts of a step that wants none");
  }
  return no_drafts_;
}

void ScriptedRunner::Feed(Ticket ticket, const LateInputs& late) {
  for (Launched& step : launched_) {
    if (step.ticket != ticket) continue;
    if (step.fed) Fault("a step was fed twice");
    step.fed = true;
    step.late = late;
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
        setup,
        {},
        0,
        0,
        static_cast<int>(setup.emitted.size()),
        setup.load_state >= 0 ? snapshots_[setup.load_state] : 0xBAD};
  }
  const auto bt = static_cast<ptrdiff_t>(options_.block_tokens);
  for (const auto& [from, to] : plan.block_copies) {
    std::copy_n(memory_.begin() + from * bt, bt, memory_.begin() + to * bt);
  }
  result_.step = plan.step;
  result_.rows.assign(plan.rows.size(), {});
  result_.emitted.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    mask_ = nullptr;
    for (const RowMasks& masks : step.late.masks) {
      if (masks.row != static_cast<int32_t>(i)) continue;
      mask_ = step.late.mask_bits + static_cast<size_t>(masks.first) * step.late.mask_words;
    }
    RunRow(plan, plan.rows[i], &result_.rows[i]);
  }
  for (const int32_t row : step.late.ended_rows)
    result_.rows[static_cast<size_t>(row)].num_emitted = 0;
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
  const std::span<const TokenId> tokens = plan.TokensOf(row);
  if (tokens.empty()) {
    ContinueRow(row, &slot, result);
    return;
  }
  if (slot.length != row.start) {
    Fault(
        Format("sequence {}: starts at {}, {} are computed", row.sequence, row.start, slot.length));
  }
  if (static_cast<int>(tokens.size()) != row.num_tokens) Fault("token count of a row");
  const Request& request = *slot.setup.request;
  for (const TokenId token : tokens) {
    RunToken(&slot, token, result);
    if (row.prompt_logprobs && slot.length < static_cast<int>(request.prompt.size())) {
      const TokenId target = request.prompt[static_cast<size_t>(slot.length)];
      const uint64_t hash = *At(&slot, slot.length - 1);
      const float logprob = -static_cast<float>(hash % 1000) * 0.01F;
      const int count = request.sampling.prompt_logprobs.value_or(0);
      result->prompt_logprobs.push_back(
          {target, logprob, 1, Top(target, logprob, count, options_.vocab)});
    }
  }
  if (row.save_state >= 0) snapshots_[row.save_state] = slot.state;
  if (row.sample && result->status == RowStatus::kOk) Emit(&slot, result);
}

void ScriptedRunner::RunToken(Slot* slot, TokenId token, RowResult* result) {
  const uint64_t left =
      options_.has_state || slot->length == 0 ? slot->state : *At(slot, slot->length - 1);
  slot->state = Extend(slot->length == 0 ? 1 : left, token);
  *At(slot, slot->length) = slot->state;
  ++slot->length;
  ++tokens_computed_;
  if (token == options_.nan_token) result->status = RowStatus::kNan;
}

void ScriptedRunner::Emit(Slot* slot, RowResult* result) {
  const uint64_t hash = *At(slot, slot->length - 1);
  slot->last_token = Allowed(Pick(*slot, hash));
  ++slot->outputs;
  if (result->num_emitted == 0) result->emitted_begin = static_cast<int>(result_.emitted.size());
  ++result->num_emitted;
  const float logprob = -static_cast<float>(hash % 1000) * 0.01F;
  const int count = slot->setup.request->sampling.logprobs.value_or(0);
  result_.emitted.push_back(
      {slot->last_token,
       {slot->last_token, logprob, 1, Top(slot->last_token, logprob, count, options_.vocab)},
       {}});
}

// The row's token, then as many accepted drafts as the hash says, then garbage for rejected ones.
void ScriptedRunner::ContinueRow(const PlanRow& row, Slot* slot, RowResult* result) {
  if (slot->length > row.start) {
    Fault(
        Format("sequence {}: is at {}, the plan knows {}", row.sequence, slot->length, row.start));
  }
  if (row.num_tokens > 1 + options_.draft_tokens_max) Fault("more drafts than there are");
  const int wanted = mask_ == nullptr ? row.num_tokens : std::min(row.num_tokens, 1);
  const int count = std::min(wanted, slot->setup.length_max - slot->length);
  if (count <= 0) return;
  result->num_drafts = count - 1;
  const int end = slot->length + count;
  for (int i = 0; i < count; ++i) {
    RunToken(slot, slot->last_token, result);
    if (result->status != RowStatus::kOk) return;
    Emit(slot, result);
    if (*At(slot, slot->length - 1) % static_cast<uint64_t>(3) == 0) break;
  }
  for (int at = slot->length; at < end; ++at) *At(slot, at) = 0xBAD;
}

TokenId ScriptedRunner::Pick(const Slot& slot, uint64_t hash) const {
  const auto at = static_cast<size_t>(slot.outputs);
  if (at < options_.script.size()) return options_.script[at];
  const auto key = slot.setup.seed + static_cast<uint64_t>(slot.setup.sample_index);
  return static_cast<TokenId>(HashBytes64(&hash, sizeof hash, key) %
                              static_cast<uint64_t>(options_.vocab));
}

TokenId ScriptedRunner::Allowed(TokenId id) const {
  if (mask_ == nullptr) return id;
  for (int i = 0; i < options_.vocab; ++i) {
    const TokenId at = (id + i) % options_.vocab;
    if ((mask_[at / 64] >> (at % 64) & 1) != 0) return at;
  }
  return id;
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
