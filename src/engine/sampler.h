// Sampling of one row: a pure function of (logits, params, seed, sample index, position), with
// Gumbel-max noise shared by every caller that knows the key (so drafts can be verified by it).
// One RowSampler per runner slot, on the runner thread; rows of a step may run on several threads.
// Order of the edits as in vLLM: mask of the grammar, allowed ids, bad words, min_tokens, logit
// bias, penalties, temperature, min_p, top_k, top_p. Log-probabilities are those of the masked
// logits, unedited.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "deepinfer/request.h"
#include "engine/step_plan.h"

namespace deepinfer {

struct SampledToken {
  RowStatus status = RowStatus::kOk;
  TokenId id = 0;
  TokenLogprob logprob;  // filled when the request asks for logprobs
};

// Log-probability, rank and the `top` likeliest tokens (-1: all) at `id`; logits [vocab], finite.
TokenLogprob LogprobAt(const float* logits, int vocab, TokenId id, int top);

// Gumbel noise of vocabulary entry `id` for the token at absolute `position`.
double GumbelNoise(uint64_t key, int64_t position, TokenId id);

class RowSampler {
 public:
  // `params` was validated against `vocab`. `prompt` and `emitted` feed the penalties; `emitted`
  // are output tokens from before a preemption. `eos_ids` are masked below min_tokens. Ids of
  // `never` are no text (placeholders of images): nothing samples or proposes them.
  RowSampler(const SamplingParams& params, int sample_index, uint64_t seed, int vocab,
             std::span<const TokenId> eos_ids, std::span<const TokenId> prompt,
             std::span<const TokenId> emitted, std::span<const TokenId> never = {});

  // logits [vocab] is scratch: it is edited, and restored only as far as logprobs need. `mask`: bit
  // id % 64 of word id / 64 for each token that a grammar allows; nullptr: all.
  SampledToken Sample(float* logits, int64_t position, const uint64_t* mask = nullptr);
  // Records an output token; must be called for each before the next Sample.
  void Observe(TokenId id);
  // Takes the token observed last back.
  void Forget(TokenId id);

  // Rejection sampling of a draft that was chosen without looking at this position's noise for
  // verification: the draft with its probability, else a sample of the rest. Whatever the draft,
  // the result has the distribution of Sample.
  SampledToken SampleOrReject(float* logits, int64_t position, TokenId draft,
                              const uint64_t* mask = nullptr);
  // A draft for `position` from a drafter's logits: edits, filters and noise of Sample. Recorded
  // like an output token; the caller takes it back with Forget.
  TokenId Propose(float* logits, int64_t position);

 private:
  struct Counts {
    int output = 0;
    int prompt = 0;
  };
  struct Candidate {
    float scaled = 0.0F;  // logit / temperature
    TokenId id = 0;
  };

  // What the thinking budget leaves no choice about within `mask`, or -1.
  TokenId Forced(const uint64_t* mask) const;
  void Edit(float* logits, TokenId id, float value);
  void ApplyMask(float* logits, const uint64_t* mask) const;
  bool OnlyEnds(const uint64_t* mask) const;
  void ApplyEdits(float* logits, const uint64_t* mask);
  void ApplyPenalties(float* logits);
  // Checks and edits the logits; not kOk when nothing can be sampled.
  RowStatus Prepare(float* logits, const uint64_t* mask);
  TokenId Pick(const float* logits, int64_t position, uint64_t key);
  void FillLogprob(float* logits, SampledToken* out);
  TokenId Greedy(const float* logits) const;
  TokenId SampleAll(const float* logits, int64_t position, uint64_t key) const;
  void FilterCandidates(const float* logits);
  TokenId PickCandidate(int64_t position, uint64_t key) const;
  double ProbabilityOf(const float* logits, TokenId id);
  void CollectCandidates(const float* logits, float floor);
  bool KeepTopP(const float* logits, float max_scaled);

  const int vocab_;
  const uint64_t key_;
  const float temperature_;  // 0: greedy
  const float top_p_;
  const int top_k_;  // 0: all
  const float min_p_;
  const float presence_, frequency_, repetition_;
  const int min_tokens_;
  const bool filtered_;  // top_k, top_p or min_p
  const int logprobs_;   // -2: none, -1: whole vocabulary
  std::vector<std::pair<TokenId, float>> logit_bias_;
  std::vector<TokenId> allowed_;  // sorted; empty: all
  std::vector<TokenId> never_;
  std::vector<TokenId> masked_early_;  // EOS and stop ids, below min_tokens
  std::vector<std::vector<TokenId>> bad_words_;
  std::unordered_map<TokenId, Counts> counts_;  // only with penalties
  std::vector<TokenId> output_;                 // only with bad words or a thinking budget
  int num_output_ = 0;
  const std::optional<ThinkingBudget> thinking_;
  int thinking_begin_ = -1;  // output tokens before thinking; -1: it has not begun
  int thinking_end_ = -1;    // output tokens up to its end; -1: it goes on
  std::vector<std::pair<TokenId, float>> undo_;
  std::vector<Candidate> candidates_;
};

}  // namespace deepinfer
