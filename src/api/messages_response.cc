#include "api/messages_response.h"

#include <utility>

#include "api/error.h"
#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(&out, text);
  return out;
}

}  // namespace

MessagesResponse::MessagesResponse(MessagesResponseOptions options)
    : options_(std::move(options)), reader_(options_.output) {
  usage_.prompt_tokens = options_.prompt_tokens;
}

void MessagesResponse::OnDelta(int /*prompt*/, OutputDelta delta, std::string* out) {
  usage_.completion_tokens = delta.usage.completion_tokens;
  usage_.cached_tokens = std::max(usage_.cached_tokens, delta.usage.cached_tokens);
  ChoiceNews news;
  news.parts = reader_.Read(delta);
  news.token_ids = std::move(delta.token_ids);
  if (delta.finish != FinishReason::kNone) {
    finish_ = delta.finish;
    stop_text_ = std::move(delta.stop_text);
  }
  news.finish = delta.finish;
  pending_.Fold(std::move(news));
  if (started_ && !pending_.Due(options_.call.stream_interval)) return;
  Send(std::exchange(pending_, {}), out);
}

void MessagesResponse::Send(ChoiceNews news, std::string* out) {
  if (!std::exchange(started_, true)) Start(out);
  for (const OutputPart& part : news.parts) Take(part, out);
}

void MessagesResponse::Start(std::string* out) {
  std::string message = Format(
      "\"message\":{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},"
      "\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{}",
      Quoted(options_.envelope.id), Quoted(options_.envelope.model), UsageJson(0));
  AppendWarnings(&message, options_.call.warnings);
  Event("message_start", message + "}", out);
  // The client of a model that thinks sees at once that it does.
  if (options_.output.starts_in_reasoning()) Open({BlockKind::kThinking, {}, {}, {}}, out);
}

void MessagesResponse::Take(const OutputPart& part, std::string* out) {
  const auto continues = [&](BlockKind kind) { return open_ && blocks_.back().kind == kind; };
  switch (part.kind) {
    case OutputPart::Kind::kReasoning:
      if (!continues(BlockKind::kThinking)) Open({BlockKind::kThinking, {}, {}, {}}, out);
      Add(part.text, out);
      return;
    case OutputPart::Kind::kText:
      if (!continues(BlockKind::kText)) Open({BlockKind::kText, {}, {}, {}}, out);
      Add(part.text, out);
      return;
    case OutputPart::Kind::kCallName:
      Open({BlockKind::kToolUse, {}, CallId("toolu", options_.envelope.id, 0, calls_++), part.text},
           out);
      return;
    case OutputPart::Kind::kCallArguments:
      if (open_) Add(part.text, out);
      return;
    case OutputPart::Kind::kCallEnd:
      Close(out);
      return;
  }
}

void MessagesResponse::Open(Block block, std::string* out) {
  Close(out);
  open_ = true;
  if (streams()) blocks_.clear();
  std::string start;
  AppendBlock(block, "", &start);
  Event("content_block_start", Format("\"index\":{},\"content_block\":{}", blocks_total_, start),
        out);
  if (!std::exchange(pinged_, true)) Event("ping", "", out);
  blocks_.push_back(std::move(block));
}

void MessagesResponse::Add(std::string_view text, std::string* out) {
  Block& block = blocks_.back();
  if (!streams()) {
    block.text += text;
    return;
  }
  std::string delta;
  switch (block.kind) {
    case BlockKind::kThinking:
      delta = "\"type\":\"thinking_delta\",\"thinking\":";
      break;
    case BlockKind::kText:
      delta = "\"type\":\"text_delta\",\"text\":";
      break;
    case BlockKind::kToolUse:
      delta = "\"type\":\"input_json_delta\",\"partial_json\":";
      break;
  }
  Event("content_block_delta",
        Format("\"index\":{},\"delta\":{{{}{}}}", blocks_total_, delta, Quoted(text)), out);
}

void MessagesResponse::Close(std::string* out) {
  if (!std::exchange(open_, false)) return;
  if (blocks_.back().kind == BlockKind::kThinking) {
    Event("content_block_delta",
          Format("\"index\":{},\"delta\":{{\"type\":\"signature_delta\",\"signature\":{}}}",
                 blocks_total_, Quoted(options_.envelope.id)),
          out);
  }
  Event("content_block_stop", Format("\"index\":{}", blocks_total_), out);
  ++blocks_total_;
}

void MessagesResponse::Event(std::string_view type, std::string_view members,
                             std::string* out) const {
  if (!streams()) return;
  out->append("event: ").append(type).append("\ndata: {\"type\":\"").append(type).append("\"");
  if (!members.empty()) out->append(",").append(members);
  out->append("}\n\n");
}

std::string MessagesResponse::UsageJson(int64_t output_tokens) const {
  return Format(
      "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{},"
      "\"output_tokens\":{},\"service_tier\":\"standard\"}}",
      usage_.prompt_tokens - usage_.cached_tokens, usage_.cached_tokens, output_tokens);
}

std::string MessagesResponse::StopJson() const {
  const char* reason = "end_turn";
  if (finish_ == FinishReason::kLength) {
    reason = "max_tokens";
  } else if (!stop_text_.empty()) {
    reason = "stop_sequence";
  } else if (reader_.calls_complete() > 0) {
    reason = "tool_use";
  }
  return Format("\"stop_reason\":\"{}\",\"stop_sequence\":{}", reason,
                stop_text_.empty() ? "null" : Quoted(stop_text_));
}

void MessagesResponse::AppendBlock(const Block& block, const std::string& signature,
                                   std::string* out) {
  switch (block.kind) {
    case BlockKind::kThinking:
      *out += Format("{{\"type\":\"thinking\",\"thinking\":{},\"signature\":{}}}",
                     Quoted(block.text), Quoted(signature));
      return;
    case BlockKind::kText:
      *out += Format("{{\"type\":\"text\",\"text\":{}}}", Quoted(block.text));
      return;
    case BlockKind::kToolUse: {
      // A call that was cut has no input that could be told.
      const Result<Json> input = Json::Parse(block.text);
      *out +=
          Format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{}}}", Quoted(block.id),
                 Quoted(block.name), input.ok() && input->is_object() ? input->Dump() : "{}");
      return;
    }
  }
}

void MessagesResponse::Finish(std::string* out) {
  if (!std::exchange(started_, true)) Start(out);
  Close(out);
  if (streams()) {
    Event("message_delta",
          Format("\"delta\":{{{}}},\"usage\":{}", StopJson(), UsageJson(usage_.completion_tokens)),
          out);
    Event("message_stop", "", out);
    return;
  }
  *out +=
      Format("{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[",
             Quoted(options_.envelope.id), Quoted(options_.envelope.model));
  for (const Block& block : blocks_) {
    if (&block != blocks_.data()) out->push_back(',');
    AppendBlock(block, options_.envelope.id, out);
  }
  *out += Format("],{},\"usage\":{}", StopJson(), UsageJson(usage_.completion_tokens));
  AppendWarnings(out, options_.call.warnings);
  out->push_back('}');
}

void MessagesResponse::Fail(const Status& status, std::string* out) {
  if (!streams()) return;
  out->append("event: error\ndata: ").append(AnthropicErrorBody(status, "").Dump()).append("\n\n");
}

}  // namespace deepinfer
