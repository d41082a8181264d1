// Every invariant of the scheduler, recounted from scratch. For tests and debugging.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "engine/scheduler.h"

namespace deepinfer {

std::string Scheduler::AuditSequence(const Sequence& s) const {
  const bool holds_slot = s.slot >= 0 && slots_[static_cast<size_t>(s.slot)] == &s;
  const bool in_running = std::find(running_.begin(), running_.end(), &s) != running_.end();
  if ((s.slot >= 0) != holds_slot)
    return Format("sequence {}: slot {} is not its own", s.id, s.slot);
  if (in_running != (s.phase == SequencePhase::kRunning)) return Format("sequence {}: phase", s.id);
  if ((s.queue_position >= 0) != (s.phase == SequencePhase::kWaiting)) {
    return Format("sequence {}: queue", s.id);
  }
  if (s.in_flight < 0 || s.in_flight > 2 || s.samples_in_flight < 0 ||
      s.samples_in_flight > s.in_flight) {
    return Format("sequence {}: {} steps and {} samples in flight", s.id, s.in_flight,
                  s.samples_in_flight);
  }
  const bool waits = s.phase == SequencePhase::kWaiting || s.phase == SequencePhase::kGated;
  if (waits && (holds_slot || !s.blocks.empty() || s.in_flight > 0)) {
    return Format("sequence {}: waits but holds something", s.id);
  }
  if (s.phase == SequencePhase::kPreempting && s.in_flight == 0) {
    return Format("sequence {}: preempting with nothing in flight", s.id);
  }
  if (s.phase == SequencePhase::kFinished && s.in_flight == 0 &&
      (holds_slot || !s.blocks.empty())) {
    return Format("sequence {}: ended but holds something", s.id);
  }
  if (holds_slot && s.planned > static_cast<int>(s.blocks.size()) * config_.block_tokens) {
    return Format("sequence {}: {} positions in {} blocks", s.id, s.planned, s.blocks.size());
  }
  const int drafts = s.samples_in_flight * config_.draft_tokens_max;
  if (s.tokens_in_flight_min > s.tokens_in_flight || (s.in_flight == 0 && s.tokens_in_flight > 0)) {
    return Format("sequence {}: {} to {} tokens in {} steps", s.id, s.tokens_in_flight_min,
                  s.tokens_in_flight, s.in_flight);
  }
  if (s.phase == SequencePhase::kRunning &&
      (s.planned > s.expected_tokens() + drafts || s.planned > s.length_max() ||
       s.planned != std::min(s.applied + s.tokens_in_flight, s.length_max()) ||
       s.applied > s.num_tokens() || s.applied > s.planned)) {
    return Format("sequence {}: applied {} planned {} tokens {}", s.id, s.applied, s.planned,
                  s.num_tokens());
  }
  return {};
}

std::string Scheduler::Audit() const {
  if (!blocks_.Consistent()) return "block counters disagree";
  if (!states_.Consistent()) return "snapshots disagree";
  if (requests_.empty() && states_.num_reserved() > 0) return "snapshots were lost";
  std::vector<int> references(static_cast<size_t>(config_.num_blocks), 0);
  int preempting = 0;
  int coming = 0;
  int64_t waiting = 0;
  int64_t gated = 0;
  size_t slots_held = 0;
  for (const auto& [id, request] : requests_) {
    if (request->unfinished == 0 && request->unreclaimed == 0)
      return Format("request {} is done", id);
    for (const int32_t block : request->shared_blocks) ++references[static_cast<size_t>(block)];
    for (const std::unique_ptr<Sequence>& s : request->samples) {
      if (std::string fault = AuditSequence(*s); !fault.empty()) return fault;
      for (const int32_t block : s->blocks) ++references[static_cast<size_t>(block)];
      for (const int32_t block : s->parents_held) ++references[static_cast<size_t>(block)];
      if (s->copy_source >= 0) ++references[static_cast<size_t>(s->copy_source)];
      preempting += s->phase == SequencePhase::kPreempting ? 1 : 0;
      waiting += s->phase == SequencePhase::kWaiting ? 1 : 0;
      gated += s->phase == SequencePhase::kGated ? 1 : 0;
      coming += s->blocks_coming;
      slots_held += s->slot >= 0 ? 1 : 0;
    }
  }
  for (int32_t block = 0; block < config_.num_blocks; ++block) {
    if (blocks_.references(block) != references[static_cast<size_t>(block)]) {
      return Format("block {} has {} references, {} expected", block, blocks_.references(block),
                    references[static_cast<size_t>(block)]);
    }
  }
  if (slots_held + free_slots_.size() != slots_.size()) return "slots were lost";
  if (preempting != preempting_) return "count of preempting sequences";
  if (coming != blocks_coming_) return "count of blocks to come";
  if (gated != gated_) return "count of sequences that wait for a grammar";
  if (waiting != waiting_.size()) return "count of waiting sequences";
  for (size_t i = 1; i < running_.size(); ++i) {
    if (!RunsBefore(*running_[i - 1], *running_[i])) return "running sequences are out of order";
  }
  return {};
}

}  // namespace deepinfer
