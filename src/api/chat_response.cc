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
      totals_({static_cast<int64_t>(options_.prompt_ids.size())}, options_.samples) {
  for (int i = 0; i < options_.samples; ++i) choices_.emplace_back(options_.output);
}

ChoiceNews ChatResponse::NewsOf(OutputDelta delta, Choice* choice) const {
  ChoiceNews news;
  news.index = delta.sample;
  if (!choice->started) AppendPart(OutputPart::Kind::kText, options_.echo, &news.parts);
  AppendParts(choice->reader.Read(delta), &news.parts);
  if (options_.reasoning == ChatResponseOptions::Reasoning::kHidden) {
    std::erase_if(news.parts,
                  [](const OutputPart& p) { return p.kind == OutputPart::Kind::kReasoning; });
  }
  news.calls_complete = choice->reader.calls_complete();
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
  Choice& choice = choices_[static_cast<size_t>(delta.sample)];
  ChoiceNews news = NewsOf(std::move(delta), &choice);
  const bool first = !std::exchange(choice.started, true);
  totals_.Update(prompt, news.index, news.usage);
  if (news.finish != FinishReason::kNone) ++ended_;
  const OutputProfile* profile = options_.output.style.profile;
  if (profile != nullptr && !profile->think.empty()) {
    totals_.SetReasoning(news.index, choice.reader.reasoning_tokens());
  }
  if (!news.prompt_logprobs.empty()) prompt_logprobs_ = std::exchange(news.prompt_logprobs, {});
  choice.whole.Fold(std::move(news));
  if (options_.call.mode == DialectCall::Mode::kWhole) return;
  if (!first && !choice.whole.Due(options_.call.stream_interval)) return;
  AppendChunks(out, std::exchange(choice.whole, {}), first, &choice.calls);
}

void ChatResponse::AppendLogprobs(std::string* out, const ChoiceNews& news) const {
  if (!options_.logprobs || news.chat_logprobs.empty()) {
    out->append("\"logprobs\":null");
    return;
  }
  out->append("\"logprobs\":{\"content\":[").append(news.chat_logprobs);
  out->append("],\"refusal\":null}");
}

void ChatResponse::AppendChunkUsage(std::string* json, const ChoiceNews& news, Place place) const {
  if (options_.call.usage_style == UsageStyle::kDeepSeek) {
    const bool all = place == Place::kLast && ended_ == choices_.size();
    json->append(",\"usage\":");
    if (all) {
      totals_.AppendTotal(json, UsageStyle::kDeepSeek);
    } else {
      json->append("null");
    }
  } else if (options_.call.continuous_usage) {
    json->append(",\"usage\":");
    totals_.AppendChoice(json, 0, news.index);
  } else if (options_.call.include_usage) {
    json->append(",\"usage\":null");
  }
}

void ChatResponse::AppendChunk(std::string* out, const ChoiceNews& news, std::string_view choice,
                               Place place) const {
  std::string json = open_;
  json.append(Format(",\"choices\":[{{\"index\":{},", news.index)).append(choice).append("}]");
  if (place == Place::kFirst && news.index == 0) {
    if (options_.call.return_token_ids) {
      json.append(",\"prompt_token_ids\":");
      AppendIds(&json, options_.prompt_ids);
    }
    AppendWarnings(&json, options_.call.warnings);
  }
  AppendChunkUsage(&json, news, place);
  json.push_back('}');
  AppendFrame(out, json);
}

std::string ChatResponse::Delta(const OutputPart& part, int choice, int* calls) const {
  std::string delta;
  switch (part.kind) {
    case OutputPart::Kind::kReasoning:
      delta = "{\"content\":null,\"reasoning_content\":";
      AppendJsonString(&delta, part.text);
      break;
    case OutputPart::Kind::kText:
      delta = "{\"content\":";
      AppendJsonString(&delta, part.text);
      if (ThinkingShown()) delta.append(",\"reasoning_content\":null");
      break;
    case OutputPart::Kind::kCallName:
      delta = Format("{{\"tool_calls\":[{{\"index\":{},\"id\":", *calls);
      AppendJsonString(&delta, CallId("call", options_.envelope.id, choice, *calls));
      delta.append(",\"type\":\"function\",\"function\":{\"name\":");
      AppendJsonString(&delta, part.text);
      delta.append(",\"arguments\":\"\"}}]");
      ++*calls;
      break;
    case OutputPart::Kind::kCallArguments:
      delta = Format("{{\"tool_calls\":[{{\"index\":{},\"function\":{{\"arguments\":", *calls - 1);
      AppendJsonString(&delta, part.text);
      delta.append("}}]");
      break;
    case OutputPart::Kind::kCallEnd:
      return delta;
  }
  return delta + "}";
}

void ChatResponse::AppendChunks(std::string* out, const ChoiceNews& news, bool first,
                                int* calls) const {
  if (first) {
    AppendChunk(out, news,
                Format("\"delta\":{{\"role\":\"assistant\",\"content\":{}}},\"logprobs\":null,"
                       "\"finish_reason\":null",
                       ThinkingShown() ? "null,\"reasoning_content\":\"\"" : "\"\""),
                Place::kFirst);
  }
  std::vector<std::string> deltas;
  for (const OutputPart& part : news.parts) {
    std::string delta = Delta(part, news.index, calls);
    if (!delta.empty()) deltas.push_back(std::move(delta));
  }
  const bool ids = options_.call.return_token_ids && !news.token_ids.empty();
  if (deltas.empty() && (!news.chat_logprobs.empty() || ids)) {
    deltas.emplace_back("{\"content\":\"\"}");
  }
  for (size_t i = 0; i < deltas.size(); ++i) {
    std::string choice = "\"delta\":" + deltas[i] + ",";
    // What belongs to tokens goes with the first of the parts that they gave.
    if (i == 0) {
      AppendLogprobs(&choice, news);
    } else {
      choice.append("\"logprobs\":null");
    }
    choice.append(",\"finish_reason\":null");
    if (ids && i == 0) {
      choice.append(",\"token_ids\":");
      AppendIds(&choice, news.token_ids);
    }
    AppendChunk(out, news, choice, Place::kMiddle);
  }
  if (news.finish == FinishReason::kNone) return;
  std::string choice = "\"delta\":{},\"logprobs\":null,\"finish_reason\":";
  AppendFinishReason(&choice, news);
  choice.append(",\"stop_reason\":");
  AppendStopReason(&choice, news, options_.stop_token_ids);
  AppendChunk(out, news, choice, Place::kLast);
}

bool ChatResponse::ThinkingShown() const {
  return options_.output.starts_in_reasoning() &&
         options_.reasoning == ChatResponseOptions::Reasoning::kShown;
}

void ChatResponse::AppendFinishReason(std::string* out, const ChoiceNews& news) const {
  if (news.finish == FinishReason::kStop && news.calls_complete > 0) {
    out->append("\"tool_calls\"");
  } else {
    AppendFinish(out, news.finish);
  }
}

void ChatResponse::AppendCalls(std::string* out, const ChoiceNews& news) const {
  int calls = 0;
  std::string arguments;
  const auto end_call = [&] {
    if (calls == 0) return;
    AppendJsonString(out, arguments);
    out->append("}}");
    arguments.clear();
  };
  for (const OutputPart& part : news.parts) {
    if (part.kind == OutputPart::Kind::kCallArguments) arguments += part.text;
    if (part.kind != OutputPart::Kind::kCallName) continue;
    end_call();
    out->append(calls == 0 ? ",\"tool_calls\":[" : ",").append("{\"id\":");
    AppendJsonString(out, CallId("call", options_.envelope.id, news.index, calls));
    out->append(",\"type\":\"function\",\"function\":{\"name\":");
    AppendJsonString(out, part.text);
    out->append(",\"arguments\":");
    ++calls;
  }
  end_call();
  if (calls > 0) out->push_back(']');
}

void ChatResponse::AppendMessage(std::string* out, const ChoiceNews& news) const {
  std::string text, reasoning;
  bool calls = false;
  for (const OutputPart& part : news.parts) {
    if (part.kind == OutputPart::Kind::kText) text += part.text;
    if (part.kind == OutputPart::Kind::kReasoning) reasoning += part.text;
    calls = calls || part.kind == OutputPart::Kind::kCallName;
  }
  out->append(
      Format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", news.index));
  if (calls && text.empty()) {
    out->append("null");
  } else {
    AppendJsonString(out, text);
  }
  if (ThinkingShown() || !reasoning.empty()) {
    out->append(",\"reasoning_content\":");
    AppendJsonString(out, reasoning);
  }
  AppendCalls(out, news);
  out->append(",\"refusal\":null},");
  AppendLogprobs(out, news);
  out->append(",\"finish_reason\":");
  AppendFinishReason(out, news);
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
    if (options_.call.include_usage && options_.call.usage_style == UsageStyle::kOpenAi) {
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
  totals_.AppendTotal(out, options_.call.usage_style);
  if (!prompt_logprobs_.empty()) out->append(",\"prompt_logprobs\":").append(prompt_logprobs_);
  if (options_.call.return_token_ids) {
    out->append(",\"prompt_token_ids\":");
    AppendIds(out, options_.prompt_ids);
  }
  AppendWarnings(out, options_.call.warnings);
  out->push_back('}');
}

void ChatResponse::Fail(const Status& status, std::string* out) {
  if (options_.call.mode == DialectCall::Mode::kStream) AppendErrorFrame(out, status);
}

}  // namespace deepinfer
