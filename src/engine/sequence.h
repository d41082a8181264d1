// Host state of an accepted request and of its samples. Owned by the scheduler, engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/prefix_index.h"
#include "deepinfer/request.h"
#include "text/grammar/grammar_compiler.h"
#include "engine/output_stream.h"
#include "engine/step_plan.h"

namespace deepinfer {

struct RequestState;

enum class SequencePhase : uint8_t {
  kGated,       // waits for its grammar, is in no queue yet
  kWaiting,     // in the waiting queue, holds no block and no slot
  kRunning,     // holds a slot and blocks
  kPreempting,  // out of further plans; back to waiting when nothing of it is in flight
  kFinished,    // ended; blocks and slot go when nothing of it is in flight
};

// One sample. Positions count prompt and output tokens from 0. What planning a decode row reads
// comes first, so that it is in two cache lines.
struct alignas(64) Sequence {
  RequestState* request = nullptr;
  int64_t id = 0;
  SequencePhase phase = SequencePhase::kWaiting;
  bool slot_fresh = false;    // no row was planned in this slot yet
  bool slot_sampled = false;  // the slot's device state holds the token after the last planned one
  bool index_open = false;    // later blocks may still go into the index
  int slot = -1;
  int in_flight = 0;          // launched steps not yet applied
  int samples_in_flight = 0;  // of them, those that sample
  // Query tokens of the launched steps not yet applied: at most and at least. They differ where
  // drafts are verified.
  int tokens_in_flight = 0;
  int tokens_in_flight_min = 0;
  int planned = 0;  // positions computed or in flight, at most
  int applied = 0;  // positions computed
  int prompt_len = 0;
  int max_output = 0;        // max_tokens clamped to the context
  int64_t planned_step = 0;  // of its newest row

  std::vector<TokenId> tokens;  // prompt and committed output; empty before the first step
  std::vector<int32_t> blocks;  // block table
  int blocks_sent = 0;          // of them, known to the runner
  int sample = 0;

  // Blocks of the index that equal blocks of this table and are parents of its later entries; kept
  // so that a parent is never evicted before its children. May be dropped under pressure.
  std::vector<int32_t> parents_held;
  int32_t copy_source = -1;        // referenced until the step that copies it was applied
  int blocks_coming = 0;           // while leaving with steps in flight: what will be available
  std::optional<PrefixNode> root;  // acquired
  PrefixNode node;                 // chain up to indexed_blocks
  int indexed_blocks = 0;

  int state_saved = 0;  // newest position of which a snapshot exists or is on its way
  ReplayBounds replay;

  int64_t queue_position = -1;  // in the waiting queue
  int available_wanted = 0;     // admission cannot succeed below this many available blocks

  std::unique_ptr<OutputStream> output;
  // Where the committed output stands in the grammar; made anew from it after a preemption.
  std::unique_ptr<GrammarMatcher> matcher;
  std::vector<std::optional<TokenLogprob>> prompt_logprobs;  // until delivered
  bool prompt_logprobs_sent = false;
  int cached_tokens = 0;
  int preemptions = 0;
  int64_t first_step_us = 0;
  int64_t first_token_us = 0;
  int64_t last_token_us = 0;

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_output() const { return tokens.empty() ? 0 : num_tokens() - prompt_len; }
  // Tokens that exist at least once everything in flight is done.
  int expected_tokens() const { return num_tokens() + samples_in_flight; }
  // Positions that it may ever compute: the last token is not computed.
  int length_max() const { return prompt_len + (max_output > 0 ? max_output - 1 : 0); }
  void UpdatePlanned() {
    const int bound = applied + tokens_in_flight;
    planned = bound < length_max() ? bound : length_max();
  }
};

struct RequestState {
  RequestId id = 0;
  Request request;
  OutputSink* sink = nullptr;
  GrammarOrder grammar;
  uint64_t seed = 0;
  int max_output = 0;
  int64_t order = 0;  // of arrival
  int64_t arrival_us = 0;
  int64_t deadline_position = -1;  // in the scheduler's heap of deadlines

  // Created so far: the first alone until the prompt was computed once.
  std::vector<std::unique_ptr<Sequence>> samples;
  int unfinished = 0;    // of n samples
  int unreclaimed = 0;   // of the created ones
  bool started = false;  // its first step was planned; it no longer counts as queued
  bool ending = false;   // all samples end now; none may start
  int longest_output = 0;

  // Blocks of the computed prompt, kept for the samples that still have to start.
  std::vector<int32_t> shared_blocks;
  int64_t shared_after_step = 0;  // the step that computes their end
  int cached_tokens = 0;

  int prompt_len() const { return static_cast<int>(request.prompt.size()); }
  int n() const { return request.sampling.n; }
};

// Lower priority values first, then arrival, then sample number.
struct RunOrder {
  int priority = 0;
  int sample = 0;
  int64_t arrival = 0;

  bool operator<(const RunOrder& other) const {
    if (priority != other.priority) return priority < other.priority;
    if (arrival != other.arrival) return arrival < other.arrival;
    return sample < other.sample;
  }
};

struct RunOrderOf {
  RunOrder operator()(const Sequence& s) const {
    return {s.request->request.priority, s.sample, s.request->order};
  }
};

inline bool RunsBefore(const Sequence& a, const Sequence& b) {
  return RunOrderOf()(a) < RunOrderOf()(b);
}

struct DeadlineOf {
  int64_t operator()(const RequestState& request) const { return *request.request.deadline_us; }
};

}  // namespace deepinfer
