#include "api/completion_response.h"

#include <utility>

#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

std::vector<int64_t> PromptLengths(const CompletionResponseOptions& options) {
  std::vector<int64_t> lengths;
  for (const auto& prompt : options.prompts) {
    lengths.push_back(static_cast<int64_t>(prompt.ids.size()));
  }
  return lengths;
}

}  // namespace

CompletionResponse::CompletionResponse(CompletionResponseOptions options)
    : options_(std::move(options)),
      open_(options_.envelope.Open("text_completion")),
      totals_(PromptLengths(options_), options_.samples),
      choices_(options_.prompts.size() * static_cast<size_t>(options_.samples),
               Choice(CompletionLogprobWriter(options_.names, options_.special))),
      echo_logprobs_(options_.prompts.size()),
      early_(options_.prompts.size()) {}

void CompletionResponse::OnDelta(int prompt, OutputDelta delta, std::string* out) {
  if (!EchoesLogprobs()) {
    Emit(prompt, std::move(delta), out);
    return;
  }
  // The engine computes the prompt's log-probabilities once, with the first sample.
  const auto p = static_cast<size_t>(prompt);
  if (!delta.prompt_logprobs.empty()) echo_logprobs_[p] = delta.prompt_logprobs;
  if (!echo_logprobs_[p].has_value()) {
    early_[p].push_back(std::move(delta));
    return;
  }
  for (OutputDelta& waiting : std::exchange(early_[p], {})) Emit(prompt, std::move(waiting), out);
  Emit(prompt, std::move(delta), out);
}

ChoiceNews CompletionResponse::NewsOf(int prompt, OutputDelta delta) {
  const auto p = static_cast<size_t>(prompt);
  ChoiceNews news;
  news.index = prompt * options_.samples + delta.sample;
  Choice& choice = choices_[static_cast<size_t>(news.index)];
  if (!choice.started && options_.echo) {
    const CompletionResponseOptions::Prompt& echo = options_.prompts[p];
    news.text = echo.echo;
    if (EchoesLogprobs()) {
      const auto& logprobs = *echo_logprobs_[p];
      for (size_t i = 0; i < echo.ids.size(); ++i) {
        choice.writer.Add(echo.ids[i], i < logprobs.size() ? logprobs[i] : std::nullopt,
                          &news.completion_logprobs);
      }
    }
  }
  news.text += delta.text;
  if (options_.logprobs) {
    for (TokenLogprob& item : delta.logprobs) {
      const TokenId id = item.id;
      choice.writer.Add(id, std::move(item), &news.completion_logprobs);
    }
  }
  if (options_.prompt_logprobs && !delta.prompt_logprobs.empty()) {
    AppendPromptLogprobs(&news.prompt_logprobs, options_.names, delta.prompt_logprobs);
  }
  news.token_ids = std::move(delta.token_ids);
  news.finish = delta.finish;
  news.stop_text = std::move(delta.stop_text);
  news.stop_token = delta.stop_token;
  news.usage = delta.usage;
  return news;
}

void CompletionResponse::Emit(int prompt, OutputDelta delta, std::string* out) {
  ChoiceNews news = NewsOf(prompt, std::move(delta));
  Choice& choice = choices_[static_cast<size_t>(news.index)];
  const bool first = !std::exchange(choice.started, true);
  totals_.Update(prompt, news.index, news.usage);
  const int index = news.index;
  choice.whole.Fold(std::move(news));
  if (options_.call.mode == DialectCall::Mode::kWhole) return;
  if (!first && !choice.whole.Due(options_.call.stream_interval)) return;
  news = std::exchange(choice.whole, {});
  news.index = index;
  const bool silent = news.text.empty() && news.completion_logprobs.empty() &&
                      news.prompt_logprobs.empty() && news.finish == FinishReason::kNone &&
                      !options_.call.return_token_ids;
  if (!silent) AppendChunk(out, news, prompt, first);
}

void CompletionResponse::AppendChoice(std::string* out, const ChoiceNews& news, int prompt,
                                      bool first) const {
  out->append(Format("{{\"index\":{},\"text\":", news.index));
  AppendJsonString(out, news.text);
  out->append(",\"logprobs\":");
  if (news.completion_logprobs.empty()) {
    out->append("null");
  } else {
    news.completion_logprobs.AppendTo(out);
  }
  out->append(",\"finish_reason\":");
  AppendFinish(out, news.finish);
  out->append(",\"stop_reason\":");
  AppendStopReason(out, news, options_.stop_token_ids);
  if (!news.prompt_logprobs.empty()) {
    out->append(",\"prompt_logprobs\":").append(news.prompt_logprobs);
  }
  if (options_.call.return_token_ids) {
    out->append(",\"token_ids\":");
    AppendIds(out, news.token_ids);
    if (first) {
      out->append(",\"prompt_token_ids\":");
      AppendIds(out, options_.prompts[static_cast<size_t>(prompt)].ids);
    }
  }
  out->push_back('}');
}

void CompletionResponse::AppendChunk(std::string* out, const ChoiceNews& news, int prompt,
                                     bool first) const {
  std::string json = open_;
  json.append(",\"choices\":[");
  AppendChoice(&json, news, prompt, first);
  json.push_back(']');
  if (options_.call.continuous_usage) {
    json.append(",\"usage\":");
    totals_.AppendChoice(&json, prompt, news.index);
  } else if (options_.call.include_usage) {
    json.append(",\"usage\":null");
  }
  if (news.index == 0 && first) AppendWarnings(&json, options_.call.warnings);
  json.push_back('}');
  AppendFrame(out, json);
}

void CompletionResponse::Finish(std::string* out) {
  for (size_t p = 0; p < early_.size(); ++p) {  // the prompt's own never came
    if (!early_[p].empty()) echo_logprobs_[p].emplace();
    for (OutputDelta& waiting : std::exchange(early_[p], {})) {
      Emit(static_cast<int>(p), std::move(waiting), out);
    }
  }
  if (options_.call.mode == DialectCall::Mode::kStream) {
    if (options_.call.include_usage) {
      std::string json = open_;
      json.append(",\"choices\":[],\"usage\":");
      totals_.AppendTotal(&json);
      json.push_back('}');
      AppendFrame(out, json);
    }
    out->append(kDoneFrame);
    return;
  }
  out->append(open_).append(",\"choices\":[");
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out->push_back(',');
    const int prompt = static_cast<int>(i) / options_.samples;
    ChoiceNews& whole = choices_[i].whole;
    whole.index = static_cast<int>(i);
    AppendChoice(out, whole, prompt, true);
    whole = {};
  }
  out->append("],\"usage\":");
  totals_.AppendTotal(out);
  AppendWarnings(out, options_.call.warnings);
  out->push_back('}');
}

void CompletionResponse::Fail(const Status& status, std::string* out) {
  if (options_.call.mode == DialectCall::Mode::kStream) AppendErrorFrame(out, status);
}

}  // namespace deepinfer
