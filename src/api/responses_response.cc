#include "api/responses_response.h"

#include <algorithm>
#include <utility>

#include "api/error.h"
#include "base/format.h"

namespace deepinfer {
namespace {

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(&out, text);
  return out;
}

// What a custom tool was given: the member "input" of the arguments.
std::string CustomInput(const std::string& arguments) {
  const Result<Json> parsed = Json::Parse(arguments);
  const Json* input = parsed.ok() ? parsed->Find("input") : nullptr;
  return input != nullptr && input->is_string() ? input->string() : arguments;
}

std::string TextPart(std::string_view text, std::string_view logprobs) {
  return Format("{{\"type\":\"output_text\",\"text\":{},\"annotations\":[],\"logprobs\":[{}]}}",
                Quoted(text), logprobs);
}

std::string ReasoningPart(std::string_view text) {
  return Format("{{\"type\":\"reasoning_text\",\"text\":{}}}", Quoted(text));
}

}  // namespace

ResponsesResponse::ResponsesResponse(ResponsesResponseOptions options)
    : options_(std::move(options)), body_(options_.snapshot), reader_(options_.output) {
  usage_.prompt_tokens = options_.prompt_tokens;
}

Status ResponsesResponse::OnStart(std::function<void()> cancel) {
  if (options_.store == nullptr) return {};
  DI_ASSIGN(stored_, options_.store->Begin(options_.id, body_, options_.history, options_.input,
                                           std::move(cancel)));
  return {};
}

void ResponsesResponse::OnDelta(int /*prompt*/, OutputDelta delta, std::string* out) {
  usage_.completion_tokens = delta.usage.completion_tokens;
  usage_.cached_tokens = std::max(usage_.cached_tokens, delta.usage.cached_tokens);
  ChoiceNews news;
  news.parts = reader_.Read(delta);
  if (options_.logprobs) {
    for (const TokenLogprob& item : delta.logprobs) {
      if (!news.chat_logprobs.empty()) news.chat_logprobs.push_back(',');
      AppendChatLogprob(&news.chat_logprobs, options_.names, item);
    }
  }
  news.token_ids = std::move(delta.token_ids);
  news.finish = delta.finish;
  if (delta.finish != FinishReason::kNone) finish_ = delta.finish;
  pending_.Fold(std::move(news));
  if (started_ && !pending_.Due(options_.call.stream_interval)) return;
  Start(out);
  const ChoiceNews due = std::exchange(pending_, {});
  std::string logprobs = due.chat_logprobs;
  for (const OutputPart& part : due.parts) {
    Take(part, logprobs, out);
    if (part.kind == OutputPart::Kind::kText) logprobs.clear();
  }
}

void ResponsesResponse::Start(std::string* out) {
  if (std::exchange(started_, true)) return;
  SnapshotEvent("response.created", out);
  SnapshotEvent("response.in_progress", out);
}

void ResponsesResponse::Take(const OutputPart& part, const std::string& logprobs,
                             std::string* out) {
  switch (part.kind) {
    case OutputPart::Kind::kReasoning:
      if (!open_ || item_.kind != ItemKind::kReasoning) Open(ItemKind::kReasoning, "", out);
      Add(part.text, "", out);
      return;
    case OutputPart::Kind::kText:
      if (!open_ || item_.kind != ItemKind::kMessage) Open(ItemKind::kMessage, "", out);
      Add(part.text, logprobs, out);
      return;
    case OutputPart::Kind::kCallName:
      Open(options_.custom_tools.contains(part.text) ? ItemKind::kCustomCall
                                                     : ItemKind::kFunctionCall,
           part.text, out);
      return;
    case OutputPart::Kind::kCallArguments:
      if (open_) Add(part.text, "", out);
      return;
    case OutputPart::Kind::kCallEnd:
      Close(ItemEnd::kComplete, out);
      return;
  }
}

std::string ResponsesResponse::Place(const Item& item) const {
  return Format("\"item_id\":{},\"output_index\":{}", Quoted(item.id), items_.size());
}

void ResponsesResponse::Open(ItemKind kind, std::string name, std::string* out) {
  const bool call = kind == ItemKind::kFunctionCall || kind == ItemKind::kCustomCall;
  Close(call ? ItemEnd::kBeforeCall : ItemEnd::kComplete, out);
  open_ = true;
  constexpr const char* kPrefixes[] = {"rs", "msg", "fc", "ctc"};
  item_ = {};
  item_.kind = kind;
  item_.id = Format("{}_{}_{}", kPrefixes[static_cast<int>(kind)], options_.id, items_.size());
  item_.name = std::move(name);
  if (call) item_.call_id = CallId("call", options_.id, 0, calls_++);
  Event("response.output_item.added",
        Format("\"output_index\":{},\"item\":{}", items_.size(),
               ItemJson(item_, "in_progress", "final_answer")),
        out);
  if (call) return;
  Event("response.content_part.added",
        Format("{},\"content_index\":0,\"part\":{}", Place(item_),
               kind == ItemKind::kReasoning ? ReasoningPart("") : TextPart("", "")),
        out);
}

void ResponsesResponse::Add(std::string_view text, const std::string& logprobs, std::string* out) {
  item_.text += text;
  if (!logprobs.empty()) item_.logprobs += (item_.logprobs.empty() ? "" : ",") + logprobs;
  switch (item_.kind) {
    case ItemKind::kReasoning:
      Event("response.reasoning_text.delta",
            Format("{},\"content_index\":0,\"delta\":{}", Place(item_), Quoted(text)), out);
      return;
    case ItemKind::kMessage:
      Event("response.output_text.delta",
            Format("{},\"content_index\":0,\"delta\":{},\"logprobs\":[{}]", Place(item_),
                   Quoted(text), logprobs),
            out);
      return;
    case ItemKind::kFunctionCall:
      Event("response.function_call_arguments.delta",
            Format("{},\"delta\":{}", Place(item_), Quoted(text)), out);
      return;
    case ItemKind::kCustomCall:
      return;  // its input is known when the arguments are complete
  }
}

void ResponsesResponse::CloseParts(const Item& item, std::string* out) {
  switch (item.kind) {
    case ItemKind::kReasoning:
      Event("response.reasoning_text.done",
            Format("{},\"content_index\":0,\"text\":{}", Place(item), Quoted(item.text)), out);
      Event("response.content_part.done",
            Format("{},\"content_index\":0,\"part\":{}", Place(item), ReasoningPart(item.text)),
            out);
      return;
    case ItemKind::kMessage:
      Event("response.output_text.done",
            Format("{},\"content_index\":0,\"text\":{},\"logprobs\":[{}]", Place(item),
                   Quoted(item.text), item.logprobs),
            out);
      Event("response.content_part.done",
            Format("{},\"content_index\":0,\"part\":{}", Place(item),
                   TextPart(item.text, item.logprobs)),
            out);
      return;
    case ItemKind::kFunctionCall:
      Event("response.function_call_arguments.done",
            Format("{},\"name\":{},\"arguments\":{}", Place(item), Quoted(item.name),
                   Quoted(item.text)),
            out);
      return;
    case ItemKind::kCustomCall: {
      const std::string input = Quoted(CustomInput(item.text));
      Event("response.custom_tool_call_input.delta", Format("{},\"delta\":{}", Place(item), input),
            out);
      Event("response.custom_tool_call_input.done", Format("{},\"input\":{}", Place(item), input),
            out);
      return;
    }
  }
}

void ResponsesResponse::Close(ItemEnd end, std::string* out) {
  if (!std::exchange(open_, false)) return;
  CloseParts(item_, out);
  const std::string json = ItemJson(item_, end == ItemEnd::kCut ? "incomplete" : "completed",
                                    end == ItemEnd::kBeforeCall ? "commentary" : "final_answer");
  Event("response.output_item.done", Format("\"output_index\":{},\"item\":{}", items_.size(), json),
        out);
  Result<Json> item = Json::Parse(json);
  items_.push_back(item.ok() ? *std::move(item) : Json());
}

std::string ResponsesResponse::ItemJson(const Item& item, std::string_view status,
                                        std::string_view phase) const {
  const bool begins = status == "in_progress";
  const std::string head = Format("{{\"id\":{},\"type\":", Quoted(item.id));
  switch (item.kind) {
    case ItemKind::kReasoning:
      return Format(
          "{}\"reasoning\",\"status\":\"{}\",\"content\":[{}],\"summary\":[],"
          "\"encrypted_content\":{}}}",
          head, status, begins ? "" : ReasoningPart(item.text), Quoted(item.id));
    case ItemKind::kMessage:
      return Format(
          "{}\"message\",\"status\":\"{}\",\"role\":\"assistant\",\"phase\":\"{}\","
          "\"content\":[{}]}}",
          head, status, phase, begins ? "" : TextPart(item.text, item.logprobs));
    case ItemKind::kFunctionCall:
      return Format(
          "{}\"function_call\",\"status\":\"{}\",\"call_id\":{},\"name\":{},\"arguments\":{}}}",
          head, status, Quoted(item.call_id), Quoted(item.name), Quoted(item.text));
    case ItemKind::kCustomCall:
      return Format(
          "{}\"custom_tool_call\",\"status\":\"{}\",\"call_id\":{},\"name\":{},\"input\":{}}}",
          head, status, Quoted(item.call_id), Quoted(item.name),
          Quoted(begins ? "" : CustomInput(item.text)));
  }
  return head;
}

void ResponsesResponse::Event(std::string_view type, std::string_view members, std::string* out) {
  if (!streams()) return;
  *out +=
      Format("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},", type, sequence_++);
  out->append(members).append("}\n\n");
}

void ResponsesResponse::SnapshotEvent(std::string_view type, std::string* out) {
  if (streams()) Event(type, "\"response\":" + body_.Dump(), out);
}

Json ResponsesResponse::UsageJson() const {
  Json usage = Json::Object();
  usage.Set("input_tokens", Json::Int(usage_.prompt_tokens));
  usage.Set("input_tokens_details", Json::Object())
      .Set("cached_tokens", Json::Int(usage_.cached_tokens));
  usage.Set("output_tokens", Json::Int(usage_.completion_tokens));
  usage.Set("output_tokens_details", Json::Object())
      .Set("reasoning_tokens", Json::Int(reader_.reasoning_tokens()));
  usage.Set("total_tokens", Json::Int(usage_.prompt_tokens + usage_.completion_tokens));
  return usage;
}

void ResponsesResponse::Complete(std::string_view status) {
  body_.Set("status", Json::String(std::string(status)));
  body_.Set("completed_at", status == "completed" ? Json::Int(UnixSeconds()) : Json());
  Json& output = body_.Set("output", Json::Array());
  for (const Json& item : items_) output.Push(item);
  body_.Set("usage", UsageJson());
  Keep();
}

void ResponsesResponse::Keep() {
  if (stored_ == 0) return;
  options_.store->End(stored_, body_, std::make_shared<const std::vector<Json>>(items_));
}

void ResponsesResponse::Finish(std::string* out) {
  Start(out);
  const bool cut = finish_ == FinishReason::kLength;
  Close(cut ? ItemEnd::kCut : ItemEnd::kComplete, out);
  if (cut) {
    body_.Set("incomplete_details", Json::Object())
        .Set("reason", Json::String("max_output_tokens"));
  }
  Complete(cut ? "incomplete" : "completed");
  SnapshotEvent(cut ? "response.incomplete" : "response.completed", out);
  if (!streams()) body_.DumpTo(out);
}

void ResponsesResponse::Fail(const Status& status, std::string* out) {
  Start(out);
  Close(ItemEnd::kCut, out);
  const bool cancelled = status.code() == StatusCode::kCancelled;
  if (!cancelled) {
    Json& error = body_.Set("error", Json::Object());
    error.Set("code", Json::String(status.code() == StatusCode::kExhausted ? "rate_limit_exceeded"
                                                                           : "server_error"));
    error.Set("message", Json::String(status.message()));
  }
  Complete(cancelled ? "cancelled" : "failed");
  SnapshotEvent("response.failed", out);
  // A response that somebody cancelled is an answer; what failed is answered as an error.
  if (!streams() && cancelled) body_.DumpTo(out);
}

}  // namespace deepinfer
