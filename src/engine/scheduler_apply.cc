// What a step produced: tokens become final, blocks become shareable, samples end.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/scheduler.h"

namespace deepinfer {
namespace {

// Of a row that ended badly; `positions` were computed.
Status StatusOf(RowStatus row, int positions) {
  switch (row) {
    case RowStatus::kNan:
      return Internal(
          Format("the model gave logits that are not numbers at position {}; the other "
                 "requests are not affected",
                 positions - 1));
    case RowStatus::kNoToken:
      return Invalid(
          Format("no token may follow at position {}: allowed_token_ids, bad_words, "
                 "logit_bias, min_tokens and the grammar leave none",
                 positions));
    default:
      return Internal("a token id outside of the vocabulary reached the model");
  }
}

}  // namespace

void Scheduler::Apply(const StepPlan& plan, const StepResult& result, int64_t now_us) {
  DI_CHECK(result.rows.size() == plan.rows.size(), "{} results for {} rows", result.rows.size(),
           plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    ApplyRow(plan.rows[i], result.rows[i], result.EmittedOf(result.rows[i]), now_us);
  }
  AddRelaxed(&metrics_->steps, 1);
  metrics_->progress_us.store(now_us, std::memory_order_relaxed);
  UpdateGauges();
}

void Scheduler::ApplyRow(const PlanRow& row, const RowResult& result,
                         std::span<const EmittedToken> emitted, int64_t now_us) {
  Sequence* sequence = slots_[static_cast<size_t>(row.slot)];
  DI_CHECK(sequence != nullptr && sequence->id == row.sequence && result.sequence == row.sequence,
           "slot {} does not hold sequence {}", row.slot, row.sequence);
  --sequence->in_flight;
  if (row.sample) --sequence->samples_in_flight;
  sequence->tokens_in_flight -= row.num_tokens;
  sequence->tokens_in_flight_min -= row.num_known > 0 ? row.num_tokens : 1;
  if (sequence->copy_source >= 0) blocks_.Release(std::exchange(sequence->copy_source, -1));
  const bool computed =
      sequence->phase != SequencePhase::kFinished && result.status == RowStatus::kOk;
  if (row.save_state >= 0 && !computed) states_.Drop(row.save_state);
  if (sequence->phase == SequencePhase::kFinished) {
    if (sequence->in_flight == 0) Reclaim(sequence);
    return;
  }
  if (result.num_drafts > 0) CountDrafts(result);
  if (computed && row.num_known > 0) ApplyKnown(sequence, row, result);
  // What was sampled before something went wrong stands.
  if (!emitted.empty() && CommitTokens(sequence, row, emitted, now_us)) return;  // may be gone
  if (result.status != RowStatus::kOk) {
    if (result.status != RowStatus::kNoToken) {
      AddRelaxed(&metrics_->corrupted_requests, 1);
      for (const int32_t block : sequence->blocks) blocks_.Forget(block);
    }
    FailSequence(sequence, StatusOf(result.status, sequence->applied + std::max(row.num_known, 1)),
                 now_us);
    return;
  }
  DI_CHECK(!emitted.empty() || !row.sample, "sequence {} has no token", sequence->id);
  if (!row.sample && sequence->max_output == 0 && sequence->applied == sequence->num_tokens()) {
    OutputDelta delta = NewDelta(*sequence);
    TakePromptLogprobs(sequence, &delta);
    Finish(sequence, FinishReason::kLength, std::move(delta), now_us);
    return;
  }
  sequence->UpdatePlanned();
  if (sequence->phase == SequencePhase::kPreempting && sequence->in_flight == 0) {
    --preempting_;
    RequeuePreempted(sequence);
  }
}

// Prompt or replayed tokens were computed.
void Scheduler::ApplyKnown(Sequence* sequence, const PlanRow& row, const RowResult& result) {
  sequence->applied += row.num_tokens;
  if (row.prompt_logprobs) CommitPromptLogprobs(sequence, result);
  IndexBlocks(sequence);
  if (row.save_state >= 0) KeepState(*sequence, row);
  // Without a shared prompt the other samples find this one's in the index.
  RequestState* request = sequence->request;
  if (config_.has_state && sequence->sample == 0 && !request->ending &&
      sequence->applied >= sequence->prompt_len &&
      static_cast<int>(request->samples.size()) < request->n()) {
    QueueSamples(request);
  }
}

void Scheduler::CountDrafts(const RowResult& result) {
  const int accepted = std::max(result.num_emitted - 1, 0);
  AddRelaxed(&metrics_->spec_drafts, 1);
  AddRelaxed(&metrics_->spec_draft_tokens, result.num_drafts);
  AddRelaxed(&metrics_->spec_accepted_tokens, accepted);
  for (int i = 0; i < accepted; ++i) {
    AddRelaxed(&metrics_->spec_accepted_per_position[static_cast<size_t>(i)], 1);
  }
}

void Scheduler::CommitPromptLogprobs(Sequence* sequence, const RowResult& result) {
  if (sequence->prompt_logprobs_sent) return;
  if (sequence->prompt_logprobs.empty()) sequence->prompt_logprobs.emplace_back(std::nullopt);
  for (const TokenLogprob& logprob : result.prompt_logprobs) {
    sequence->prompt_logprobs.emplace_back(logprob);
  }
}

void Scheduler::TakePromptLogprobs(Sequence* sequence, OutputDelta* delta) {
  if (sequence->prompt_logprobs_sent || sequence->prompt_logprobs.empty()) return;
  delta->prompt_logprobs = std::move(sequence->prompt_logprobs);
  sequence->prompt_logprobs.clear();
  sequence->prompt_logprobs_sent = true;
}

// Offers the blocks that are full and computed to later requests.
void Scheduler::IndexBlocks(Sequence* sequence) {
  const int bt = config_.block_tokens;
  while (sequence->index_open && (sequence->indexed_blocks + 1) * bt <= sequence->applied) {
    const auto i = static_cast<size_t>(sequence->indexed_blocks);
    const int32_t block = sequence->blocks[i];
    if (blocks_.cached(block)) {
      sequence->node = index_.NodeOf(block);
    } else {
      const auto tokens = std::span<const TokenId>(sequence->tokens)
                              .subspan(i * static_cast<size_t>(bt), static_cast<size_t>(bt));
      const PrefixIndex::Match match = index_.Insert(sequence->node, tokens, block);
      if (match.block < 0) {
        sequence->index_open = false;
        return;
      }
      if (match.block == block) {
        blocks_.MarkCached(block);
      } else {
        blocks_.Retain(match.block);
        sequence->parents_held.push_back(match.block);
      }
      sequence->node = match.node;
    }
    ++sequence->indexed_blocks;
  }
}

bool Scheduler::IsEos(TokenId id) const {
  return std::find(config_.eos_ids.begin(), config_.eos_ids.end(), id) != config_.eos_ids.end();
}

// Makes the tokens of a row final, up to one that ends the sample; those behind it never were. Each
// was sampled from the position before it, whose cache rows are final with it. True when the sample
// ended.
bool Scheduler::CommitTokens(Sequence* sequence, const PlanRow& row,
                             std::span<const EmittedToken> emitted, int64_t now_us) {
  RecordTokenTime(sequence, now_us);
  OutputDelta delta = NewDelta(*sequence);
  TakePromptLogprobs(sequence, &delta);
  FinishReason reason = FinishReason::kNone;
  bool ended = false;
  for (size_t i = 0; i < emitted.size() && !ended; ++i) {
    if (i > 0 || row.num_known == 0) {
      ++sequence->applied;
      IndexBlocks(sequence);
    }
    if (const Status status = AdvanceGrammar(sequence, emitted[i].id); !status.ok()) {
      if (i > 0) sequence->request->sink->OnOutput(std::move(delta));
      FailSequence(sequence, status, now_us);
      return true;
    }
    ended = CommitToken(sequence, emitted[i], &delta, &reason);
    if (!emitted[i].embedding.empty()) delta.embedding = emitted[i].embedding;
  }
  delta.usage.completion_tokens = sequence->num_output();
  if (ended) {
    Finish(sequence, reason, std::move(delta), now_us);
    return true;
  }
  sequence->request->sink->OnOutput(std::move(delta));
  return false;
}

void Scheduler::RecordTokenTime(Sequence* sequence, int64_t now_us) {
  if (sequence->first_token_us == 0) {
    sequence->first_token_us = now_us;
    metrics_->time_to_first_token.Record(
        static_cast<double>(now_us - sequence->request->arrival_us) * 1e-6);
  } else {
    metrics_->inter_token_latency.Record(static_cast<double>(now_us - sequence->last_token_us) *
                                         1e-6);
  }
  sequence->last_token_us = now_us;
}

// True when the token ended the sample.
bool Scheduler::CommitToken(Sequence* sequence, const EmittedToken& token, OutputDelta* delta,
                            FinishReason* reason) {
  const SamplingParams& sampling = sequence->request->request.sampling;
  sequence->tokens.push_back(token.id);
  AddRelaxed(&metrics_->generation_tokens, 1);
  const int count = sequence->num_output();
  const bool may_stop = count >= sampling.min_tokens;
  const bool stop_id =
      may_stop && std::find(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(),
                            token.id) != sampling.stop_token_ids.end();
  // The grammar lets an end through where there is no other way on, whatever min_tokens says.
  const bool eos = (may_stop && !sampling.ignore_eos && IsEos(token.id)) ||
                   (sequence->matcher != nullptr && sequence->matcher->IsTerminated());
  delta->token_ids.push_back(token.id);
  if (sampling.logprobs.has_value()) delta->logprobs.push_back(token.logprob);
  const bool stop_text = sequence->output->Push(token.id, stop_id || eos, delta);
  if (stop_id) delta->stop_token = token.id;
  const bool stopped = stop_text || stop_id || eos;
  *reason = stopped ? FinishReason::kStop : FinishReason::kLength;
  return stopped || count >= sequence->max_output;
}

OutputDelta Scheduler::NewDelta(const Sequence& sequence) const {
  OutputDelta delta;
  delta.request = sequence.request->id;
  delta.sample = sequence.sample;
  delta.usage.prompt_tokens = sequence.request->prompt_len();
  delta.usage.completion_tokens = sequence.num_output();
  delta.usage.cached_tokens = sequence.cached_tokens;
  return delta;
}

}  // namespace deepinfer
