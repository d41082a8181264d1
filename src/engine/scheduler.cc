#include "engine/scheduler.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

void SetError(const Status& why, OutputDelta* delta) {
  delta->error = why.message();
  delta->error_code = static_cast<int>(why.code());
  delta->error_param = why.param();
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, const Tokenizer* tokenizer, EngineMetrics* metrics)
    : config_(std::move(config)),
      tokenizer_(tokenizer),
      metrics_(metrics),
      index_(config_.num_blocks, config_.block_tokens),
      blocks_(config_.num_blocks, &index_),
      states_(config_.state_snapshots),
      slots_(static_cast<size_t>(config_.max_num_seqs), nullptr) {
  for (int slot = 0; slot < config_.max_num_seqs; ++slot) free_slots_.push_back(slot);
  running_.reserve(slots_.size());
  spare_tokens_.reserve(slots_.size());
  spare_blocks_.reserve(slots_.size());
  candidates_.reserve(slots_.size());
  metrics_->kv_blocks_total = config_.num_blocks;
}

Scheduler::~Scheduler() = default;

Result<int> Scheduler::CheckFits(const SchedulerConfig& config, const Request& request) {
  const int64_t wanted = request.sampling.max_tokens.value_or(config.max_model_len);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t room = config.max_model_len - prompt;
  if (prompt == 0)
    return Invalid("the prompt is empty; give at least one token").WithParam("prompt");
  if (room < (wanted > 0 ? 1 : 0)) {
    return Invalid(Format("the prompt has {} tokens; the context holds {} (max_model_len), and a "
                          "completion needs at least one of them: shorten the prompt",
                          prompt, config.max_model_len))
        .WithParam("prompt");
  }
  const int64_t max_output = std::min(wanted, room);
  const int64_t worst = (prompt + max_output + config.block_tokens - 1) / config.block_tokens + 1;
  if (worst > config.num_blocks) {
    return Invalid(Format("{} prompt tokens and up to {} completion tokens may need {} KV blocks; "
                          "the cache has {}: lower max_tokens or enlarge the cache",
                          prompt, max_output, worst, config.num_blocks))
        .WithParam("max_tokens");
  }
  return static_cast<int>(max_output);
}

Sequence* Scheduler::NewSample(RequestState* request, int sample) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = request;
  sequence->id = next_sequence_id_++;
  sequence->sample = sample;
  sequence->prompt_len = request->prompt_len();
  sequence->max_output = request->max_output;
  sequence->cached_tokens = request->cached_tokens;
  sequence->output = std::make_unique<OutputStream>(tokenizer_, request->request.sampling);
  request->samples.push_back(std::move(sequence));
  ++request->unreclaimed;
  return request->samples.back().get();
}

void Scheduler::Admit(std::unique_ptr<RequestState> owned) {
  RequestState* request = owned.get();
  request->order = next_order_++;
  request->unfinished = request->n();
  request->samples.reserve(static_cast<size_t>(request->n()));
  const bool added = requests_.emplace(request->id, std::move(owned)).second;
  DI_CHECK(added, "request {} exists", request->id);
  if (request->request.deadline_us.has_value()) deadlines_.Push(request);
  ++unstarted_;
  Sequence* sequence = NewSample(request, 0);
  if (request->grammar.ticket == nullptr) {
    EnterQueue(sequence);
    return;
  }
  sequence->phase = SequencePhase::kGated;
  ++gated_;
  if (request->grammar.ticket->ready()) GrammarReady(request->id, request->arrival_us);
}

void Scheduler::EnterQueue(Sequence* sequence) {
  sequence->phase = SequencePhase::kWaiting;
  sequence->available_wanted = 0;
  waiting_.Push(sequence);
}

// The request no longer counts towards the queue limits.
void Scheduler::LeaveQueued(RequestState* request) {
  if (request->started) return;
  request->started = true;
  --unstarted_;
  metrics_->waiting.fetch_sub(1, std::memory_order_relaxed);
  metrics_->waiting_tokens.fetch_sub(request->prompt_len(), std::memory_order_relaxed);
}

void Scheduler::Cancel(RequestId id, int64_t now_us) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  EndRequest(it->second.get(), FinishReason::kCancelled, {}, now_us);
}

void Scheduler::CancelAll(int64_t now_us) {
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const RequestId id : ids) Cancel(id, now_us);
}

void Scheduler::PreemptRequest(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  for (const std::unique_ptr<Sequence>& sequence : it->second->samples) {
    if (sequence->phase == SequencePhase::kRunning) Preempt(sequence.get());
  }
}

void Scheduler::EndRequest(RequestState* request, FinishReason reason, const Status& why,
                           int64_t now_us) {
  request->ending = true;
  const RequestId id = request->id;
  const auto started = static_cast<int>(request->samples.size());
  for (int i = started; i < request->n() && request->unfinished > 0; ++i) {
    OutputDelta delta;
    delta.request = id;
    delta.sample = i;
    delta.usage.prompt_tokens = request->prompt_len();
    delta.finish = reason;
    SetError(why, &delta);
    delta.last = --request->unfinished == 0;
    request->sink->OnOutput(std::move(delta));
  }
  for (int i = 0; i < started; ++i) {
    Sequence* sequence = request->samples[static_cast<size_t>(i)].get();
    if (sequence->phase == SequencePhase::kFinished) continue;
    OutputDelta delta = NewDelta(*sequence);
    SetError(why, &delta);
    const bool last = request->unfinished == 1;
    Finish(sequence, reason, std::move(delta), now_us);
    if (last) return;  // the request may be gone
  }
}

void Scheduler::ExpireDeadlines(int64_t now_us) {
  while (!deadlines_.empty() && *deadlines_.Front()->request.deadline_us <= now_us) {
    RequestState* request = deadlines_.Front();
    EndRequest(request, FinishReason::kError,
               {StatusCode::kDeadline, "the deadline of the request passed before it was finished"},
               now_us);
  }
}

int64_t Scheduler::NextDeadlineUs() const {
  return deadlines_.empty() ? -1 : *deadlines_.Front()->request.deadline_us;
}

void Scheduler::FailSequence(Sequence* sequence, const Status& why, int64_t now_us) {
  OutputDelta delta = NewDelta(*sequence);
  SetError(why, &delta);
  Finish(sequence, FinishReason::kError, std::move(delta), now_us);
}

// Ends a sample and delivers its last delta. The sequence and its request may be gone afterwards.
void Scheduler::Finish(Sequence* sequence, FinishReason reason, OutputDelta delta, int64_t now_us) {
  RequestState* request = sequence->request;
  switch (sequence->phase) {
    case SequencePhase::kGated:
      --gated_;
      break;
    case SequencePhase::kWaiting:
      waiting_.Remove(sequence);
      break;
    case SequencePhase::kRunning:
      LeaveRunning(sequence);
      break;
    case SequencePhase::kPreempting:
      --preempting_;
      break;
    case SequencePhase::kFinished:
      DI_CHECK(false, "sequence {} ended twice", sequence->id);
  }
  sequence->phase = SequencePhase::kFinished;
  if (sequence->in_flight > 0) MarkLeaving(sequence);
  sequence->output->Finish(&delta);
  delta.finish = reason;
  delta.last = --request->unfinished == 0;
  request->longest_output = std::max(request->longest_output, sequence->num_output());
  RecordEnd(*sequence, reason, now_us);
  if (delta.last) {
    LeaveQueued(request);
    ReleaseShare(request);
    if (request->deadline_position >= 0) deadlines_.Remove(request);
  } else if (sequence->sample == 0 && !request->ending) {
    QueueSamples(request);  // the others no longer wait for this one's prompt
  }
  request->sink->OnOutput(std::move(delta));
  if (sequence->in_flight == 0) Reclaim(sequence);
}

void Scheduler::LeaveRunning(Sequence* sequence) {
  const auto it = std::find(running_.begin(), running_.end(), sequence);
  DI_CHECK(it != running_.end(), "sequence {} is not running", sequence->id);
  running_.erase(it);
}

// Counts what becomes available when the last step in flight of this sequence was applied.
void Scheduler::MarkLeaving(Sequence* sequence) {
  blocks_coming_ -= sequence->blocks_coming;
  sequence->blocks_coming = static_cast<int>(
      std::count_if(sequence->blocks.begin(), sequence->blocks.end(),
                    [this](int32_t block) { return blocks_.references(block) == 1; }));
  blocks_coming_ += sequence->blocks_coming;
}

void Scheduler::ReleaseBlocks(Sequence* sequence) {
  blocks_coming_ -= std::exchange(sequence->blocks_coming, 0);
  // Last block first, so that a chain is evicted from its end.
  for (size_t i = sequence->blocks.size(); i-- > 0;) blocks_.Release(sequence->blocks[i]);
  for (size_t i = sequence->parents_held.size(); i-- > 0;) {
    blocks_.Release(sequence->parents_held[i]);
  }
  if (sequence->copy_source >= 0) blocks_.Release(std::exchange(sequence->copy_source, -1));
  if (sequence->root.has_value()) index_.ReleaseRoot(*sequence->root);
  sequence->blocks.clear();
  sequence->parents_held.clear();
  sequence->root.reset();
  sequence->blocks_sent = 0;
  sequence->indexed_blocks = 0;
  sequence->index_open = false;
}

void Scheduler::FreeSlot(Sequence* sequence) {
  if (sequence->slot < 0) return;
  slots_[static_cast<size_t>(sequence->slot)] = nullptr;
  free_slots_.push_back(std::exchange(sequence->slot, -1));
  std::push_heap(free_slots_.begin(), free_slots_.end(), std::greater<>());
}

void Scheduler::Reclaim(Sequence* sequence) {
  RequestState* request = sequence->request;
  ReleaseBlocks(sequence);
  FreeSlot(sequence);
  if (!sequence->tokens.empty() && spare_tokens_.size() < slots_.size()) {
    spare_tokens_.push_back(std::move(sequence->tokens));
    spare_blocks_.push_back(std::move(sequence->blocks));
  }
  --request->unreclaimed;
  DestroyIfDone(request);
}

void Scheduler::DestroyIfDone(RequestState* request) {
  if (request->unfinished == 0 && request->unreclaimed == 0) requests_.erase(request->id);
}

// The prompt of a request with several samples is planned: the others may start from its blocks
// once the step that computes their end was launched.
void Scheduler::SharePrompt(Sequence* leader) {
  RequestState* request = leader->request;
  const int bt = config_.block_tokens;
  const int count = (request->prompt_len() + bt - 1) / bt;
  request->shared_blocks.assign(leader->blocks.begin(), leader->blocks.begin() + count);
  for (const int32_t block : request->shared_blocks) blocks_.Retain(block);
  request->shared_after_step = step_ + 1;
  sharing_.push_back(request);
  QueueSamples(request);
}

void Scheduler::ReleaseShare(RequestState* request) {
  if (request->shared_blocks.empty()) return;
  for (size_t i = request->shared_blocks.size(); i-- > 0;) {
    blocks_.Release(request->shared_blocks[i]);
  }
  request->shared_blocks.clear();
  sharing_.erase(std::find(sharing_.begin(), sharing_.end(), request));
}

void Scheduler::QueueSamples(RequestState* request) {
  for (auto i = static_cast<int>(request->samples.size()); i < request->n(); ++i) {
    EnterQueue(NewSample(request, i));
  }
}

void Scheduler::RecordEnd(const Sequence& sequence, FinishReason reason, int64_t now_us) {
  EngineMetrics& m = *metrics_;
  switch (reason) {
    case FinishReason::kStop:
      AddRelaxed(&m.requests_stopped, 1);
      break;
    case FinishReason::kLength:
      AddRelaxed(&m.requests_length, 1);
      break;
    case FinishReason::kCancelled:
      AddRelaxed(&m.requests_cancelled, 1);
      return;
    default:
      AddRelaxed(&m.requests_failed, 1);
      return;
  }
  const auto seconds = [](int64_t us) { return static_cast<double>(us) * 1e-6; };
  const RequestState& request = *sequence.request;
  const int output = sequence.num_output();
  m.generation_length.Record(output);
  if (output > 0) {
    m.prefill_time.Record(seconds(sequence.first_token_us - sequence.first_step_us));
    m.decode_time.Record(seconds(sequence.last_token_us - sequence.first_token_us));
    m.inference_time.Record(seconds(sequence.last_token_us - sequence.first_step_us));
  }
  if (output > 1) {
    m.time_per_output_token.Record(seconds(sequence.last_token_us - sequence.first_token_us) /
                                   (output - 1));
  }
  m.num_preemptions.Record(sequence.preemptions);
  if (request.unfinished > 0) return;
  m.e2e_latency.Record(seconds(now_us - request.arrival_us));
  m.prompt_length.Record(request.prompt_len());
  m.prefill_computed.Record(request.prompt_len() - request.cached_tokens);
  m.generation_length_max.Record(request.longest_output);
  m.params_n.Record(request.n());
  m.params_max_tokens.Record(request.max_output);
}

void Scheduler::UpdateGauges() {
  metrics_->running.store(num_running(), std::memory_order_relaxed);
  metrics_->requeued.store(waiting_.size() + gated_ - unstarted_, std::memory_order_relaxed);
  metrics_->kv_blocks_used.store(blocks_.num_used(), std::memory_order_relaxed);
  metrics_->kv_blocks_cached.store(blocks_.num_idle(), std::memory_order_relaxed);
}

}  // namespace deepinfer
