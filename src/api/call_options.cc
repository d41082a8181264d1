#include "api/call_options.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "api/error.h"
#include "api/json_fields.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kSaltMax = 1024;
constexpr size_t kRequestIdMax = 256;
constexpr size_t kWarningsMax = 32;

// Read here, or accepted because they only inform (user, metadata) or ask for what always holds.
constexpr std::string_view kCommonFields[] = {
    "model",
    "stream",
    "stream_options",
    "logprobs",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "cache_salt",
    "cache_prompt",
    "skip_reading_prefix_cache",
    "stream_interval",
    "priority",
    "request_id",
    "truncate_prompt_tokens",
    "truncation_side",
    "echo",
    "add_special_tokens",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "use_beam_search",
    "best_of",
    "logits_processors",
    "kv_transfer_params",
};

// Members of the objects that requests hold, for --strict-api. Objects of users' own making
// (metadata, schemas, template variables) are not among them.
constexpr std::string_view kStreamOptions[] = {"include_usage", "continuous_usage_stats",
                                               "include_obfuscation"};
constexpr std::string_view kThinking[] = {"type", "budget_tokens", "display"};
constexpr std::string_view kReasoning[] = {"effort", "summary", "generate_summary", "mode",
                                           "context"};
constexpr std::string_view kText[] = {"format", "verbosity"};
constexpr std::string_view kOutputConfig[] = {"effort", "format"};
constexpr std::string_view kFormat[] = {"type",        "json_schema", "schema", "name",
                                        "description", "strict",      "regex",  "pattern",
                                        "structures",  "triggers"};
struct NestedFields {
  std::string_view key;
  std::span<const std::string_view> known;
};
constexpr NestedFields kNested[] = {
    {"stream_options", kStreamOptions}, {"thinking", kThinking},
    {"reasoning", kReasoning},          {"text", kText},
    {"output_config", kOutputConfig},   {"response_format", kFormat},
};

Status RefuseNested(const Json& body) {
  for (const NestedFields& nested : kNested) {
    const Json* value = FindField(body, nested.key);
    if (value != nullptr) DI_TRY(CheckMembers(*value, nested.known, nested.key));
  }
  return {};
}

Status Unsupported(std::string_view key, std::string_view instead) {
  return Invalid(Format("\"{}\" is not supported{}", key, instead))
      .WithParam(std::string(key))
      .WithReason(kUnsupportedParameter);
}

Status RefuseUnsupported(const Json& body) {
  for (const char* key : {"logits_processors", "kv_transfer_params"}) {
    const Json* value = FindField(body, key);
    if (value == nullptr) continue;
    const bool empty = (value->is_string() && value->string().empty()) ||
                       (value->is_array() && value->items().empty()) ||
                       (value->is_object() && value->members().empty());
    if (!empty) return Unsupported(key, "; leave it out");
  }
  bool beam = false;
  DI_TRY(ReadBool(body, "use_beam_search", &beam));
  if (beam) return Unsupported("use_beam_search", "; use n to get several samples");
  return {};
}

Status CheckModel(const Json& body, const DialectContext& context) {
  std::string name;
  DI_TRY(ReadString(body, "model", 1024, &name));
  if (name.empty()) return {};
  const auto& names = context.names;
  for (const auto* accepted : {&names, &context.aliases}) {
    if (std::find(accepted->begin(), accepted->end(), name) != accepted->end()) return {};
  }
  return NotFound(Format("the model \"{}\" is not served here; the served model is \"{}\"", name,
                         names.empty() ? "" : names.front()))
      .WithParam("model")
      .WithReason(kModelNotFound);
}

Status ReadStreaming(const Json& body, CallOptions* options) {
  bool stream = false;
  DI_TRY(ReadBool(body, "stream", &stream));
  options->mode = stream ? DialectCall::Mode::kStream : DialectCall::Mode::kWhole;
  const Json* value = FindField(body, "stream_options");
  if (value == nullptr) return {};
  if (!stream) {
    return Invalid("\"stream_options\" needs \"stream\": true").WithParam("stream_options");
  }
  if (!value->is_object()) return WrongKind("stream_options", "an object");
  DI_TRY(ReadBool(*value, "include_usage", &options->include_usage));
  return ReadBool(*value, "continuous_usage_stats", &options->continuous_usage);
}

Status ReadTruncation(const Json& body, const DialectContext& context, CallOptions* options) {
  DI_TRY(ReadInt(body, "truncate_prompt_tokens", -1, context.max_model_len, &options->truncate_to));
  if (options->truncate_to == 0) {
    return Invalid("\"truncate_prompt_tokens\" is 0, allowed is -1 (what fits) or at least 1")
        .WithParam("truncate_prompt_tokens");
  }
  std::string side = "left";
  DI_TRY(ReadString(body, "truncation_side", 16, &side));
  if (side != "left" && side != "right") {
    return WrongKind("truncation_side", "\"left\" or \"right\"");
  }
  options->truncation =
      side == "left" ? CallOptions::Truncation::kKeepLast : CallOptions::Truncation::kKeepFirst;
  return {};
}

Status ReadCaching(const Json& body, CallOptions* options) {
  DI_TRY(ReadString(body, "cache_salt", kSaltMax, &options->cache_salt));
  const Json* salt = FindField(body, "cache_salt");
  if (salt != nullptr && options->cache_salt.empty()) {
    return WrongKind("cache_salt", Format("a text of 1 to {} bytes", kSaltMax));
  }
  bool cache = true;
  DI_TRY(ReadBool(body, "cache_prompt", &cache));
  bool skip = false;
  DI_TRY(ReadBool(body, "skip_reading_prefix_cache", &skip));
  options->skip_prefix_cache = skip || !cache;
  return {};
}

// Fields that ask for something which this server does not do, but whose answer is right without.
void WarnOfNoEffect(const Json& body, std::span<const std::string_view> known,
                    std::vector<std::string>* warnings) {
  const bool keeps = std::find(known.begin(), known.end(), "store") != known.end();
  const Json* store = FindField(body, "store");
  if (!keeps && store != nullptr && !(store->is_bool() && !*store->AsBool())) {
    warnings->push_back("\"store\" has no effect: answers are not kept");
  }
  const Json* tier = FindField(body, "service_tier");
  if (tier != nullptr && tier->string() != "auto" && tier->string() != "default" &&
      tier->string() != "standard_only") {
    warnings->push_back("\"service_tier\" has no effect: use \"priority\"");
  }
  if (FindField(body, "prompt_cache_retention") != nullptr) {
    warnings->push_back("\"prompt_cache_retention\" has no effect: unused blocks are kept");
  }
}

}  // namespace

Result<CallOptions> ReadCallOptions(const Json& body, const DialectContext& context,
                                    std::span<const std::string_view> known) {
  if (!body.is_object()) return Invalid("the request body must be a JSON object");
  DI_TRY(CheckModel(body, context));
  DI_TRY(RefuseUnsupported(body));
  CallOptions options;
  DI_TRY(ReadStreaming(body, &options));
  options.usage_style = context.usage_style;
  DI_TRY(ReadBool(body, "return_token_ids", &options.return_token_ids));
  DI_TRY(ReadBool(body, "return_tokens_as_token_ids", &options.tokens_as_ids));
  DI_TRY(ReadString(body, "request_id", kRequestIdMax, &options.request_id));
  DI_TRY(ReadCaching(body, &options));
  DI_TRY(ReadTruncation(body, context, &options));
  std::optional<int64_t> priority;
  DI_TRY(ReadInt(body, "priority", INT32_MIN, INT32_MAX, &priority));
  options.priority = static_cast<int>(priority.value_or(0));
  std::optional<int64_t> interval;
  DI_TRY(ReadInt(body, "stream_interval", 1, INT32_MAX, &interval));
  options.stream_interval = static_cast<int>(interval.value_or(context.stream_interval));
  std::vector<std::string_view> fields(std::begin(kCommonFields), std::end(kCommonFields));
  fields.insert(fields.end(), known.begin(), known.end());
  options.warnings = UnknownFieldWarnings(body, fields);
  if (context.unknown_fields == DialectContext::UnknownFields::kRefuse) {
    DI_TRY(RefuseUnknownFields(body, fields));
    DI_TRY(RefuseNested(body));
  }
  WarnOfNoEffect(body, known, &options.warnings);
  if (options.warnings.size() > kWarningsMax) options.warnings.resize(kWarningsMax);
  return options;
}

Result<Request> MakeRequest(std::vector<TokenId> prompt, const SamplingParams& sampling,
                            const CallOptions& options, const DialectContext& context,
                            const char* param) {
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] >= 0 && prompt[i] < context.vocab) continue;
    return Invalid(Format("{} has the token id {} at index {}; this model has the ids 0 to {}",
                          param, prompt[i], i, context.vocab - 1))
        .WithParam(param);
  }
  const bool scores_only = sampling.max_tokens == 0;
  const int64_t room = context.max_model_len - (scores_only ? 0 : 1);
  if (options.truncate_to.has_value()) {
    const int64_t wanted = scores_only ? 0 : sampling.max_tokens.value_or(1);
    const int64_t fits = std::max<int64_t>(context.max_model_len - wanted, 1);
    const auto keep = static_cast<size_t>(*options.truncate_to < 0 ? fits : *options.truncate_to);
    if (prompt.size() > keep) {
      if (options.truncation == CallOptions::Truncation::kKeepLast) {
        prompt.erase(prompt.begin(), prompt.end() - static_cast<ptrdiff_t>(keep));
      } else {
        prompt.resize(keep);
      }
    }
  }
  if (prompt.empty()) return Invalid("the prompt is empty").WithParam(param);
  if (static_cast<int64_t>(prompt.size()) > room) {
    return Invalid(Format("the prompt has {} tokens; the context of this model holds {}{}: "
                          "shorten the prompt, or set truncate_prompt_tokens",
                          prompt.size(), context.max_model_len,
                          scores_only ? "" : ", and a completion needs at least one of them"))
        .WithParam(param)
        .WithReason(kContextLengthExceeded);
  }
  Request request;
  request.id = options.request_id;
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  request.priority = options.priority;
  request.cache_salt = options.cache_salt;
  request.skip_prefix_cache = options.skip_prefix_cache;
  return request;
}

std::string ResponseId(std::string_view prefix, const std::string& request_id, char separator) {
  if (!request_id.empty()) return Format("{}{}{}", prefix, separator, request_id);
  std::random_device random;
  const auto word = [&] { return static_cast<uint32_t>(random()); };
  return Format("{}{}{:08x}{:08x}{:08x}{:08x}", prefix, separator, word(), word(), word(), word());
}

int64_t UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace deepinfer
