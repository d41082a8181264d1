#include "api/batch.h"

#include <charconv>

#include "api/embeddings.h"
#include "api/json_fields.h"
#include "api/responses.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kCustomIdMax = 512;
constexpr std::string_view kIdPrefix = "{\"id\":\"batch_req_";

struct Endpoint {
  std::string_view url;
  DialectParser parser;
};
constexpr Endpoint kEndpoints[] = {
    {"/v1/chat/completions", ParseChatCompletion},
    {"/v1/completions", ParseCompletion},
    {"/v1/responses", ParseResponses},
    {"/v1/embeddings", ParseEmbeddings},
};

Status ReadItem(Json value, std::string_view endpoint, BatchItem* out) {
  if (!value.is_object()) return Invalid("the line is not a JSON object");
  DI_TRY(ReadString(value, "custom_id", kCustomIdMax, &out->custom_id));
  if (out->custom_id.empty()) {
    return Invalid(Format("\"custom_id\" is required: a text of 1 to {} bytes", kCustomIdMax))
        .WithParam("custom_id");
  }
  std::string method = "POST";
  DI_TRY(ReadString(value, "method", 16, &method));
  if (method != "POST") return WrongKind("method", "\"POST\"");
  DI_TRY(ReadString(value, "url", 256, &out->url));
  if (FindBatchEndpoint(out->url) == nullptr) {
    return Invalid(Format("\"url\" is {:?}, allowed are {}", out->url, BatchEndpoints()))
        .WithParam("url");
  }
  if (!endpoint.empty() && out->url != endpoint) {
    return Invalid(Format("\"url\" is {:?}, this batch is for {}", out->url, endpoint))
        .WithParam("url");
  }
  const Json* body = value.Find("body");
  if (body == nullptr || !body->is_object()) return WrongKind("body", "an object");
  out->body = *body;
  // Nobody listens while a batch runs, and its answers go to the output alone.
  out->body.Set("stream", Json::Bool(false));
  out->body.Set("stream_options", Json());
  if (out->url == "/v1/responses") {
    out->body.Set("background", Json::Bool(false));
    if (out->body.Find("store") == nullptr) out->body.Set("store", Json::Bool(false));
  }
  return {};
}

std::string LineHead(std::string_view job, int64_t index, std::string_view custom_id) {
  std::string line = Format("{}{}_{:08}\",\"custom_id\":", kIdPrefix, job, index);
  if (custom_id.empty()) {
    line += "null";
  } else {
    AppendJsonString(&line, custom_id);
  }
  return line;
}

}  // namespace

DialectParser FindBatchEndpoint(std::string_view url) {
  for (const Endpoint& endpoint : kEndpoints) {
    if (endpoint.url == url) return endpoint.parser;
  }
  return nullptr;
}

std::string BatchEndpoints() {
  std::string names;
  for (const Endpoint& endpoint : kEndpoints) {
    if (!names.empty()) names += ", ";
    names += endpoint.url;
  }
  return names;
}

BatchItem ParseBatchItem(const LineRecord& line, std::string_view endpoint) {
  BatchItem item;
  if (line.too_long) {
    item.status = Invalid(Format("the line is longer than {} bytes", LineReader::kLineBytesMax));
    return item;
  }
  Result<Json> value = Json::Parse(line.text);
  item.status = value.ok() ? ReadItem(*std::move(value), endpoint, &item) : value.status();
  return item;
}

std::string AnswerLine(std::string_view job, int64_t index, std::string_view custom_id,
                       const BatchAnswer& answer) {
  std::string line = LineHead(job, index, custom_id);
  line += Format(",\"response\":{{\"status_code\":{},\"request_id\":", answer.status_code);
  AppendJsonString(&line, answer.request_id);
  line += ",\"body\":" + answer.body + "},\"error\":null}";
  return line;
}

std::string ErrorLine(std::string_view job, int64_t index, std::string_view custom_id,
                      const Status& status) {
  std::string line = LineHead(job, index, custom_id);
  Json error = Json::Object();
  error.Set("code", *ErrorBody(status).Find("error")->Find("code"));
  error.Set("message", Json::String(status.message()));
  error.Set("param", status.param().empty() ? Json() : Json::String(status.param()));
  line += ",\"response\":null,\"error\":" + error.Dump() + "}";
  return line;
}

std::optional<int64_t> IndexOfAnswer(std::string_view line) {
  // The rest is looked at as well: a line that a crash has filled with zero bytes is none.
  if (!line.starts_with(kIdPrefix) || !line.ends_with('}') || line.find('\0') != line.npos) {
    return std::nullopt;
  }
  const std::string_view id = line.substr(0, line.find('"', kIdPrefix.size()));
  const std::string_view digits = id.substr(id.rfind('_') + 1);
  int64_t index = -1;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size() || index < 0) {
    return std::nullopt;
  }
  return index;
}

}  // namespace deepinfer
