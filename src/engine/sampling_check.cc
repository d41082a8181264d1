#include "engine/sampling_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/format.h"

namespace deepinfer {
namespace {

constexpr int kSamplesMax = 128;
constexpr size_t kStopStringsMax = 256;
constexpr size_t kStopStringBytesMax = 4096;
constexpr size_t kStopIdsMax = 4096;
constexpr size_t kBadWordsMax = 4096;
constexpr size_t kBadWordTokensMax = 256;
constexpr size_t kBadWordBytesMax = 1024;
constexpr float kLogitBiasMax = 100.0F;

Status Bad(const char* param, std::string message) {
  return Invalid(std::move(message)).WithParam(param);
}

// NaN fails every comparison, so it fails here too.
Status CheckRange(const char* param, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return Bad(param, Format("{} is {}; it must be between {} and {}", param, value, low, high));
}

Status CheckCount(const char* param, size_t count, size_t max) {
  if (count <= max) return {};
  return Bad(param, Format("{} has {} entries; at most {} are allowed", param, count, max));
}

Status CheckNumbers(const SamplingParams& s) {
  if (s.n < 1 || s.n > kSamplesMax) {
    return Bad("n", Format("n is {}; it must be between 1 and {}", s.n, kSamplesMax));
  }
  DI_TRY(CheckRange("temperature", s.temperature, 0.0F, 2.0F));
  if (!(s.top_p > 0.0F && s.top_p <= 1.0F)) {
    return Bad("top_p", Format("top_p is {}; it must be above 0 and at most 1", s.top_p));
  }
  if (s.top_k < -1) {
    return Bad("top_k", Format("top_k is {}; it must be at least 1, or 0 or -1 for all", s.top_k));
  }
  DI_TRY(CheckRange("min_p", s.min_p, 0.0F, 1.0F));
  DI_TRY(CheckRange("presence_penalty", s.presence_penalty, -2.0F, 2.0F));
  DI_TRY(CheckRange("frequency_penalty", s.frequency_penalty, -2.0F, 2.0F));
  if (!(s.repetition_penalty > 0.0F && std::isfinite(s.repetition_penalty))) {
    return Bad("repetition_penalty", Format("repetition_penalty is {}; it must be a number above 0",
                                            s.repetition_penalty));
  }
  if (s.max_tokens.has_value() && *s.max_tokens < 0) {
    return Bad("max_tokens", Format("max_tokens is {}; it must not be negative", *s.max_tokens));
  }
  if (s.min_tokens < 0) {
    return Bad("min_tokens", Format("min_tokens is {}; it must not be negative", s.min_tokens));
  }
  if (s.max_tokens.has_value() && s.min_tokens > *s.max_tokens) {
    return Bad("min_tokens", Format("min_tokens is {}, more than max_tokens, which is {}",
                                    s.min_tokens, *s.max_tokens));
  }
  return {};
}

Status CheckLogprobs(const char* param, const std::optional<int>& value,
                     const SamplingLimits& limits) {
  if (!value.has_value()) return {};
  const int max = limits.max_logprobs < 0 ? limits.vocab : limits.max_logprobs;
  const int asked = *value == -1 ? limits.vocab : *value;
  if (asked >= 0 && asked <= max) return {};
  return Bad(param, Format("{} is {}; it must be between 0 and {} (max_logprobs){}", param, *value,
                           max, max >= limits.vocab ? ", or -1 for the whole vocabulary" : ""));
}

Status CheckStops(const SamplingParams& s, const Tokenizer* tokenizer) {
  DI_TRY(CheckCount("stop", s.stop.size(), kStopStringsMax));
  for (const std::string& stop : s.stop) {
    if (stop.empty()) return Bad("stop", "a stop string is empty");
    if (stop.size() > kStopStringBytesMax) {
      return Bad("stop", Format("a stop string has {} bytes; at most {} are allowed", stop.size(),
                                kStopStringBytesMax));
    }
  }
  if (!s.stop.empty() && (tokenizer == nullptr || !s.detokenize)) {
    return Bad("stop", tokenizer == nullptr
                           ? "stop strings need a tokenizer, which this model does not have"
                           : "stop strings need detokenize to be true");
  }
  return CheckCount("stop_token_ids", s.stop_token_ids.size(), kStopIdsMax);
}

Status CheckThinking(const ThinkingBudget& thinking, const SamplingLimits& limits) {
  if (thinking.tokens < 0 || thinking.end.empty()) {
    return Bad("thinking", Format("a thinking budget of {} tokens needs at least 0 and a mark that "
                                  "ends thinking",
                                  thinking.tokens));
  }
  return ValidateIds(thinking.end, limits.vocab, "thinking");
}

Status CheckIdLists(const SamplingParams& s, const SamplingLimits& limits) {
  DI_TRY(ValidateIds(s.stop_token_ids, limits.vocab, "stop_token_ids"));
  DI_TRY(CheckCount("allowed_token_ids", s.allowed_token_ids.size(),
                    static_cast<size_t>(limits.vocab)));
  DI_TRY(ValidateIds(s.allowed_token_ids, limits.vocab, "allowed_token_ids"));
  DI_TRY(CheckCount("logit_bias", s.logit_bias.size(), static_cast<size_t>(limits.vocab)));
  for (const auto& [id, bias] : s.logit_bias) {
    DI_TRY(ValidateIds(std::span(&id, 1), limits.vocab, "logit_bias"));
    if (!(bias >= -kLogitBiasMax && bias <= kLogitBiasMax)) {
      return Bad("logit_bias", Format("the bias of token {} is {}; it must be between {} and {}",
                                      id, bias, -kLogitBiasMax, kLogitBiasMax));
    }
  }
  DI_TRY(CheckCount("bad_words", s.bad_words.size(), kBadWordsMax));
  for (const std::vector<TokenId>& word : s.bad_words) {
    if (word.empty()) return Bad("bad_words", "a bad word has no token");
    DI_TRY(CheckCount("bad_words", word.size(), kBadWordTokensMax));
    DI_TRY(ValidateIds(word, limits.vocab, "bad_words"));
  }
  return {};
}

// A word is banned where a text begins and after a space, if that gives another single spelling of
// the same length: the meaning that vLLM gives to bad_words.
Status TokeniseBadWords(SamplingParams* s, const Tokenizer* tokenizer) {
  if (s->bad_words_text.empty()) return {};
  if (tokenizer == nullptr) {
    return Bad("bad_words", "bad words need a tokenizer, which this model does not have");
  }
  DI_TRY(CheckCount("bad_words", s->bad_words_text.size(), kBadWordsMax));
  for (const std::string& text : s->bad_words_text) {
    if (text.size() > kBadWordBytesMax) {
      return Bad("bad_words", Format("a bad word has {} bytes; at most {} are allowed", text.size(),
                                     kBadWordBytesMax));
    }
    const size_t begin = text.find_first_not_of(" \t\n\r");
    if (begin == std::string::npos) return Bad("bad_words", "a bad word is empty");
    const std::string word = text.substr(begin);
    EncodeOptions options;
    options.add_special_tokens = false;
    std::vector<TokenId> plain = tokenizer->Encode(word, options);
    std::vector<TokenId> spaced = tokenizer->Encode(" " + word, options);
    if (plain.empty()) return Bad("bad_words", Format("the bad word '{}' has no token", word));
    const bool keep_spaced =
        !spaced.empty() && spaced.front() != plain.front() && spaced.size() == plain.size();
    s->bad_words.push_back(std::move(plain));
    if (keep_spaced) s->bad_words.push_back(std::move(spaced));
  }
  s->bad_words_text.clear();
  return {};
}

}  // namespace

Status ValidateIds(std::span<const TokenId> ids, int vocab, const char* param) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    return Bad(param, Format("{} has the token id {} at index {}; the vocabulary of this model has "
                             "the ids 0 to {}",
                             param, ids[i], i, vocab - 1));
  }
  return {};
}

Status ValidateImages(std::span<const TokenId> prompt, TokenId image_id) {
  if (image_id < 0) return {};
  const auto found = std::find(prompt.begin(), prompt.end(), image_id);
  if (found == prompt.end()) return {};
  return Bad("prompt",
             Format("token {} at position {} stands for an image, but the request has none",
                    image_id, found - prompt.begin()));
}

Status ValidateSampling(SamplingParams* sampling, const SamplingLimits& limits,
                        const Tokenizer* tokenizer) {
  DI_TRY(CheckNumbers(*sampling));
  DI_TRY(CheckLogprobs("logprobs", sampling->logprobs, limits));
  DI_TRY(CheckLogprobs("prompt_logprobs", sampling->prompt_logprobs, limits));
  DI_TRY(CheckStops(*sampling, tokenizer));
  DI_TRY(TokeniseBadWords(sampling, tokenizer));
  if (sampling->thinking.has_value()) DI_TRY(CheckThinking(*sampling->thinking, limits));
  return CheckIdLists(*sampling, limits);
}

}  // namespace deepinfer
