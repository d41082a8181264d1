#include "api/response_parts.h"

#include <algorithm>

#include "api/error.h"
#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

// `reasoning` negative: not told.
void AppendUsage(std::string* out, int64_t prompt, int64_t completion, int64_t cached,
                 int64_t reasoning) {
  out->append(
      Format("{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
             "\"prompt_tokens_details\":{{\"cached_tokens\":{}}}",
             prompt, completion, prompt + completion, cached));
  if (reasoning >= 0) {
    out->append(Format(",\"completion_tokens_details\":{{\"reasoning_tokens\":{}}}", reasoning));
  }
  out->push_back('}');
}

}  // namespace

std::string Envelope::Open(std::string_view object) const {
  std::string out = "{\"id\":";
  AppendJsonString(&out, id);
  out += Format(",\"object\":\"{}\",\"created\":{},\"model\":", object, created_s);
  AppendJsonString(&out, model);
  return out;
}

void ChoiceNews::Fold(ChoiceNews&& more) {
  index = more.index;
  text += more.text;
  AppendParts(std::move(more.parts), &parts);
  if (!chat_logprobs.empty() && !more.chat_logprobs.empty()) chat_logprobs.push_back(',');
  chat_logprobs += more.chat_logprobs;
  completion_logprobs.Append(more.completion_logprobs);
  if (!more.prompt_logprobs.empty()) prompt_logprobs = std::move(more.prompt_logprobs);
  token_ids.insert(token_ids.end(), more.token_ids.begin(), more.token_ids.end());
  if (more.finish != FinishReason::kNone) {
    finish = more.finish;
    stop_text = std::move(more.stop_text);
    stop_token = more.stop_token;
  }
  usage = more.usage;
  calls_complete = more.calls_complete;
}

void AppendFinish(std::string* out, FinishReason finish) {
  switch (finish) {
    case FinishReason::kNone:
      out->append("null");
      return;
    case FinishReason::kStop:
      out->append("\"stop\"");
      return;
    case FinishReason::kLength:
      out->append("\"length\"");
      return;
    case FinishReason::kCancelled:
      out->append("\"abort\"");
      return;
    case FinishReason::kError:
      out->append("\"error\"");
      return;
  }
}

void AppendStopReason(std::string* out, const ChoiceNews& news,
                      const std::vector<TokenId>& stop_token_ids) {
  const bool listed = news.stop_token.has_value() &&
                      std::find(stop_token_ids.begin(), stop_token_ids.end(), *news.stop_token) !=
                          stop_token_ids.end();
  if (!news.stop_text.empty()) {
    AppendJsonString(out, news.stop_text);
  } else if (listed) {
    out->append(Format("{}", *news.stop_token));
  } else {
    out->append("null");
  }
}

void AppendWarnings(std::string* out, const std::vector<std::string>& warnings) {
  if (warnings.empty()) return;
  out->append(",\"warnings\":[");
  for (size_t i = 0; i < warnings.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendJsonString(out, warnings[i]);
  }
  out->push_back(']');
}

void UsageTotals::Update(int prompt, int choice, const Usage& usage) {
  int64_t& cached = cached_[static_cast<size_t>(prompt)];
  cached = std::max(cached, usage.cached_tokens);
  completion_[static_cast<size_t>(choice)] = usage.completion_tokens;
}

void UsageTotals::SetReasoning(int choice, int64_t tokens) {
  reasoning_.resize(completion_.size(), 0);
  reasoning_[static_cast<size_t>(choice)] = tokens;
}

void UsageTotals::AppendTotal(std::string* out, UsageStyle style) const {
  int64_t prompt = 0, cached = 0, completion = 0, reasoning = reasoning_.empty() ? -1 : 0;
  for (const int64_t tokens : reasoning_) reasoning += tokens;
  for (const int64_t tokens : prompt_tokens_) prompt += tokens;
  for (const int64_t tokens : cached_) cached += tokens;
  for (const int64_t tokens : completion_) completion += tokens;
  AppendUsage(out, prompt, completion, cached, reasoning);
  if (style == UsageStyle::kOpenAi) return;
  out->pop_back();
  out->append(Format(",\"prompt_cache_hit_tokens\":{},\"prompt_cache_miss_tokens\":{}}}", cached,
                     prompt - cached));
}

void UsageTotals::AppendChoice(std::string* out, int prompt, int choice) const {
  AppendUsage(out, prompt_tokens_[static_cast<size_t>(prompt)],
              completion_[static_cast<size_t>(choice)], cached_[static_cast<size_t>(prompt)],
              reasoning_.empty() ? -1 : reasoning_[static_cast<size_t>(choice)]);
}

void AppendFrame(std::string* out, std::string_view json) {
  out->append("data: ").append(json).append("\n\n");
}

void AppendErrorFrame(std::string* out, const Status& status) {
  AppendFrame(out, ErrorBody(status).Dump());
}

}  // namespace deepinfer
