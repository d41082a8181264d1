#include "api/sampling_json.h"

#include <algorithm>
#include <charconv>

#include "api/error.h"
#include "api/grammar_json.h"
#include "api/json_fields.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr std::string_view kFields[] = {
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repeat_penalty",
    "seed",
    "seq_seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "detokenize",
};
constexpr size_t kStopsMax = 16;
constexpr size_t kStopBytesMax = 256;
constexpr size_t kIdsMax = 4096;
constexpr size_t kAllowedMax = size_t{1} << 20;
constexpr size_t kBadWordsMax = 1024;

Status AddBias(std::string_view id_text, const Json& bias, SamplingParams* out) {
  TokenId id = 0;
  const auto [end, error] = std::from_chars(id_text.data(), id_text.data() + id_text.size(), id);
  if (error != std::errc() || end != id_text.data() + id_text.size() || id < 0) {
    return Invalid(
               Format("\"logit_bias\" names \"{}\", which is no token id", id_text.substr(0, 32)))
        .WithParam("logit_bias");
  }
  float value = -100.0F;  // llama.cpp: false bans the token
  if (!(bias.is_bool() && !*bias.AsBool())) {
    const Result<double> number = bias.AsDouble();
    if (!number.ok() || *number < -100 || *number > 100) {
      return Invalid(Format("\"logit_bias\" of {} is {}, allowed is -100..100", id, bias.Dump()))
          .WithParam("logit_bias");
    }
    value = static_cast<float>(*number);
  }
  out->logit_bias.emplace_back(id, value);
  return {};
}

// OpenAI: {"id": bias}; llama.cpp: [[id, bias], ...].
Status ReadLogitBias(const Json& body, SamplingParams* out) {
  const Json* value = FindField(body, "logit_bias");
  if (value == nullptr) return {};
  if (value->is_object()) {
    if (value->members().size() > kIdsMax) return WrongKind("logit_bias", "of at most 4096 ids");
    for (const auto& [id, bias] : value->members()) DI_TRY(AddBias(id, bias, out));
    return {};
  }
  if (!value->is_array() || value->items().size() > kIdsMax) {
    return WrongKind("logit_bias", "an object from token id to bias, of at most 4096 ids");
  }
  for (const Json& pair : value->items()) {
    if (!pair.is_array() || pair.items().size() != 2 || !pair.items()[0].is_number()) {
      return WrongKind("logit_bias", "a list of [id, bias] pairs");
    }
    DI_TRY(AddBias(pair.items()[0].string(), pair.items()[1], out));
  }
  return {};
}

Status ReadSeed(const Json& body, SamplingParams* out) {
  std::optional<int64_t> seed, seq_seed;
  DI_TRY(ReadInt(body, "seed", INT64_MIN, INT64_MAX, &seed));
  DI_TRY(ReadInt(body, "seq_seed", INT64_MIN, INT64_MAX, &seq_seed));
  if (seed.has_value() && seq_seed.has_value() && *seed != *seq_seed) {
    return Invalid(Format("\"seed\" is {} and \"seq_seed\" is {}: they are the same parameter, "
                          "give one",
                          *seed, *seq_seed))
        .WithParam("seq_seed");
  }
  const std::optional<int64_t> given = seed.has_value() ? seed : seq_seed;
  if (given.has_value() && *given >= 0) out->seed = given;  // negative: random, as llama.cpp
  return {};
}

Status ReadLengths(const Json& body, const SamplingDefaults& defaults, SamplingParams* out) {
  std::optional<int64_t> count;
  DI_TRY(ReadInt(body, "n", 1, 128, &count));
  out->n = static_cast<int>(count.value_or(1));
  std::optional<int64_t> tokens, newer, llama;
  DI_TRY(ReadInt(body, "max_completion_tokens", 1, INT32_MAX, &newer));
  DI_TRY(ReadInt(body, "max_tokens", 0, INT32_MAX, &tokens));
  DI_TRY(ReadInt(body, "n_predict", -1, INT32_MAX, &llama));
  if (newer.has_value()) tokens = newer;
  out->max_tokens = defaults.max_tokens;
  if (tokens.has_value()) {
    out->max_tokens = static_cast<int>(*tokens);
  } else if (llama.has_value()) {
    out->max_tokens = *llama < 0 ? std::nullopt : std::optional<int>(static_cast<int>(*llama));
  }
  std::optional<int64_t> min_tokens;
  DI_TRY(ReadInt(body, "min_tokens", 0, INT32_MAX, &min_tokens));
  out->min_tokens = static_cast<int>(min_tokens.value_or(0));
  if (out->max_tokens.has_value() && out->min_tokens > *out->max_tokens) {
    return Invalid(Format("\"min_tokens\" is {}, more than \"max_tokens\" {}", out->min_tokens,
                          *out->max_tokens))
        .WithParam("min_tokens");
  }
  return {};
}

Status ReadDistribution(const Json& body, const SamplingDefaults& defaults, SamplingParams* out) {
  out->temperature = defaults.temperature.value_or(1.0F);
  out->top_p = defaults.top_p.value_or(1.0F);
  out->min_p = defaults.min_p.value_or(0.0F);
  out->repetition_penalty = defaults.repetition_penalty.value_or(1.0F);
  DI_TRY(ReadFloat(body, "temperature", {0, 2}, &out->temperature));
  DI_TRY(ReadFloat(body, "top_p", {0, 1, NumberRange::Low::kOpen}, &out->top_p));
  DI_TRY(ReadFloat(body, "min_p", {0, 1}, &out->min_p));
  DI_TRY(ReadFloat(body, "presence_penalty", {-2, 2}, &out->presence_penalty));
  DI_TRY(ReadFloat(body, "frequency_penalty", {-2, 2}, &out->frequency_penalty));
  DI_TRY(ReadFloat(body, "repeat_penalty", {0, 10, NumberRange::Low::kOpen},
                   &out->repetition_penalty));
  DI_TRY(ReadFloat(body, "repetition_penalty", {0, 10, NumberRange::Low::kOpen},
                   &out->repetition_penalty));
  std::optional<int64_t> top_k;
  DI_TRY(ReadInt(body, "top_k", -1, INT32_MAX, &top_k));
  out->top_k = static_cast<int>(top_k.value_or(defaults.top_k.value_or(0)));
  return {};
}

}  // namespace

Result<SamplingParams> ParseSampling(const Json& body, const SamplingDefaults& defaults) {
  SamplingParams out;
  DI_TRY(ReadLengths(body, defaults, &out));
  DI_TRY(ReadDistribution(body, defaults, &out));
  DI_TRY(ReadSeed(body, &out));
  DI_TRY(ReadTexts(body, "stop", kStopsMax, kStopBytesMax, &out.stop));
  DI_TRY(ReadTexts(body, "bad_words", kBadWordsMax, kStopBytesMax, &out.bad_words_text));
  DI_TRY(ReadIds(body, "stop_token_ids", kIdsMax, &out.stop_token_ids));
  DI_TRY(ReadIds(body, "allowed_token_ids", kAllowedMax, &out.allowed_token_ids));
  DI_TRY(ReadLogitBias(body, &out));
  DI_TRY(ReadBool(body, "include_stop_str_in_output", &out.include_stop_str_in_output));
  DI_TRY(ReadBool(body, "ignore_eos", &out.ignore_eos));
  DI_TRY(ReadBool(body, "skip_special_tokens", &out.skip_special_tokens));
  DI_TRY(ReadBool(body, "spaces_between_special_tokens", &out.spaces_between_special_tokens));
  DI_TRY(ReadBool(body, "detokenize", &out.detokenize));
  DI_ASSIGN(out.grammar, ReadGrammar(body));
  return out;
}

Result<std::optional<int>> ReadLogprobCount(const Json& body, std::string_view key, int limit) {
  const Json* value = FindField(body, key);
  if (value == nullptr || (value->is_bool() && !*value->AsBool())) return std::optional<int>();
  const Result<int64_t> count = value->AsInt();
  if (!count.ok()) return WrongKind(key, "an integer");
  const int64_t high = limit < 0 ? INT32_MAX : limit;
  if (*count < -1 || *count > high || (*count == -1 && limit >= 0)) {
    return Invalid(Format("\"{}\" is {}, allowed is 0..{} (-1, all tokens, needs --max-logprobs "
                          "-1)",
                          key, *count, high))
        .WithParam(std::string(key));
  }
  return std::optional<int>(static_cast<int>(*count));
}

bool IsSamplingField(std::string_view key) {
  for (std::string_view field : kFields) {
    if (field == key) return true;
  }
  return IsGrammarField(key);
}

namespace {

bool IsKnown(std::string_view key, std::span<const std::string_view> known) {
  return IsSamplingField(key) || std::find(known.begin(), known.end(), key) != known.end();
}

}  // namespace

std::vector<std::string> UnknownFieldWarnings(const Json& body,
                                              std::span<const std::string_view> known) {
  std::vector<std::string> out;
  for (const auto& [key, value] : body.members()) {
    if (IsKnown(key, known)) continue;
    out.push_back(Format("unknown field \"{}\" was ignored", key.substr(0, 64)));
  }
  return out;
}

Status RefuseUnknownFields(const Json& body, std::span<const std::string_view> known) {
  for (const auto& [key, value] : body.members()) {
    if (IsKnown(key, known)) continue;
    return Invalid(Format("unknown field \"{}\"", key.substr(0, 64)))
        .WithParam(key.substr(0, 64))
        .WithReason(kUnknownParameter);
  }
  return {};
}

}  // namespace deepinfer
