#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace deepinfer {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// Below this temperature sampling is greedy; above it the temperature is at least the floor (vLLM).
constexpr float kGreedyBelow = 1e-5F;
constexpr float kTemperatureFloor = 1e-2F;
// No 32-bit uniform makes Gumbel noise above -log(-log(1 - 2^-33)) = 22.9.
constexpr double kGumbelMax = 23.0;
// Candidates further below the maximum than this hold under 1e-4 of the mass of any vocabulary
// of ours; wider sets are collected only when a filter proves to need them.
constexpr float kCandidateDepth = 20.0F;

// Noise that decides about drafts must not be the noise that drafts were chosen by.
constexpr uint64_t kRejectionKey = 0x5851F42D4C957F2D;

using Lanes = float __attribute__((vector_size(16)));

struct MaxScan {
  float max = kMinusInf;
  bool bad = false;  // NaN or +inf seen
};

// Four lanes at a time; NaN shows as x != x. Order does not matter for a maximum.
MaxScan ScanMax(const float* x, int n) {
  Lanes best = {kMinusInf, kMinusInf, kMinusInf, kMinusInf};
  using Mask = int32_t __attribute__((vector_size(16)));
  Mask nan = {0, 0, 0, 0};
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    Lanes v;
    __builtin_memcpy(&v, x + i, sizeof v);
    nan |= (v != v);
    best = v > best ? v : best;
  }
  MaxScan scan;
  for (int j = 0; j < 4; ++j) {
    scan.max = std::max(scan.max, best[j]);
    scan.bad |= nan[j] != 0;
  }
  for (; i < n; ++i) {
    scan.bad |= x[i] != x[i];
    scan.max = std::max(scan.max, x[i]);
  }
  scan.bad |= scan.max == std::numeric_limits<float>::infinity();
  return scan;
}

// log(sum(exp(x - max))) in double, eight partial sums in a fixed order.
double LogSumExp(const float* x, int n, float max) {
  double sums[8] = {};
  for (int i = 0; i < n; ++i) sums[i & 7] += static_cast<double>(std::exp(x[i] - max));
  double total = 0;
  for (double s : sums) total += s;
  return static_cast<double>(max) + std::log(total);
}

// The `count` largest entries, descending; equal values by ascending id.
std::vector<std::pair<TokenId, float>> TopEntries(const float* x, int n, int count) {
  std::vector<std::pair<TokenId, float>> top;
  const auto better = [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  };
  if (count >= n) {
    for (int i = 0; i < n; ++i) top.emplace_back(i, x[i]);
    std::sort(top.begin(), top.end(), better);
    return top;
  }
  if (count <= 0) return top;
  const auto size = static_cast<size_t>(count);
  for (int i = 0; i < n; ++i) {
    // A min-heap of the best so far; ids ascend, so an equal value never displaces an earlier one.
    if (top.size() < size) {
      top.emplace_back(i, x[i]);
      std::push_heap(top.begin(), top.end(), better);
    } else if (x[i] > top.front().second) {
      std::pop_heap(top.begin(), top.end(), better);
      top.back() = {i, x[i]};
      std::push_heap(top.begin(), top.end(), better);
    }
  }
  std::sort_heap(top.begin(), top.end(), better);
  return top;
}

bool EndsWith(std::span<const TokenId> text, std::span<const TokenId> suffix) {
  return text.size() >= suffix.size() &&
         std::equal(suffix.begin(), suffix.end(),
                    text.end() - static_cast<ptrdiff_t>(suffix.size()));
}

}  // namespace

TokenLogprob LogprobAt(const float* logits, int vocab, TokenId id, int top) {
  const MaxScan scan = ScanMax(logits, vocab);
  const double lse = LogSumExp(logits, vocab, scan.max);
  TokenLogprob out;
  out.id = id;
  out.logprob = static_cast<float>(static_cast<double>(logits[id]) - lse);
  int above = 0;
  for (int i = 0; i < vocab; ++i) above += logits[i] > logits[id] ? 1 : 0;
  out.rank = above + 1;
  out.top = TopEntries(logits, vocab, top < 0 ? vocab : top);
  for (auto& [entry, value] : out.top) {
    value = static_cast<float>(static_cast<double>(value) - lse);
  }
  return out;
}

double GumbelNoise(uint64_t key, int64_t position, TokenId id) {
  const auto p = static_cast<uint64_t>(position);
  const auto block = static_cast<uint32_t>(id) / 4;
  const std::array<uint32_t, 4> words =
      Philox4x32(key, {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), block, 0});
  return -std::log(-std::log(UniformOpen(words[static_cast<uint32_t>(id) % 4])));
}

RowSampler::RowSampler(const SamplingParams& params, int sample_index, uint64_t seed, int vocab,
                       std::span<const TokenId> eos_ids, std::span<const TokenId> prompt,
                       std::span<const TokenId> emitted, std::span<const TokenId> never)
    : vocab_(vocab),
      key_(seed + static_cast<uint64_t>(sample_index)),
      temperature_(params.temperature < kGreedyBelow
                       ? 0.0F
                       : std::max(params.temperature, kTemperatureFloor)),
      top_p_(params.top_p),
      top_k_(params.top_k <= 0 || params.top_k >= vocab ? 0 : params.top_k),
      min_p_(params.min_p),
      presence_(params.presence_penalty),
      frequency_(params.frequency_penalty),
      repetition_(params.repetition_penalty),
      min_tokens_(params.min_tokens),
      filtered_(top_k_ > 0 || top_p_ < 1.0F || min_p_ > 0.0F),
      logprobs_(params.logprobs.value_or(-2)),
      logit_bias_(params.logit_bias),
      allowed_(params.allowed_token_ids),
      never_(never.begin(), never.end()),
      bad_words_(params.bad_words),
      thinking_(params.thinking) {
  if (thinking_.has_value() && thinking_->begin < 0) thinking_begin_ = 0;
  std::sort(allowed_.begin(), allowed_.end());
  allowed_.erase(std::unique(allowed_.begin(), allowed_.end()), allowed_.end());
  if (min_tokens_ > 0) {
    masked_early_.assign(eos_ids.begin(), eos_ids.end());
    masked_early_.insert(masked_early_.end(), params.stop_token_ids.begin(),
                         params.stop_token_ids.end());
    std::sort(masked_early_.begin(), masked_early_.end());
    masked_early_.erase(std::unique(masked_early_.begin(), masked_early_.end()),
                        masked_early_.end());
  }
  if (repetition_ != 1.0F) {
    for (TokenId id : prompt) ++counts_[id].prompt;
  }
  for (TokenId id : emitted) Observe(id);
}

void RowSampler::Observe(TokenId id) {
  ++num_output_;
  if (presence_ != 0.0F || frequency_ != 0.0F || repetition_ != 1.0F) ++counts_[id].output;
  if (!bad_words_.empty() || thinking_.has_value()) output_.push_back(id);
  if (!thinking_.has_value()) return;
  const std::vector<TokenId>& end = thinking_->end;
  if (thinking_begin_ < 0) {
    if (id == thinking_->begin) thinking_begin_ = num_output_;
  } else if (thinking_end_ < 0 && num_output_ - thinking_begin_ >= static_cast<int>(end.size()) &&
             std::equal(end.rbegin(), end.rend(), output_.rbegin())) {
    thinking_end_ = num_output_;
  }
}

TokenId RowSampler::Forced(const uint64_t* mask) const {
  if (thinking_begin_ < 0 || thinking_end_ >= 0) return -1;
  const int over = num_output_ - thinking_begin_ - thinking_->tokens;
  if (over < 0) return -1;
  // As long as the mark is not there, what lies over the bound is its beginning.
  const TokenId id = thinking_->end[static_cast<size_t>(over) % thinking_->end.size()];
  // A grammar that has no place for the mark is stronger.
  return mask == nullptr || (mask[id / 64] >> (id % 64) & 1) != 0 ? id : -1;
}

void RowSampler::Forget(TokenId id) {
  --num_output_;
  if (const auto it = counts_.find(id); it != counts_.end()) {
    --it->second.output;
    if (it->second.output == 0 && it->second.prompt == 0) counts_.erase(it);
  }
  if (!output_.empty()) output_.pop_back();
  if (thinking_end_ > num_output_) thinking_end_ = -1;
  if (thinking_.has_value() && thinking_->begin >= 0 && thinking_begin_ > num_output_) {
    thinking_begin_ = -1;
  }
}

void RowSampler::Edit(float* logits, TokenId id, float value) {
  if (id < 0 || id >= vocab_) return;
  undo_.emplace_back(id, logits[id]);
  logits[id] = value;
}

void RowSampler::ApplyPenalties(float* logits) {
  for (const auto& [id, count] : counts_) {
    if (id < 0 || id >= vocab_) continue;
    float value = logits[id];
    if (repetition_ != 1.0F) value = value > 0 ? value / repetition_ : value * repetition_;
    if (count.output > 0) {
      value -= frequency_ * static_cast<float>(count.output) + presence_;
    }
    Edit(logits, id, value);
  }
}

// Not undone: log-probabilities are those among the tokens that the grammar allows.
void RowSampler::ApplyMask(float* logits, const uint64_t* mask) const {
  for (int first = 0; first < vocab_; first += 64) {
    const uint64_t word = mask[first / 64];
    if (word == ~uint64_t{0}) continue;
    const int count = std::min(64, vocab_ - first);
    for (int i = 0; i < count; ++i) {
      if ((word >> i & 1) == 0) logits[first + i] = kMinusInf;
    }
  }
}

// The output is complete and nothing else may follow.
bool RowSampler::OnlyEnds(const uint64_t* mask) const {
  int allowed = 0;
  for (int first = 0; first < vocab_; first += 64) allowed += std::popcount(mask[first / 64]);
  for (const TokenId id : masked_early_) {
    if (id >= 0 && id < vocab_) allowed -= static_cast<int>(mask[id / 64] >> (id % 64) & 1);
  }
  return allowed == 0;
}

void RowSampler::ApplyEdits(float* logits, const uint64_t* mask) {
  undo_.clear();
  for (const std::vector<TokenId>& word : bad_words_) {
    const std::span<const TokenId> head(word.data(), word.size() - 1);
    if (EndsWith(output_, head)) Edit(logits, word.back(), kMinusInf);
  }
  if (num_output_ < min_tokens_ && (mask == nullptr || !OnlyEnds(mask))) {
    for (TokenId id : masked_early_) Edit(logits, id, kMinusInf);
  }
  for (const auto& [id, bias] : logit_bias_) {
    if (id >= 0 && id < vocab_) Edit(logits, id, logits[id] + bias);
  }
  if (!counts_.empty()) ApplyPenalties(logits);
  for (TokenId id : never_) Edit(logits, id, kMinusInf);  // last: no bias brings them back
}

TokenId RowSampler::Greedy(const float* logits) const {
  if (!allowed_.empty()) {
    return *std::max_element(allowed_.begin(), allowed_.end(),
                             [&](TokenId a, TokenId b) { return logits[a] < logits[b]; });
  }
  const float max = ScanMax(logits, vocab_).max;
  for (int i = 0; i < vocab_; ++i) {
    if (logits[i] == max) return i;
  }
  return 0;
}

TokenId RowSampler::SampleAll(const float* logits, int64_t position, uint64_t key) const {
  const double inverse = 1.0 / static_cast<double>(temperature_);
  TokenId best_id = Greedy(logits);
  double best =
      static_cast<double>(logits[best_id]) * inverse + GumbelNoise(key, position, best_id);
  // An id can win only when its logit is within reach of the best score so far.
  auto floor = static_cast<float>((best - kGumbelMax) * static_cast<double>(temperature_));
  const auto visit = [&](TokenId id) {
    if (logits[id] < floor || logits[id] == kMinusInf) return;
    const double score = static_cast<double>(logits[id]) * inverse + GumbelNoise(key, position, id);
    if (score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
      floor = static_cast<float>((best - kGumbelMax) * static_cast<double>(temperature_));
    }
  };
  if (!allowed_.empty()) {
    for (TokenId id : allowed_) visit(id);
  } else {
    for (TokenId id = 0; id < vocab_; ++id) visit(id);
  }
  return best_id;
}

void RowSampler::CollectCandidates(const float* logits, float floor) {
  candidates_.clear();
  const float inverse = 1.0F / temperature_;
  const auto add = [&](TokenId id) {
    const float scaled = logits[id] * inverse;
    if (scaled >= floor && scaled != kMinusInf) candidates_.push_back({scaled, id});
  };
  if (!allowed_.empty()) {
    for (TokenId id : allowed_) add(id);
  } else {
    for (TokenId id = 0; id < vocab_; ++id) add(id);
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.scaled != b.scaled ? a.scaled > b.scaled : a.id < b.id;
  });
}

// Keeps the smallest head of the sorted candidates whose mass reaches top_p. False when the
// candidates that were collected do not reach it.
bool RowSampler::KeepTopP(const float* logits, float max_scaled) {
  double total = 0;
  if (top_k_ == 0 && allowed_.empty()) {
    const float inverse = 1.0F / temperature_;
    double sums[8] = {};
    for (int i = 0; i < vocab_; ++i) {
      sums[i & 7] += static_cast<double>(std::exp(logits[i] * inverse - max_scaled));
    }
    for (double s : sums) total += s;
  } else {
    for (const Candidate& c : candidates_) {
      total += static_cast<double>(std::exp(c.scaled - max_scaled));
    }
  }
  const double wanted = static_cast<double>(top_p_) * total;
  double mass = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    mass += static_cast<double>(std::exp(candidates_[i].scaled - max_scaled));
    if (mass >= wanted) {
      candidates_.resize(i + 1);
      return true;
    }
  }
  return false;
}

// The candidates that the filters leave, likeliest first.
void RowSampler::FilterCandidates(const float* logits) {
  const float max_scaled = logits[Greedy(logits)] / temperature_;
  float floor = max_scaled - kCandidateDepth;
  if (min_p_ > 0) floor = std::max(floor, max_scaled + std::log(min_p_));
  CollectCandidates(logits, floor);
  const float widest = min_p_ > 0 ? max_scaled + std::log(min_p_) : kMinusInf;
  if (top_k_ > 0) {
    const auto k = static_cast<size_t>(top_k_);
    if (candidates_.size() < k && widest < floor) CollectCandidates(logits, widest);
    // As in vLLM, entries equal to the k-th are kept too.
    if (candidates_.size() > k) {
      const float kth = candidates_[k - 1].scaled;
      size_t end = k;
      while (end < candidates_.size() && candidates_[end].scaled == kth) ++end;
      candidates_.resize(end);
    }
  }
  if (top_p_ < 1.0F && !KeepTopP(logits, max_scaled) && top_k_ == 0 && widest < floor) {
    CollectCandidates(logits, widest);
    (void)KeepTopP(logits, max_scaled);
  }
}

TokenId RowSampler::PickCandidate(int64_t position, uint64_t key) const {
  double best = -std::numeric_limits<double>::infinity();
  TokenId best_id = candidates_.front().id;
  for (const Candidate& c : candidates_) {
    if (static_cast<double>(c.scaled) + kGumbelMax < best) break;
    const double score = static_cast<double>(c.scaled) + GumbelNoise(key, position, c.id);
    if (score > best || (score == best && c.id < best_id)) {
      best = score;
      best_id = c.id;
    }
  }
  return best_id;
}

RowStatus RowSampler::Prepare(float* logits, const uint64_t* mask) {
  const MaxScan scan = ScanMax(logits, vocab_);
  if (scan.bad || scan.max == kMinusInf) return RowStatus::kNan;
  if (mask != nullptr) ApplyMask(logits, mask);
  ApplyEdits(logits, mask);
  const float max = logits[Greedy(logits)];
  if (max != max) return RowStatus::kNan;
  return max == kMinusInf ? RowStatus::kNoToken : RowStatus::kOk;
}

TokenId RowSampler::Pick(const float* logits, int64_t position, uint64_t key) {
  if (temperature_ == 0.0F) return Greedy(logits);
  if (!filtered_) return SampleAll(logits, position, key);
  FilterCandidates(logits);
  return PickCandidate(position, key);
}

void RowSampler::FillLogprob(float* logits, SampledToken* out) {
  if (out->id < 0 || out->id >= vocab_) out->status = RowStatus::kBadId;
  if (logprobs_ == -2 || out->status != RowStatus::kOk) return;
  for (auto it = undo_.rbegin(); it != undo_.rend(); ++it) logits[it->first] = it->second;
  out->logprob = LogprobAt(logits, vocab_, out->id, logprobs_);
}

SampledToken RowSampler::Sample(float* logits, int64_t position, const uint64_t* mask) {
  SampledToken out;
  out.status = Prepare(logits, mask);
  if (out.status != RowStatus::kOk) return out;
  const TokenId forced = Forced(mask);
  out.id = forced >= 0 ? forced : Pick(logits, position, key_);
  FillLogprob(logits, &out);
  return out;
}

TokenId RowSampler::Propose(float* logits, int64_t position) {
  const TokenId forced = Forced(nullptr);
  TokenId id = 0;
  if (forced >= 0) {
    id = forced;
  } else if (Prepare(logits, nullptr) == RowStatus::kOk) {
    id = Pick(logits, position, key_);
  }
  Observe(id);
  return id;
}

// Of the distribution that Pick samples from; leaves the candidates of a filtered one.
double RowSampler::ProbabilityOf(const float* logits, TokenId id) {
  if (filtered_) {
    FilterCandidates(logits);
    double total = 0;
    double own = 0;
    for (const Candidate& c : candidates_) {
      const auto mass = static_cast<double>(std::exp(c.scaled - candidates_.front().scaled));
      total += mass;
      if (c.id == id) own = mass;
    }
    return own / total;
  }
  const bool allowed = allowed_.empty() || std::binary_search(allowed_.begin(), allowed_.end(), id);
  if (!allowed) return 0;
  const double inverse = 1.0 / static_cast<double>(temperature_);
  const auto max = static_cast<double>(logits[Greedy(logits)]);
  const auto mass = [&](TokenId at) {
    return std::exp((static_cast<double>(logits[at]) - max) * inverse);
  };
  double total = 0;
  if (allowed_.empty()) {
    for (TokenId at = 0; at < vocab_; ++at) total += mass(at);
  } else {
    for (const TokenId at : allowed_) total += mass(at);
  }
  return mass(id) / total;
}

SampledToken RowSampler::SampleOrReject(float* logits, int64_t position, TokenId draft,
                                        const uint64_t* mask) {
  if (temperature_ == 0.0F || Forced(mask) >= 0) return Sample(logits, position, mask);
  SampledToken out;
  out.status = Prepare(logits, mask);
  if (out.status != RowStatus::kOk) return out;
  const auto p = static_cast<uint64_t>(position);
  const uint32_t word = Philox4x32(
      key_ ^ kRejectionKey, {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0, 1})[0];
  const double probability = ProbabilityOf(logits, draft);
  if (UniformOpen(word) < probability || probability >= 1.0) {
    out.id = draft;
  } else {
    if (filtered_) {
      std::erase_if(candidates_, [draft](const Candidate& c) { return c.id == draft; });
      out.id = PickCandidate(position, key_ ^ kRejectionKey);
    } else {
      Edit(logits, draft, kMinusInf);
      out.id = SampleAll(logits, position, key_ ^ kRejectionKey);
    }
  }
  FillLogprob(logits, &out);
  return out;
}

}  // namespace deepinfer
