// What is known already when a sequence starts or resumes: blocks of the prefix index, the prompt
// of another sample, and snapshots of row state.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/scheduler.h"

namespace deepinfer {
namespace {

// Positions between two snapshots of a prompt: at least this many, and this share of the position.
constexpr int kSnapshotsApartMin = 256;
constexpr int kSnapshotsApartShare = 8;

}  // namespace

// The longest cached prefix, into matches_. The last token is always computed: it is sampled from.
void Scheduler::FindPrefix(const Sequence& sequence) {
  matches_.clear();
  state_found_ = -1;
  if (!config_.prefix_caching || sequence.request->request.skip_prefix_cache ||
      WantsPromptLogprobs(sequence)) {
    return;
  }
  const auto bt = static_cast<size_t>(config_.block_tokens);
  const std::span<const TokenId> tokens(sequence.tokens);
  PrefixNode node = *sequence.root;
  for (size_t at = 0; at + bt < tokens.size(); at += bt) {
    const PrefixIndex::Match match = index_.Find(node, tokens.subspan(at, bt));
    if (match.block < 0) break;
    matches_.push_back(match);
    node = match.node;
  }
  if (config_.has_state) TrimToState();
}

// Log-probabilities need every prompt token computed.
bool Scheduler::WantsPromptLogprobs(const Sequence& sequence) const {
  return sequence.request->request.sampling.prompt_logprobs.has_value() &&
         !sequence.prompt_logprobs_sent && sequence.sample == 0;
}

// Shortens the hit to where its state can be had: the newest snapshot, or all of it when the window
// before its end is run again, which pays only when the hit is longer than that.
void Scheduler::TrimToState() {
  if (config_.replay_window > 0) {
    const auto hit = static_cast<int>(matches_.size()) * config_.block_tokens;
    if (hit <= config_.replay_window) matches_.clear();
    return;
  }
  while (!matches_.empty()) {
    state_found_ = states_.Find(matches_.back().node.serial);
    if (state_found_ >= 0) return;
    matches_.pop_back();
  }
}

// Compact mode: the suffix belongs to the prompt as it was sent, however it is cut, continued or
// resumed. Where it begins before the window of a hit, so does the replay.
void Scheduler::SetReplay(Sequence* sequence, int hit) const {
  sequence->replay = {};
  if (config_.replay_window == 0) return;
  ReplayBounds& replay = sequence->replay;
  if (!WantsPromptLogprobs(*sequence)) {
    replay.suffix_begin = std::max(0, sequence->prompt_len - config_.keep_tokens);
  }
  if (hit == 0) return;
  replay.write_floor = hit;
  replay.replay_begin = std::min(hit - config_.replay_window, replay.suffix_begin);
  sequence->planned = sequence->applied = replay.replay_begin;
}

// A chunk ends at the last whole block before the end of what is known, and at block ends before
// that, so that the state there can be kept for later requests.
int Scheduler::CutAtSavePoint(const Sequence& sequence, int count) const {
  if (config_.state_snapshots == 0 || !sequence.index_open) return count;
  const int bt = config_.block_tokens;
  const int begin = sequence.planned;
  const int end = begin + count;
  const int last = (sequence.num_tokens() - 1) / bt * bt;
  if (end > last) return begin < last ? last - begin : count;
  return end / bt * bt > begin ? end / bt * bt - begin : count;
}

// The last point always; those before it ever further apart, so that a long prompt takes a number
// of snapshots that grows with its logarithm.
void Scheduler::SaveState(Sequence* sequence, PlanRow* row) {
  const int bt = config_.block_tokens;
  const int end = sequence->planned;
  if (config_.state_snapshots == 0 || !sequence->index_open || end % bt != 0) return;
  const bool last = end == (sequence->num_tokens() - 1) / bt * bt;
  const int apart = std::max(kSnapshotsApartMin, end / kSnapshotsApartShare);
  if (!last && end - sequence->state_saved < apart) return;
  row->save_state = states_.Reserve();
  if (row->save_state >= 0) sequence->state_saved = end;
}

// After the row's blocks were offered to the index.
void Scheduler::KeepState(const Sequence& sequence, const PlanRow& row) {
  const int end = row.start + row.num_tokens;
  if (sequence.index_open && sequence.indexed_blocks * config_.block_tokens == end) {
    states_.Keep(row.save_state, sequence.node.serial);
  } else {
    states_.Drop(row.save_state);
  }
}

// Takes blocks for all known tokens, cached ones first. False, and nothing changed, when they would
// pass the watermark.
bool Scheduler::TakeBlocks(Sequence* sequence, StepPlan* plan) {
  RequestState* request = sequence->request;
  const bool alone = free_slots_.size() == slots_.size();
  if (!alone && blocks_.num_available() < sequence->available_wanted) return false;
  const bool fork = !request->shared_blocks.empty() && sequence->num_output() == 0;
  if (fork && request->shared_after_step > step_) return false;
  if (config_.prefix_caching && !sequence->root.has_value()) {
    sequence->root = index_.AcquireRoot(request->request.cache_salt);
  }
  const int bt = config_.block_tokens;
  const int total = (sequence->num_tokens() + bt - 1) / bt;
  int reused_idle = 0;
  matches_.clear();
  state_found_ = -1;
  int reused = 0;
  if (fork) {
    reused = (request->prompt_len() - 1) / bt;
  } else {
    FindPrefix(*sequence);
    reused = static_cast<int>(matches_.size());
    for (const PrefixIndex::Match& match : matches_) {
      reused_idle += blocks_.references(match.block) == 0 ? 1 : 0;
    }
  }
  const int taken = total - reused + reused_idle;
  const int headroom =
      alone ? 0
            : config_.num_blocks -
                  static_cast<int>(std::floor(config_.watermark * config_.num_blocks));
  if (blocks_.num_available() - taken < headroom) {
    if (alone && DropSoftReferences()) return TakeBlocks(sequence, plan);
    DI_CHECK(!alone, "{} blocks do not fit into an idle cache of {}", taken, config_.num_blocks);
    sequence->available_wanted = headroom + taken;
    return false;
  }
  sequence->blocks.reserve(
      static_cast<size_t>((request->prompt_len() + sequence->max_output) / bt + 1));
  if (fork) {
    ForkFromShare(sequence, plan);
    return true;
  }
  for (const PrefixIndex::Match& match : matches_) {
    blocks_.Retain(match.block);
    sequence->blocks.push_back(match.block);
  }
  for (int i = reused; i < total; ++i) sequence->blocks.push_back(blocks_.Allocate());
  sequence->planned = sequence->applied = reused * bt;
  sequence->state_saved = reused * bt;
  SetReplay(sequence, reused * bt);
  sequence->indexed_blocks = reused;
  sequence->index_open = config_.prefix_caching;
  if (config_.prefix_caching) {
    sequence->node = matches_.empty() ? *sequence->root : matches_.back().node;
  }
  return true;
}

// Sample i > 0 starts at the last prompt token: whole blocks before it are shared, the block that
// holds it is copied, since every sample writes its own continuation there.
void Scheduler::ForkFromShare(Sequence* sequence, StepPlan* plan) {
  RequestState* request = sequence->request;
  const int bt = config_.block_tokens;
  const int last = request->prompt_len() - 1;
  for (int i = 0; i < last / bt; ++i) {
    const int32_t block = request->shared_blocks[static_cast<size_t>(i)];
    blocks_.Retain(block);
    sequence->blocks.push_back(block);
  }
  const int32_t own = blocks_.Allocate();
  sequence->blocks.push_back(own);
  if (last % bt != 0) {
    sequence->copy_source = request->shared_blocks[static_cast<size_t>(last / bt)];
    blocks_.Retain(sequence->copy_source);
    plan->block_copies.emplace_back(sequence->copy_source, own);
  }
  sequence->planned = sequence->applied = last;
  sequence->indexed_blocks = 0;
  sequence->index_open = config_.prefix_caching;
  if (config_.prefix_caching) sequence->node = *sequence->root;
  const bool last_to_start = std::none_of(
      request->samples.begin(), request->samples.end(), [&](const std::unique_ptr<Sequence>& s) {
        return s.get() != sequence && s->phase == SequencePhase::kWaiting && s->tokens.empty();
      });
  if (last_to_start) ReleaseShare(request);
}

}  // namespace deepinfer
