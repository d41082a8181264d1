#include "api/llama_server.h"

#include <algorithm>
#include <utility>

#include "api/call_options.h"
#include "api/error.h"
#include "api/json_fields.h"
#include "api/logprob_json.h"
#include "api/response_parts.h"
#include "base/format.h"
#include "deepinfer/version.h"

namespace deepinfer {
namespace {

// Read here, or accepted because they are hints.
constexpr std::string_view kFields[] = {
    "prompt",
    "n_probs",
    "id_slot",
    "return_tokens",
    "n_keep",
    "n_discard",
    "timings_per_token",
    "return_progress",
    "samplers",
    "min_keep",
    "sse_ping_interval",
    "repeat_last_n",
    // Refused unless they are off.
    "typical_p",
    "dry_multiplier",
    "xtc_probability",
    "dynatemp_range",
    "mirostat",
    "top_n_sigma",
    "lora",
    "response_fields",
    "post_sampling_probs",
    "image_data",
    "input_prefix",
    "input_suffix",
    "n_indent",
    "t_max_predict_ms",
};
constexpr size_t kPromptItemsMax = size_t{16} << 20;

Status Unsupported(std::string_view key) {
  return Invalid(Format("\"{}\" is not supported; leave it out", key))
      .WithParam(std::string(key))
      .WithReason(kUnsupportedParameter);
}

// Samplers that this server lacks change the text, so only what turns them off is taken.
Status RefuseSamplers(const Json& body) {
  constexpr std::pair<const char*, double> kOff[] = {
      {"typical_p", 1},      {"dry_multiplier", 0}, {"xtc_probability", 0},
      {"dynatemp_range", 0}, {"mirostat", 0},       {"top_n_sigma", -1},
  };
  for (const auto& [key, off] : kOff) {
    const Json* value = FindField(body, key);
    if (value == nullptr) continue;
    const Result<double> number = value->AsDouble();
    if (!number.ok()) return WrongKind(key, "a number");
    if (*number != off) return Unsupported(key);
  }
  for (const char* key : {"lora", "response_fields", "post_sampling_probs", "image_data",
                          "input_prefix", "input_suffix", "n_indent", "t_max_predict_ms"}) {
    const Json* value = FindField(body, key);
    const bool off = value == nullptr || (value->is_bool() && !*value->AsBool()) ||
                     (value->is_array() && value->items().empty());
    if (!off) return Unsupported(key);
  }
  return {};
}

// A text, or texts and ids in any order, which are one prompt.
Result<std::vector<TokenId>> ReadPrompt(const Json& body, const DialectContext& context) {
  const Json* prompt = FindField(body, "prompt");
  if (prompt == nullptr) return Invalid("\"prompt\" is required").WithParam("prompt");
  const bool list = prompt->is_array();
  if (!list && !prompt->is_string())
    return WrongKind("prompt", "a text, or a list of texts and ids");
  if (prompt->items().size() > kPromptItemsMax) {
    return WrongKind("prompt", Format("a list of at most {} items", kPromptItemsMax));
  }
  std::vector<TokenId> ids;
  bool first = true;
  const auto add = [&](const Json& item) -> Status {
    if (item.is_number()) {
      const Result<int64_t> id = item.AsInt();
      if (!id.ok() || *id < 0 || *id >= context.vocab) {
        return Invalid(Format("\"prompt\" holds {}, this model has the ids 0 to {}",
                              item.Dump().substr(0, 32), context.vocab - 1))
            .WithParam("prompt");
      }
      ids.push_back(static_cast<TokenId>(*id));
    } else if (item.is_string()) {
      if (context.tokenizer == nullptr) {
        return Invalid("the model has no tokenizer: send token ids").WithParam("prompt");
      }
      EncodeOptions encode;
      encode.add_special_tokens = first;
      const std::vector<TokenId> more = context.tokenizer->Encode(item.string(), encode);
      ids.insert(ids.end(), more.begin(), more.end());
    } else {
      return WrongKind("prompt", "a text, or a list of texts and ids");
    }
    first = false;
    return {};
  };
  if (!list) {
    DI_TRY(add(*prompt));
    return ids;
  }
  for (const Json& item : prompt->items()) DI_TRY(add(item));
  return ids;
}

struct LlamaOptions {
  CallOptions call;
  std::string model;
  TokenNames names;
  SamplingParams sampling;
  std::vector<TokenId> prompt;
  std::string prompt_text;
  bool return_tokens = false;
  int max_model_len = 0;
};

Json Settings(const SamplingParams& sampling, int max_model_len) {
  const auto number = [](float value) { return Json::Double(static_cast<double>(value)); };
  Json out = Json::Object();
  const int predict = sampling.max_tokens.value_or(-1);
  out.Set("n_ctx", Json::Int(max_model_len));
  out.Set("n_predict", Json::Int(predict));
  out.Set("seed", Json::Int(sampling.seed.value_or(-1)));
  out.Set("temperature", number(sampling.temperature));
  out.Set("top_k", Json::Int(sampling.top_k));
  out.Set("top_p", number(sampling.top_p));
  out.Set("min_p", number(sampling.min_p));
  out.Set("repeat_penalty", number(sampling.repetition_penalty));
  out.Set("presence_penalty", number(sampling.presence_penalty));
  out.Set("frequency_penalty", number(sampling.frequency_penalty));
  Json& stop = out.Set("stop", Json::Array());
  for (const std::string& text : sampling.stop) stop.Push(Json::String(text));
  out.Set("max_tokens", Json::Int(predict));
  out.Set("ignore_eos", Json::Bool(sampling.ignore_eos));
  out.Set("n_probs", Json::Int(sampling.logprobs.value_or(0)));
  return out;
}

// One object a chunk, the last with everything; or that one alone, with the whole text.
class LlamaResponse final : public ResponseStream {
 public:
  explicit LlamaResponse(LlamaOptions options) : options_(std::move(options)) {}

  void OnDelta(int /*prompt*/, OutputDelta delta, std::string* out) override {
    ChoiceNews news;
    news.text = std::move(delta.text);
    for (const TokenLogprob& item : delta.logprobs) {
      if (!news.chat_logprobs.empty()) news.chat_logprobs.push_back(',');
      AppendChatLogprob(&news.chat_logprobs, options_.names, item);
    }
    news.token_ids = std::move(delta.token_ids);
    news.finish = delta.finish;
    news.stop_text = std::move(delta.stop_text);
    news.usage = delta.usage;
    whole_.Fold(std::move(news));
    if (!streams() || whole_.token_ids.empty() || !whole_.Due(options_.call.stream_interval))
      return;
    std::string json = Format("{{\"index\":0,\"content\":");
    AppendJsonString(&json, whole_.text);
    json += ",\"tokens\":";
    AppendIds(&json, whole_.token_ids);
    json += Format(",\"stop\":false,\"id_slot\":-1,\"tokens_predicted\":{},\"tokens_evaluated\":{}",
                   whole_.usage.completion_tokens, options_.prompt.size());
    AppendProbabilities(&json);
    AppendFrame(out, json + "}");
    whole_.text.clear();
    whole_.token_ids.clear();
    whole_.chat_logprobs.clear();
  }

  void Finish(std::string* out) override {
    std::string json = "{\"index\":0,\"content\":";
    AppendJsonString(&json, whole_.text);
    json += ",\"tokens\":";
    AppendIds(&json, options_.return_tokens ? whole_.token_ids : std::vector<TokenId>());
    json += ",\"id_slot\":-1,\"stop\":true,\"model\":";
    AppendJsonString(&json, options_.model);
    const Usage& usage = whole_.usage;
    json += Format(
        ",\"tokens_predicted\":{},\"tokens_evaluated\":{},\"tokens_cached\":{},"
        "\"generation_settings\":{},\"prompt\":",
        usage.completion_tokens, options_.prompt.size(), usage.cached_tokens,
        Settings(options_.sampling, options_.max_model_len).Dump());
    AppendJsonString(&json, options_.prompt_text);
    const bool limit = whole_.finish == FinishReason::kLength;
    json +=
        Format(",\"has_new_line\":{},\"truncated\":false,\"stop_type\":\"{}\",\"stopping_word\":",
               whole_.text.find('\n') != std::string::npos,
               limit                      ? "limit"
               : whole_.stop_text.empty() ? "eos"
                                          : "word");
    AppendJsonString(&json, whole_.stop_text);
    AppendProbabilities(&json);
    AppendWarnings(&json, options_.call.warnings);
    json += "}";
    if (streams()) {
      AppendFrame(out, json);
    } else {
      *out += json;
    }
  }

  void Fail(const Status& status, std::string* out) override {
    if (streams()) AppendErrorFrame(out, status);
  }

 private:
  bool streams() const { return options_.call.mode == DialectCall::Mode::kStream; }
  void AppendProbabilities(std::string* json) const {
    if (!options_.sampling.logprobs.has_value()) return;
    json->append(",\"completion_probabilities\":[").append(whole_.chat_logprobs).append("]");
  }

  const LlamaOptions options_;
  ChoiceNews whole_;  // streaming: what was not sent yet
};

}  // namespace

Result<DialectCall> ParseLlamaCompletion(const Json& body, const DialectContext& context) {
  LlamaOptions options;
  DI_ASSIGN(options.call, ReadCallOptions(body, context, kFields));
  DI_TRY(RefuseSamplers(body));
  DI_ASSIGN(options.sampling, ParseSampling(body, context.defaults));
  if (options.sampling.n != 1) return Unsupported("n");
  if (options.sampling.max_tokens == 0) {
    return Invalid("\"n_predict\" is 0, allowed is -1 or at least 1").WithParam("n_predict");
  }
  std::optional<int64_t> probabilities;
  DI_TRY(
      ReadInt(body, "n_probs", 0, std::max(context.defaults.top_logprobs_max, 0), &probabilities));
  if (probabilities.value_or(0) > 0) {
    options.sampling.logprobs = static_cast<int>(*probabilities);
  }
  DI_TRY(ReadBool(body, "return_tokens", &options.return_tokens));
  DI_ASSIGN(std::vector<TokenId> ids, ReadPrompt(body, context));
  DialectCall call;
  call.mode = options.call.mode;
  DI_ASSIGN(Request request,
            MakeRequest(std::move(ids), options.sampling, options.call, context, "prompt"));
  options.prompt = request.prompt;
  if (context.tokenizer != nullptr) {
    options.prompt_text = context.tokenizer->Decode(options.prompt, false);
  }
  options.model = context.names.empty() ? "" : context.names.front();
  options.names = {context.tokenizer, TokenNaming::kText};
  options.max_model_len = context.max_model_len;
  call.requests.push_back(std::move(request));
  call.response = std::make_unique<LlamaResponse>(std::move(options));
  return call;
}

Json LlamaProps(const DialectContext& context, const SlotCounts& slots) {
  SamplingParams sampling;
  const Result<SamplingParams> defaults = ParseSampling(Json::Object(), context.defaults);
  if (defaults.ok()) sampling = *defaults;
  Json settings = Json::Object();
  settings.Set("n_ctx", Json::Int(context.max_model_len));
  settings.Set("params", Settings(sampling, context.max_model_len));
  Json out = Json::Object();
  out.Set("default_generation_settings", std::move(settings));
  out.Set("total_slots", Json::Int(slots.total));
  out.Set("model_alias", Json::String(context.names.empty() ? "" : context.names.front()));
  Json& modalities = out.Set("modalities", Json::Object());
  modalities.Set("vision", Json::Bool(false));
  modalities.Set("audio", Json::Bool(false));
  Json& caps = out.Set("chat_template_caps", Json::Object());
  caps.Set("supports_tools", Json::Bool(context.output.tools == OutputStyle::Tools::kRendered));
  const auto piece = [&](TokenId id) {
    const bool known = context.tokenizer != nullptr && id >= 0;
    return Json::String(known ? context.tokenizer->Piece(id) : std::string());
  };
  out.Set("bos_token", piece(context.tokenizer == nullptr ? -1 : context.tokenizer->bos_id()));
  out.Set("eos_token", piece(context.tokenizer == nullptr ? -1 : context.tokenizer->eos_id()));
  out.Set("build_info", Json::String(Format("deepinfer {}", kVersion)));
  return out;
}

Json LlamaSlots(const DialectContext& context, const SlotCounts& slots) {
  Json out = Json::Array();
  for (int64_t i = 0; i < slots.total; ++i) {
    Json& slot = out.Push(Json::Object());
    slot.Set("id", Json::Int(i));
    slot.Set("n_ctx", Json::Int(context.max_model_len));
    slot.Set("is_processing", Json::Bool(i < slots.running));
  }
  return out;
}

}  // namespace deepinfer
