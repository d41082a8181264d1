// What a step computes. Decode rows first (their users see every delay), then prompts by age; a
// prompt that got nothing for prefill_delay_steps_max steps goes first once.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "engine/scheduler.h"

namespace deepinfer {
namespace {

constexpr size_t kPrefetchAhead = 8;

}  // namespace

const StepPlan& Scheduler::Plan(int64_t now_us) {
  ExpireDeadlines(now_us);
  StepPlan& plan = plans_[next_plan_];
  plan.Clear();
  plan.step = step_ + 1;
  budget_ = config_.max_num_batched_tokens;
  key_budget_ = config_.prefill_max_sum_seqlen_k;
  prefill_rows_ = 0;
  shortage_ = 0;
  const auto prefills = [&] {
    PlanRunningPrefills(&plan);
    PlanAdmissions(&plan, now_us);
  };
  if (starved_steps_ >= config_.prefill_delay_steps_max && HasWaitingPrefill()) {
    // Half of the step, so that decode rows are late by one step at most.
    const int kept = budget_ / 2;
    budget_ -= kept;
    prefills();
    budget_ += kept;
    PlanDecodes(&plan);
  } else {
    PlanDecodes(&plan);
    prefills();
  }
  const bool starved = prefill_rows_ == 0 && budget_ == 0 && HasWaitingPrefill();
  starved_steps_ = starved ? starved_steps_ + 1 : 0;
  if (!plan.empty()) {
    ++step_;
    next_plan_ = (next_plan_ + 1) % plans_.size();
    metrics_->iteration_tokens.Record(config_.max_num_batched_tokens - budget_);
  }
  UpdateGauges();
  return plan;
}

bool Scheduler::HasWaitingPrefill() const {
  if (!waiting_.empty() && !free_slots_.empty()) return true;
  return std::any_of(running_.begin(), running_.end(),
                     [this](const Sequence* sequence) { return NeedsPrefill(*sequence); });
}

bool Scheduler::CanDecode(const Sequence& sequence) const {
  return sequence.phase == SequencePhase::kRunning && sequence.slot_sampled &&
         sequence.planned_step <= step_ &&
         sequence.expected_tokens() - sequence.prompt_len < sequence.max_output;
}

bool Scheduler::NeedsPrefill(const Sequence& sequence) const {
  return sequence.phase == SequencePhase::kRunning && !sequence.slot_sampled &&
         sequence.planned < sequence.num_tokens();
}

void Scheduler::PlanDecodes(StepPlan* plan) {
  // Making room preempts, which changes running_; sequences themselves stay.
  candidates_.assign(running_.begin(), running_.end());
  const size_t count = candidates_.size();
  // When not all fit, the next step goes on where this one stops.
  const bool rotate = count > static_cast<size_t>(std::max(budget_, 0));
  const size_t first = rotate ? decode_cursor_ % count : 0;
  const int drafts = DraftsPerRow();
  for (size_t i = 0; i < count && budget_ > 0; ++i) {
    const size_t at = first + i < count ? first + i : first + i - count;
    Sequence* sequence = candidates_[at];
    // The forward pass has emptied the caches; sequences are scattered.
    if (i + kPrefetchAhead < count) {
      const Sequence* ahead = candidates_[(at + kPrefetchAhead) % count];
      __builtin_prefetch(ahead);
      __builtin_prefetch(reinterpret_cast<const char*>(ahead) + 64);
    }
    if (!CanDecode(*sequence) || !PlanDecodeRow(sequence, drafts, plan)) continue;
    decode_cursor_ = at + 1;
  }
  // A victim's blocks come back two plans later, which is how far the reserve looks ahead.
  while (!running_.empty() && blocks_.num_available() < OldestReserve()) {
    if (!MakeRoom(running_.front())) break;
  }
}

// Every row gets its token before any row gets drafts, and prompts that wait get half of the step.
int Scheduler::DraftsPerRow() const {
  if (config_.draft_tokens_max == 0 || running_.empty()) return 0;
  const int budget = HasWaitingPrefill() ? budget_ / 2 : budget_;
  const int share = budget / static_cast<int>(running_.size()) - 1;
  return std::clamp(share, 0, config_.draft_tokens_max);
}

// Positions and blocks by upper bounds: how many tokens the step in flight commits is not known.
// Drafts take no block that anyone else may need; without room there are fewer of them.
bool Scheduler::PlanDecodeRow(Sequence* sequence, int drafts_max, StepPlan* plan) {
  const int length_max = sequence->length_max();
  const int left = length_max - sequence->applied - sequence->tokens_in_flight_min;
  int count = std::min({1 + drafts_max, left, budget_});
  const int bt = config_.block_tokens;
  const int positions = std::min(sequence->planned + count, length_max);
  const int held = static_cast<int>(sequence->blocks.size());
  const int wanted = (positions + bt - 1) / bt - held;
  const int reserve = sequence == running_.front() ? 0 : OldestReserve();
  if (count > 1 && wanted > 0 && blocks_.num_available() - reserve < wanted) {
    count = std::max(1, std::min(count, held * bt - sequence->planned));
  }
  if (!EnsureBlocks(sequence, std::min(sequence->planned + count, length_max))) return false;
  AddRow(sequence, count, plan);
  return true;
}

void Scheduler::PlanRunningPrefills(StepPlan* plan) {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    if (NeedsPrefill(*running_[i])) PlanPrefillChunk(running_[i], plan);
  }
}

// Blocks of all known tokens were taken at admission. False when the limits leave no token.
bool Scheduler::PlanPrefillChunk(Sequence* sequence, StepPlan* plan) {
  int count = std::min(sequence->num_tokens() - sequence->planned, budget_);
  if (config_.long_prefill_token_threshold > 0) {
    count = std::min(count, config_.long_prefill_token_threshold);
  }
  if (config_.prefill_max_sum_seqlen_k > 0 && prefill_rows_ > 0) {
    count = static_cast<int>(std::min<int64_t>(count, key_budget_ - sequence->planned));
  }
  if (count <= 0) return false;
  count = CutAtSavePoint(*sequence, count);
  AddRow(sequence, count, plan);
  SaveState(sequence, &plan->rows.back());
  ++prefill_rows_;
  key_budget_ -= sequence->planned;
  const RequestState& request = *sequence->request;
  if (!config_.has_state && sequence->planned == request.prompt_len() && sequence->sample == 0 &&
      static_cast<int>(request.samples.size()) < request.n()) {
    SharePrompt(sequence);
  }
  return true;
}

void Scheduler::AddRow(Sequence* sequence, int num_tokens, StepPlan* plan) {
  PlanRow row;
  row.sequence = sequence->id;
  row.slot = sequence->slot;
  row.reset = sequence->slot_fresh;
  row.start = sequence->planned;
  row.num_tokens = num_tokens;
  row.tokens_begin = static_cast<int>(plan->tokens.size());
  if (!sequence->slot_sampled) {
    row.num_known = num_tokens;
    const auto from = sequence->tokens.begin() + sequence->planned;
    plan->tokens.insert(plan->tokens.end(), from, from + num_tokens);
    row.sample =
        sequence->planned + num_tokens == sequence->num_tokens() && sequence->max_output > 0;
    row.prompt_logprobs = sequence->sample == 0 && !sequence->prompt_logprobs_sent &&
                          sequence->request->request.sampling.prompt_logprobs.has_value();
  } else {
    row.sample = true;
    plan->wants_drafts |= num_tokens > 1 && sequence->request->grammar.ticket != nullptr;
  }
  row.blocks_begin = static_cast<int>(plan->blocks.size());
  row.num_blocks = static_cast<int>(sequence->blocks.size()) - sequence->blocks_sent;
  plan->blocks.insert(plan->blocks.end(), sequence->blocks.end() - row.num_blocks,
                      sequence->blocks.end());
  sequence->blocks_sent = static_cast<int>(sequence->blocks.size());
  sequence->slot_fresh = false;
  sequence->tokens_in_flight += num_tokens;
  sequence->tokens_in_flight_min += row.num_known > 0 ? num_tokens : 1;
  sequence->UpdatePlanned();
  sequence->planned_step = plan->step;
  ++sequence->in_flight;
  if (row.sample) {
    ++sequence->samples_in_flight;
    sequence->slot_sampled = true;
  }
  budget_ -= num_tokens;
  plan->rows.push_back(row);
}

// Blocks that the oldest sequence needs for its next two steps; nobody else may take them.
int Scheduler::OldestReserve() const {
  if (running_.empty()) return 0;
  const Sequence& oldest = *running_.front();
  const int bt = config_.block_tokens;
  const int positions = std::min(oldest.planned + 2, oldest.length_max());
  return std::max(0, (positions + bt - 1) / bt - static_cast<int>(oldest.blocks.size()));
}

// Gives the sequence blocks for its first `positions` positions. False: it sits out this step.
bool Scheduler::EnsureBlocks(Sequence* sequence, int positions) {
  while (static_cast<int>(sequence->blocks.size()) * config_.block_tokens < positions) {
    const int reserve = sequence == running_.front() ? 0 : OldestReserve();
    if (blocks_.num_available() - reserve < 1) {
      if (MakeRoom(sequence)) continue;
      ++shortage_;
      return false;
    }
    sequence->blocks.push_back(blocks_.Allocate());
  }
  return true;
}

// True when something became available at once and the caller should look again. Victims are the
// newest sequences, never one that runs before the sequence in need; those with steps in flight
// give their blocks later, and no more of them are taken than the shortage needs.
bool Scheduler::MakeRoom(Sequence* for_sequence) {
  if (DropSoftReferences()) return true;
  while (blocks_coming_ < shortage_ + 1) {
    Sequence* victim = running_.back();
    if (victim == for_sequence || RunsBefore(*victim, *for_sequence)) return false;
    const bool at_once = victim->in_flight == 0;
    Preempt(victim);
    if (at_once) return true;
  }
  return false;
}

// Gives up what only saves work later: prompts kept for samples that have not started, and parents
// of blocks in the index.
bool Scheduler::DropSoftReferences() {
  const int before = blocks_.num_available();
  while (!sharing_.empty()) ReleaseShare(sharing_.back());
  for (Sequence* sequence : running_) {
    if (sequence->parents_held.empty()) continue;
    for (size_t i = sequence->parents_held.size(); i-- > 0;) {
      blocks_.Release(sequence->parents_held[i]);
    }
    sequence->parents_held.clear();
    sequence->index_open = false;
  }
  return blocks_.num_available() > before;
}

void Scheduler::Preempt(Sequence* victim) {
  LeaveRunning(victim);
  ++victim->preemptions;
  AddRelaxed(&metrics_->preemptions, 1);
  if (victim->in_flight == 0) {
    RequeuePreempted(victim);
    return;
  }
  victim->phase = SequencePhase::kPreempting;
  ++preempting_;
  MarkLeaving(victim);
}

// Everything the sequence needs to go on is in its tokens; it is computed again when resumed.
void Scheduler::RequeuePreempted(Sequence* sequence) {
  ReleaseBlocks(sequence);
  FreeSlot(sequence);
  sequence->planned = 0;
  sequence->applied = 0;
  sequence->slot_sampled = false;
  sequence->prompt_logprobs.clear();
  sequence->matcher.reset();
  EnterQueue(sequence);
}

void Scheduler::PlanAdmissions(StepPlan* plan, int64_t now_us) {
  while (budget_ > 0 && !free_slots_.empty() && !waiting_.empty()) {
    if (preempting_ > 0 || shortage_ > 0) return;
    if (config_.prefill_max_sum_seqlen_k > 0 && prefill_rows_ > 0 && key_budget_ <= 0) return;
    if (!AdmitSequence(waiting_.Front(), plan, now_us)) return;
  }
}

bool Scheduler::AdmitSequence(Sequence* sequence, StepPlan* plan, int64_t now_us) {
  RequestState* request = sequence->request;
  if (sequence->tokens.empty()) {
    if (!spare_tokens_.empty()) {
      sequence->tokens = std::move(spare_tokens_.back());
      sequence->blocks = std::move(spare_blocks_.back());
      spare_tokens_.pop_back();
      spare_blocks_.pop_back();
    }
    sequence->tokens.clear();
    sequence->tokens.reserve(request->request.prompt.size() +
                             static_cast<size_t>(sequence->max_output));
    sequence->tokens.assign(request->request.prompt.begin(), request->request.prompt.end());
  }
  if (!TakeBlocks(sequence, plan)) return false;
  waiting_.Remove(sequence);
  std::pop_heap(free_slots_.begin(), free_slots_.end(), std::greater<>());
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<size_t>(sequence->slot)] = sequence;
  sequence->slot_fresh = true;
  sequence->phase = SequencePhase::kRunning;
  running_.insert(
      std::upper_bound(running_.begin(), running_.end(), sequence,
                       [](const Sequence* a, const Sequence* b) { return RunsBefore(*a, *b); }),
      sequence);
  plan->setups.push_back(
      {.slot = sequence->slot,
       .sequence = sequence->id,
       .request = &request->request,
       .sample_index = sequence->sample,
       .seed = request->seed,
       .length_max = sequence->length_max(),
       .load_state = state_found_,
       .replay = sequence->replay,
       .emitted = {sequence->tokens.begin() + request->prompt_len(), sequence->tokens.end()}});
  if (sequence->first_step_us == 0) sequence->first_step_us = now_us;
  if (!request->started) {
    LeaveQueued(request);
    metrics_->queue_time.Record(static_cast<double>(now_us - request->arrival_us) * 1e-6);
    AddRelaxed(&metrics_->prompt_tokens, request->prompt_len());
    request->cached_tokens = sequence->planned;
    sequence->cached_tokens = sequence->planned;
    if (config_.prefix_caching) {
      AddRelaxed(&metrics_->prefix_cache_queries, request->prompt_len());
      AddRelaxed(&metrics_->prefix_cache_hits, sequence->planned);
    }
  }
  // When the key limit leaves no token for it, it starts with the next step.
  PlanPrefillChunk(sequence, plan);
  return true;
}

}  // namespace deepinfer
