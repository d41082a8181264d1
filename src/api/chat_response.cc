#include "api/chat_response.h"

#include <utility>

#include "base/format.h"
#include "base/json.h"

namespace deepinfer {

ChatResponse::ChatResponse(ChatResponseOptions options)
    : options_(std::move(options)),
      open_(options_.envelope.Open(options_.call.mode == DialectCall::Mode::kStream
                                       ? "chat.completion.chunk"
                                       : "chat.completion") +
            ",\"system_fingerprint\":null"),
      totals_({static_cast<int64_t>(options_.prompt_ids.size())}, options_.samples),
      choices_(static_cast<size_t>(options_.samples)) {}

ChoiceNews ChatResponse::NewsOf(OutputDelta delta) const {
  ChoiceNews news;
  news.index = delta.sample;
  if (!choices_[static_cast<size_t>(news.index)].started) news.text = options_.echo;
  news.text += delta.text;
  if (options_.logprobs) {
    for (const TokenLogprob& item : delta.logprobs) {
      if (!news.chat_logprobs.empty()) news.chat_logprobs.push_back(',');
      AppendChatLogprob(&news.chat_logprobs, options_.names, item);
    }
  }
  if (!delta.prompt_logprobs.empty()) {
    AppendPromptLogprobs(&news.prompt_logprobs, options_.names, delta.prompt_logprobs);
  }
  news.token_ids = std::move(delta.token_ids);
  news.finish = delta.finish;
  news.stop_text = std::move(delta.stop_text);
  news.stop_token = delta.stop_token;
  news.usage = delta.usage;
  return news;
}

void ChatResponse::OnDelta(int prompt, OutputDelta delta, std::string* out) {
  ChoiceNews news = NewsOf(std::move(delta));
  Choice& choice = choices_[static_cast<size_t>(news.index)];
  const bool first = !std::exchange(choice.started, true);
  totals_.Update(prompt, news.index, news.usage);
  if (!news.prompt_logprobs.empty()) prompt_logprobs_ = std::exchange(news.prompt_logprobs, {});
  choice.whole.Fold(std::move(news));
  if (options_.call.mode == DialectCall::Mode::kWhole) return;
  if (!first && !choice.whole.Due(options_.call.stream_interval)) return;
  AppendChunks(out, std::exchange(choice.whole, {}), first);
}

void ChatResponse::AppendLogprobs(std::string* out, const ChoiceNews& news) const {
  if (!options_.logprobs || news.chat_logprobs.empty()) {
    out->append("\"logprobs\":null");
    return;
  }
  out->append("\"logprobs\":{\"content\":[").append(news.chat_logprobs);
  out->append("],\"refusal\":null}");
}

void ChatResponse::AppendChunk(std::string* out, const ChoiceNews& news, std::string_view choice,
                               bool first) const {
  std::string json = open_;
  json.append(Format(",\"choices\":[{{\"index\":{},", news.index)).append(choice).append("}]");
  if (first && news.index == 0) {
    if (options_.call.return_token_ids) {
      json.append(",\"prompt_token_ids\":");
      AppendIds(&json, options_.prompt_ids);
    }
    AppendWarnings(&json, options_.call.warnings);
  }
  if (options_.call.continuous_usage) {
    json.append(",\"usage\":");
    totals_.AppendChoice(&json, 0, news.index);
  } else if (options_.call.include_usage) {
    json.append(",\"usage\":null");
  }
  json.push_back('}');
  AppendFrame(out, json);
}

void ChatResponse::AppendChunks(std::string* out, const ChoiceNews& news, bool first) const {
  if (first) {
    AppendChunk(out, news,
                "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                "\"finish_reason\":null",
                true);
  }
  const bool ids = options_.call.return_token_ids && !news.token_ids.empty();
  if (!news.text.empty() || !news.chat_logprobs.empty() || ids) {
    std::string choice = "\"delta\":{\"content\":";
    AppendJsonString(&choice, news.text);
    choice.append("},");
    AppendLogprobs(&choice, news);
    choice.append(",\"finish_reason\":null");
    if (ids) {
      choice.append(",\"token_ids\":");
      AppendIds(&choice, news.token_ids);
    }
    AppendChunk(out, news, choice, false);
  }
  if (news.finish == FinishReason::kNone) return;
  std::string choice = "\"delta\":{},\"logprobs\":null,\"finish_reason\":";
  AppendFinish(&choice, news.finish);
  choice.append(",\"stop_reason\":");
  AppendStopReason(&choice, news, options_.stop_token_ids);
  AppendChunk(out, news, choice, false);
}

void ChatResponse::AppendMessage(std::string* out, const ChoiceNews& news) const {
  out->append(
      Format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", news.index));
  AppendJsonString(out, news.text);
  out->append(",\"refusal\":null},");
  AppendLogprobs(out, news);
  out->append(",\"finish_reason\":");
  AppendFinish(out, news.finish);
  out->append(",\"stop_reason\":");
  AppendStopReason(out, news, options_.stop_token_ids);
  if (options_.call.return_token_ids) {
    out->append(",\"token_ids\":");
    AppendIds(out, news.token_ids);
  }
  out->push_back('}');
}

void ChatResponse::Finish(std::string* out) {
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
    ChoiceNews& whole = choices_[i].whole;
    whole.index = static_cast<int>(i);
    AppendMessage(out, whole);
    whole = {};
  }
  out->append("],\"usage\":");
  totals_.AppendTotal(out);
  if (!prompt_logprobs_.empty()) out->append(",\"prompt_logprobs\":").append(prompt_logprobs_);
  if (options_.call.return_token_ids) {
    out->append(",\"prompt_token_ids\":");
    AppendIds(out, options_.prompt_ids);
  }
  AppendWarnings(out, options_.call.warnings);
  out->push_back('}');
}

void ChatResponse::Fail(const Status& status, std::string* out) { AppendErrorFrame(out, status); }

}  // namespace deepinfer
