// Decides what each step computes: admission, chunked prefill, decode, preemption, prefix reuse.
// Plan names rows and upper bounds from host counters alone and may run while earlier steps are
// still in flight; Apply commits what a step produced. Includes no device type. One owner: the
// engine thread. The sinks it calls must not call back.
//
// Retirement is two-phase: a sequence that ended or was preempted leaves the next plan at once and
// gives blocks and slot back when no launched step of it is in flight.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/block_manager.h"
#include "cache/prefix_index.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "engine/indexed_heap.h"
#include "engine/metrics.h"
#include "engine/sequence.h"
#include "engine/state_cache.h"
#include "engine/step_plan.h"

namespace deepinfer {

struct SchedulerConfig {
  int max_num_seqs = 1;
  int max_num_batched_tokens = 1;
  int long_prefill_token_threshold = 0;  // 0: none
  int64_t prefill_max_sum_seqlen_k = 0;  // 0: none
  int prefill_delay_steps_max = 4;
  int max_model_len = 1;
  int block_tokens = 16;
  int32_t num_blocks = 1;
  double watermark = 0.9;
  int draft_tokens_max = 0;  // drafts that a row may verify; 0: no speculation
  // Models with row state: a prefix can be reused where a snapshot of it exists, or, with a window,
  // by running the window before its end again.
  bool has_state = false;
  int32_t state_snapshots = 0;
  int replay_window = 0;  // > 0: compact mode
  int keep_tokens = 0;    // of a prompt, that run the whole stack in the compact mode
  bool prefix_caching = true;
  std::vector<TokenId> eos_ids;
};

class Scheduler {
 public:
  // `tokenizer` (nullptr: ids only) and `metrics` must outlive this object.
  Scheduler(SchedulerConfig config, const Tokenizer* tokenizer, EngineMetrics* metrics);
  ~Scheduler();

  // Whether a request of this prompt can run at all, before it is queued: the context, and the
  // blocks of its worst case ceil((prompt + max_tokens) / block) + 1. max_tokens is clamped to the
  // context first; the clamped value is the result.
  static Result<int> CheckFits(const SchedulerConfig& config, const Request& request);

  // Queues a request that passed CheckFits and ValidateSampling, at once or when its grammar is
  // ready.
  void Admit(std::unique_ptr<RequestState> request);
  // The grammar of a request was compiled, or cannot be. Ids that wait for none are ignored.
  void GrammarReady(RequestId id, int64_t now_us);
  // Ends a request; unknown ids are ignored.
  void Cancel(RequestId id, int64_t now_us);
  void CancelAll(int64_t now_us);
  // Sends the running samples of a request back to the queue; they are computed again from their
  // tokens and go on as if nothing had happened.
  void PreemptRequest(RequestId id);

  // The next step; empty when there is nothing to do. Valid and unchanged until it was applied; at
  // most two plans that are not empty may be open.
  const StepPlan& Plan(int64_t now_us);
  // What an open plan does not know yet; `drafts` of its rows where it wants them. Valid until the
  // next call. Ends samples whose grammar has no way on.
  const LateInputs& LateInputsOf(const StepPlan& plan, const StepDrafts& drafts, int64_t now_us);
  void Apply(const StepPlan& plan, const StepResult& result, int64_t now_us);

  bool idle() const { return requests_.empty(); }
  int64_t num_requests() const { return static_cast<int64_t>(requests_.size()); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int64_t num_waiting() const { return waiting_.size(); }
  // The next deadline of an unfinished request, or -1.
  int64_t NextDeadlineUs() const;
  const BlockManager& blocks() const { return blocks_; }
  int num_free_slots() const { return static_cast<int>(free_slots_.size()); }

  // Checks every invariant that holds between calls; an empty string or what is broken. For tests,
  // O(everything).
  std::string Audit() const;

 private:
  // scheduler.cc: life of a request.
  void Finish(Sequence* sequence, FinishReason reason, OutputDelta delta, int64_t now_us);
  void FailSequence(Sequence* sequence, const Status& why, int64_t now_us);
  void EndRequest(RequestState* request, FinishReason reason, const Status& why, int64_t now_us);
  void ReleaseBlocks(Sequence* sequence);
  void Reclaim(Sequence* sequence);
  void LeaveRunning(Sequence* sequence);
  void SharePrompt(Sequence* leader);
  void ReleaseShare(RequestState* request);
  void QueueSamples(RequestState* request);
  void MarkLeaving(Sequence* sequence);
  void FreeSlot(Sequence* sequence);
  void EnterQueue(Sequence* sequence);
  void LeaveQueued(RequestState* request);
  void DestroyIfDone(RequestState* request);
  void ExpireDeadlines(int64_t now_us);
  void RecordEnd(const Sequence& sequence, FinishReason reason, int64_t now_us);
  void UpdateGauges();
  Sequence* NewSample(RequestState* request, int sample);

  // scheduler_plan.cc: what a step computes.
  void PlanDecodes(StepPlan* plan);
  void PlanRunningPrefills(StepPlan* plan);
  void PlanAdmissions(StepPlan* plan, int64_t now_us);
  bool PlanPrefillChunk(Sequence* sequence, StepPlan* plan);
  bool PlanDecodeRow(Sequence* sequence, int drafts_max, StepPlan* plan);
  int DraftsPerRow() const;
  void AddRow(Sequence* sequence, int num_tokens, StepPlan* plan);
  bool CanDecode(const Sequence& sequence) const;
  bool NeedsPrefill(const Sequence& sequence) const;
  bool EnsureBlocks(Sequence* sequence, int positions);
  bool MakeRoom(Sequence* for_sequence);
  bool DropSoftReferences();
  void Preempt(Sequence* victim);
  void RequeuePreempted(Sequence* sequence);
  int OldestReserve() const;
  bool AdmitSequence(Sequence* sequence, StepPlan* plan, int64_t now_us);
  bool HasWaitingPrefill() const;

  // scheduler_prefix.cc: what is known already.
  bool TakeBlocks(Sequence* sequence, StepPlan* plan);
  void ForkFromShare(Sequence* sequence, StepPlan* plan);
  void FindPrefix(const Sequence& sequence);
  bool WantsPromptLogprobs(const Sequence& sequence) const;
  void TrimToState();
  void SetReplay(Sequence* sequence, int hit) const;
  int CutAtSavePoint(const Sequence& sequence, int count) const;
  void SaveState(Sequence* sequence, PlanRow* row);
  void KeepState(const Sequence& sequence, const PlanRow& row);

  // scheduler_grammar.cc: outputs that keep to a grammar.
  bool MakeMatcher(Sequence* sequence) const;
  void AddMasks(Sequence* sequence, int32_t row, std::span<const TokenId> drafts,
                std::vector<uint64_t>* bits, int64_t now_us);
  void EndAtGrammar(Sequence* sequence, int64_t now_us);
  Status AdvanceGrammar(Sequence* sequence, TokenId id) const;
  Status NoWayOn(const Sequence& sequence) const;

  // scheduler_apply.cc: what a step produced.
  void ApplyRow(const PlanRow& row, const RowResult& result, std::span<const EmittedToken> emitted,
                int64_t now_us);
  void ApplyKnown(Sequence* sequence, const PlanRow& row, const RowResult& result);
  void CountDrafts(const RowResult& result);
  bool CommitTokens(Sequence* sequence, const PlanRow& row, std::span<const EmittedToken> emitted,
                    int64_t now_us);
  bool CommitToken(Sequence* sequence, const EmittedToken& token, OutputDelta* delta,
                   FinishReason* reason);
  void RecordTokenTime(Sequence* sequence, int64_t now_us);
  void CommitPromptLogprobs(Sequence* sequence, const RowResult& result);
  void TakePromptLogprobs(Sequence* sequence, OutputDelta* delta);
  void IndexBlocks(Sequence* sequence);
  OutputDelta NewDelta(const Sequence& sequence) const;
  bool IsEos(TokenId id) const;

  std::string AuditSequence(const Sequence& sequence) const;

  const SchedulerConfig config_;
  const Tokenizer* const tokenizer_;
  EngineMetrics* const metrics_;
  PrefixIndex index_;
  BlockManager blocks_;
  StateCache states_;

  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests_;
  IndexedHeap<Sequence, &Sequence::queue_position, RunOrderOf> waiting_;
  IndexedHeap<RequestState, &RequestState::deadline_position, DeadlineOf> deadlines_;
  std::vector<Sequence*> running_;  // kRunning, in RunsBefore order
  std::vector<Sequence*> slots_;    // by slot: the sequence that holds it, any phase
  std::vector<int> free_slots_;     // a heap: the lowest comes out first
  // Memory of ended sequences for new ones, so that admission allocates nothing once warm.
  std::vector<std::vector<TokenId>> spare_tokens_;
  std::vector<std::vector<int32_t>> spare_blocks_;
  std::vector<RequestState*> sharing_;       // requests with shared_blocks
  std::vector<PrefixIndex::Match> matches_;  // scratch
  int32_t state_found_ = -1;                 // scratch: snapshot at the end of matches_
  std::vector<Sequence*> candidates_;        // scratch

  std::array<StepPlan, 3> plans_;  // one open, one being made, one just applied
  size_t next_plan_ = 0;
  int64_t step_ = 0;
  LateInputs late_;
  std::array<std::vector<uint64_t>, 3> mask_bits_;  // of plans_
  int64_t next_sequence_id_ = 1;
  int64_t next_order_ = 1;
  int64_t unstarted_ = 0;  // requests in waiting_ or gated that count as queued
  int64_t gated_ = 0;      // sequences in kGated

  // Of the plan being made.
  int budget_ = 0;
  int64_t key_budget_ = 0;
  int prefill_rows_ = 0;
  int shortage_ = 0;  // blocks that rows sitting out wait for
  // Across plans.
  int preempting_ = 0;     // sequences in kPreempting
  int blocks_coming_ = 0;  // blocks that leaving sequences will give back
  int starved_steps_ = 0;
  size_t decode_cursor_ = 0;
};

}  // namespace deepinfer
