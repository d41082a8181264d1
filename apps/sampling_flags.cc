#include "apps/sampling_flags.h"

#include "base/format.h"

namespace deepinfer {
namespace {

void SetNumber(Json* out, const char* key, const std::optional<float>& value) {
  // Through text, so that 0.7 stays 0.7 and does not become the nearest float's digits.
  if (value.has_value()) out->Set(key, Json::Double(std::stod(Format("{}", *value))));
}

template <typename Int>
void SetInt(Json* out, const char* key, const std::optional<Int>& value) {
  if (value.has_value()) out->Set(key, Json::Int(*value));
}

Status SetParsed(Json* out, const char* key, const std::string& text) {
  if (text.empty()) return {};
  Result<Json> value = Json::Parse(text);
  if (!value.ok()) return Invalid(value.status().message()).WithParam(key);
  out->Set(key, std::move(value).value());
  return {};
}

}  // namespace

void SamplingFlags::AddTo(CommandLine* line) {
  line->Group("Sampling");
  line->Add("--temperature,--temp", &temperature_, "0: greedy");
  line->Add("--top-p", &top_p_, "smallest set of tokens with this mass");
  line->Add("--top-k", &top_k_, "the k likeliest tokens; 0: all");
  line->Add("--min-p", &min_p_, "tokens with at least this share of the likeliest");
  line->Add("--presence-penalty", &presence_penalty_, "-2..2, output tokens");
  line->Add("--frequency-penalty", &frequency_penalty_, "-2..2, output tokens");
  line->Add("--repetition-penalty,--repeat-penalty", &repetition_penalty_, "prompt and output");
  line->Add("--seed", &seed_, "the same seed gives the same tokens");
  line->Add("--seq-seed", &seq_seed_, "another name of --seed");
  line->Add("--max-tokens,-n,--n-predict", &max_tokens_, "most tokens of a sample");
  line->Add("--min-tokens", &min_tokens_, "no end before this many tokens");
  line->Add("--stop", &stop_, "text that ends a sample (may be repeated)");
  line->Add("--stop-token-ids", &stop_token_ids_, "JSON list of ids that end a sample");
  line->Add("--logit-bias", &logit_bias_, "JSON object: token id to bias");
  line->Add("--allowed-token-ids", &allowed_token_ids_, "JSON list: only these ids");
  line->Add("--bad-words", &bad_words_, "JSON list of texts never written");
  line->Add("--json-schema,-j", &json_schema_, "JSON Schema that the answer keeps to");
  line->AddSwitch("--json-object", &json_object_, "the answer is a JSON object");
  line->Add("--regex", &regex_, "regular expression that the whole answer matches");
  line->Add("--grammar", &grammar_, "GBNF or EBNF grammar of the answer");
  line->Add("--choice", &choice_, "JSON list of texts, one of which is the answer");
  line->AddSwitch("--ignore-eos", &ignore_eos_, "go on after the end token");
  line->AddSwitch("--include-stop-str-in-output", &include_stop_str_in_output_,
                  "keep the stop text");
  line->AddSwitch("--keep-special-tokens", &keep_special_tokens_, "write special tokens too");
}

void SamplingFlags::AddReportsTo(CommandLine* line) {
  line->Group("Sampling");
  line->Add("--n", &n_, "samples per prompt");
  line->Add("--logprobs", &logprobs_, "with --input: likeliest tokens to report for each token");
  line->Add("--prompt-logprobs", &prompt_logprobs_, "with --input: the same for prompt tokens");
}

Result<Json> SamplingFlags::ToParams() const {
  Json out = Json::Object();
  SetNumber(&out, "temperature", temperature_);
  SetNumber(&out, "top_p", top_p_);
  SetNumber(&out, "min_p", min_p_);
  SetNumber(&out, "presence_penalty", presence_penalty_);
  SetNumber(&out, "frequency_penalty", frequency_penalty_);
  SetNumber(&out, "repetition_penalty", repetition_penalty_);
  SetInt(&out, "top_k", top_k_);
  SetInt(&out, "n", n_);
  SetInt(&out, "max_tokens", max_tokens_);
  SetInt(&out, "min_tokens", min_tokens_);
  SetInt(&out, "logprobs", logprobs_);
  SetInt(&out, "prompt_logprobs", prompt_logprobs_);
  SetInt(&out, "seed", seed_);
  SetInt(&out, "seq_seed", seq_seed_);
  if (!stop_.empty()) {
    Json list = Json::Array();
    for (const std::string& text : stop_) list.Push(Json::String(text));
    out.Set("stop", std::move(list));
  }
  DI_TRY(SetParsed(&out, "stop_token_ids", stop_token_ids_));
  DI_TRY(SetParsed(&out, "logit_bias", logit_bias_));
  DI_TRY(SetParsed(&out, "allowed_token_ids", allowed_token_ids_));
  DI_TRY(SetParsed(&out, "bad_words", bad_words_));
  if (!json_schema_.empty()) out.Set("json_schema", Json::String(json_schema_));
  if (json_object_) {
    Json format = Json::Object();
    format.Set("type", Json::String("json_object"));
    out.Set("response_format", std::move(format));
  }
  if (!regex_.empty()) out.Set("guided_regex", Json::String(regex_));
  if (!grammar_.empty()) out.Set("grammar", Json::String(grammar_));
  DI_TRY(SetParsed(&out, "guided_choice", choice_));
  if (ignore_eos_) out.Set("ignore_eos", Json::Bool(true));
  if (include_stop_str_in_output_) out.Set("include_stop_str_in_output", Json::Bool(true));
  if (keep_special_tokens_) out.Set("skip_special_tokens", Json::Bool(false));
  return out;
}

}  // namespace deepinfer
