// Outputs that keep to a grammar: the gate before its compilation, the masks of a step, the end.
// Matchers stand at the committed output and move in Apply alone.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace deepinfer {

void Scheduler::GrammarReady(RequestId id, int64_t now_us) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  RequestState* request = it->second.get();
  Sequence* sequence = request->samples.front().get();
  if (sequence->phase != SequencePhase::kGated) return;
  const Status refusal = request->grammar.ErrorNow(*request->request.sampling.grammar);
  if (!refusal.ok()) {
    EndRequest(request, FinishReason::kError, refusal, now_us);
    return;
  }
  --gated_;
  EnterQueue(sequence);
  request->sink->OnOutput(NewDelta(*sequence));
}

// False: the committed output does not keep to the grammar, which cannot be.
bool Scheduler::MakeMatcher(Sequence* sequence) const {
  if (sequence->matcher != nullptr) return true;
  const GrammarOrder& order = sequence->request->grammar;
  sequence->matcher = std::make_unique<GrammarMatcher>(order.ticket->result().value(),
                                                       order.vocabulary, /*rollback_max=*/0);
  return std::all_of(sequence->tokens.begin() + sequence->prompt_len, sequence->tokens.end(),
                     [&](TokenId id) { return sequence->matcher->Accept(id); });
}

const LateInputs& Scheduler::LateInputsOf(const StepPlan& plan, const StepDrafts& drafts,
                                          int64_t now_us) {
  late_.ended_rows.clear();
  late_.masks.clear();
  const auto index = static_cast<size_t>(&plan - plans_.data());
  mask_bits_[index].clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    Sequence* sequence = slots_[static_cast<size_t>(row.slot)];
    if (row.sample && sequence->phase != SequencePhase::kFinished &&
        sequence->request->grammar.ticket != nullptr) {
      AddMasks(sequence, static_cast<int32_t>(i), drafts.Of(i), &mask_bits_[index], now_us);
    }
    if (sequence->phase == SequencePhase::kFinished) {
      late_.ended_rows.push_back(static_cast<int32_t>(i));
    }
  }
  late_.mask_bits = mask_bits_[index].data();
  return late_;
}

// Ends the sample where no token may follow.
void Scheduler::AddMasks(Sequence* sequence, int32_t row, std::span<const TokenId> drafts,
                         std::vector<uint64_t>* bits, int64_t now_us) {
  if (!MakeMatcher(sequence)) {
    FailSequence(sequence, Internal("the output cannot be taken up again under its grammar"),
                 now_us);
    return;
  }
  GrammarMatcher& matcher = *sequence->matcher;
  const size_t words = sequence->request->grammar.vocabulary->mask_words();
  const size_t first = bits->size();
  bits->resize(first + (drafts.size() + 1) * words);
  const std::span<uint64_t> masks = std::span(*bits).subspan(first);
  size_t count = matcher.FillDraftMasks(drafts, masks);
  const auto empty = [&](size_t mask) {
    const std::span<const uint64_t> one = masks.subspan(mask * words, words);
    return std::all_of(one.begin(), one.end(), [](uint64_t word) { return word == 0; });
  };
  while (count > 0 && empty(count - 1)) --count;
  bits->resize(first + count * words);
  if (count == 0) {
    EndAtGrammar(sequence, now_us);
    return;
  }
  late_.mask_words = words;
  late_.masks.push_back({row, static_cast<int32_t>(first / words), static_cast<int32_t>(count)});
}

// No token may follow: the output is complete and the model has no token that says so, or there is
// no way on although every token was allowed.
void Scheduler::EndAtGrammar(Sequence* sequence, int64_t now_us) {
  const GrammarMatcher& matcher = *sequence->matcher;
  if (matcher.IsComplete()) {
    Finish(sequence, FinishReason::kStop, NewDelta(*sequence), now_us);
    return;
  }
  FailSequence(sequence, NoWayOn(*sequence), now_us);
}

Status Scheduler::NoWayOn(const Sequence& sequence) const {
  const std::string& param = sequence.request->request.sampling.grammar->param;
  const char* limit = sequence.matcher->limit_reached();
  return Invalid(Format("the output has no continuation that \"{}\" allows after {} tokens{}{}",
                        param, sequence.num_output(), limit == nullptr ? "" : ": ",
                        limit == nullptr ? "" : limit))
      .WithParam(param);
}

// Each way of reading the output alone allows the token; together they may reach a limit.
Status Scheduler::AdvanceGrammar(Sequence* sequence, TokenId id) const {
  if (sequence->request->grammar.ticket == nullptr) return {};
  if (MakeMatcher(sequence) && sequence->matcher->Accept(id)) return {};
  if (sequence->matcher->limit_reached() != nullptr) return NoWayOn(*sequence);
  return Internal(Format("the token {} was sampled against the grammar", id));
}

}  // namespace deepinfer
