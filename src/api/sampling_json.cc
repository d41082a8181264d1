#include "api/sampling_json.h"

#include <charconv>
#include <cmath>

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
constexpr size_t kBadWordsMax = 1024;

bool Present(const Json* value) { return value != nullptr && !value->is_null(); }

Status WrongKind(std::string_view key, std::string_view wanted) {
  return Invalid(Format("\"{}\" must be {}", key, wanted)).WithParam(std::string(key));
}

// A number in [low, high] (or (low, high] with open_low) under `key`.
struct Range {
  double low, high;
  enum class Low { kClosed, kOpen } kind = Low::kClosed;
};

Status ReadFloat(const Json& body, std::string_view key, Range range, float* out) {
  const Json* value = body.Find(key);
  if (!Present(value)) return {};
  const Result<double> number = value->AsDouble();
  if (!number.ok()) return WrongKind(key, "a finite number");
  const bool low_ok = range.kind == Range::Low::kOpen ? *number > range.low : *number >= range.low;
  if (!low_ok || *number > range.high) {
    return Invalid(Format("\"{}\" is {}, allowed is {}{}, {}]", key, value->string(),
                          range.kind == Range::Low::kOpen ? "(" : "[", range.low, range.high))
        .WithParam(std::string(key));
  }
  *out = static_cast<float>(*number);
  return {};
}

Status ReadInt(const Json& body, std::string_view key, int64_t low, int64_t high,
               std::optional<int64_t>* out) {
  const Json* value = body.Find(key);
  if (!Present(value)) return {};
  const Result<int64_t> number = value->AsInt();
  if (!number.ok()) return WrongKind(key, "an integer");
  if (*number < low || *number > high) {
    return Invalid(Format("\"{}\" is {}, allowed is {}..{}", key, *number, low, high))
        .WithParam(std::string(key));
  }
  *out = *number;
  return {};
}

Status ReadBool(const Json& body, std::string_view key, bool* out) {
  const Json* value = body.Find(key);
  if (!Present(value)) return {};
  if (!value->is_bool()) return WrongKind(key, "true or false");
  *out = *value->AsBool();
  return {};
}

Status ReadIds(const Json& body, std::string_view key, std::vector<TokenId>* out) {
  const Json* value = body.Find(key);
  if (!Present(value)) return {};
  if (!value->is_array()) return WrongKind(key, "a list of token ids");
  if (value->items().size() > kIdsMax) {
    return WrongKind(key, Format("a list of at most {} token ids", kIdsMax));
  }
  for (const Json& item : value->items()) {
    const Result<int64_t> id = item.AsInt();
    if (!id.ok() || *id < 0 || *id > INT32_MAX) {
      return Invalid(Format("\"{}\" holds {}, which is no token id", key, item.Dump()))
          .WithParam(std::string(key));
    }
    out->push_back(static_cast<TokenId>(*id));
  }
  return {};
}

// A text or a list of texts, each 1..bytes_max bytes; empty ones are dropped.
Status ReadTexts(const Json& body, std::string_view key, size_t count_max, size_t bytes_max,
                 std::vector<std::string>* out) {
  const Json* value = body.Find(key);
  if (!Present(value)) return {};
  const auto add = [&](const Json& item) -> Status {
    if (!item.is_string()) return WrongKind(key, "a text or a list of texts");
    if (item.string().size() > bytes_max) {
      return Invalid(Format("\"{}\" holds a text of {} bytes, allowed are {}", key,
                            item.string().size(), bytes_max))
          .WithParam(std::string(key));
    }
    if (!item.string().empty()) out->push_back(item.string());
    return {};
  };
  if (value->is_string()) return add(*value);
  if (!value->is_array()) return WrongKind(key, "a text or a list of texts");
  if (value->items().size() > count_max) {
    return Invalid(Format("\"{}\" holds {} texts, allowed are {}", key, value->items().size(),
                          count_max))
        .WithParam(std::string(key));
  }
  for (const Json& item : value->items()) DI_TRY(add(item));
  return {};
}

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
  const Json* value = body.Find("logit_bias");
  if (!Present(value)) return {};
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
  DI_TRY(ReadFloat(body, "top_p", {0, 1, Range::Low::kOpen}, &out->top_p));
  DI_TRY(ReadFloat(body, "min_p", {0, 1}, &out->min_p));
  DI_TRY(ReadFloat(body, "presence_penalty", {-2, 2}, &out->presence_penalty));
  DI_TRY(ReadFloat(body, "frequency_penalty", {-2, 2}, &out->frequency_penalty));
  DI_TRY(ReadFloat(body, "repeat_penalty", {0, 10, Range::Low::kOpen}, &out->repetition_penalty));
  DI_TRY(
      ReadFloat(body, "repetition_penalty", {0, 10, Range::Low::kOpen}, &out->repetition_penalty));
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
  DI_TRY(ReadIds(body, "stop_token_ids", &out.stop_token_ids));
  DI_TRY(ReadIds(body, "allowed_token_ids", &out.allowed_token_ids));
  DI_TRY(ReadLogitBias(body, &out));
  DI_TRY(ReadBool(body, "include_stop_str_in_output", &out.include_stop_str_in_output));
  DI_TRY(ReadBool(body, "ignore_eos", &out.ignore_eos));
  DI_TRY(ReadBool(body, "skip_special_tokens", &out.skip_special_tokens));
  DI_TRY(ReadBool(body, "spaces_between_special_tokens", &out.spaces_between_special_tokens));
  DI_TRY(ReadBool(body, "detokenize", &out.detokenize));
  return out;
}

Result<std::optional<int>> ReadLogprobCount(const Json& body, std::string_view key, int limit) {
  const Json* value = body.Find(key);
  if (!Present(value) || (value->is_bool() && !*value->AsBool())) return std::optional<int>();
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
  return false;
}

std::vector<std::string> UnknownFieldWarnings(const Json& body,
                                              std::span<const std::string_view> known) {
  std::vector<std::string> out;
  for (const auto& [key, value] : body.members()) {
    bool found = IsSamplingField(key);
    for (std::string_view name : known) found = found || name == key;
    if (!found) out.push_back(Format("unknown field \"{}\" was ignored", key.substr(0, 64)));
  }
  return out;
}

}  // namespace deepinfer
