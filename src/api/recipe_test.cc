// Events of all dialects against those of DeepSeek's protocol library (tests/recipe).
#include <gtest/gtest.h>

#include <algorithm>

#include "api/api_test_util.h"
#include "api/messages.h"
#include "api/responses.h"
#include "base/format.h"
#include "base/mapped_file.h"
#include "text/stop_matcher.h"

namespace deepinfer {
namespace {

const Json& At(const Json& json, std::string_view key) {
  static const Json kNone;
  const Json* value = json.Find(key);
  return value == nullptr ? kNone : *value;
}

Json Short(std::initializer_list<Json> items) {
  Json out = Json::Array();
  for (const Json& item : items) out.Push(item);
  return out;
}

Json Text(std::string_view text) { return Json::String(std::string(text)); }

void OfChat(const Json& chunk, bool /*cut*/, std::vector<Json>* out) {
  for (const Json& choice : At(chunk, "choices").items()) {
    const Json& delta = At(choice, "delta");
    if (delta.Find("role") != nullptr) out->push_back(Short({Text("role")}));
    if (!At(delta, "reasoning_content").string().empty()) {
      out->push_back(Short({Text("reasoning"), At(delta, "reasoning_content")}));
    }
    if (!At(delta, "content").string().empty()) {
      out->push_back(Short({Text("content"), At(delta, "content")}));
    }
    for (const Json& call : At(delta, "tool_calls").items()) {
      const Json& function = At(call, "function");
      if (call.Find("id") != nullptr) {
        out->push_back(Short({Text("call"), At(call, "index"), At(function, "name")}));
      }
      if (!At(function, "arguments").string().empty()) {
        out->push_back(Short({Text("arguments"), At(call, "index"), At(function, "arguments")}));
      }
    }
    if (!At(choice, "finish_reason").is_null()) {
      out->push_back(Short({Text("finish"), At(choice, "finish_reason")}));
    }
  }
}

void OfMessages(const Json& event, bool /*cut*/, std::vector<Json>* out) {
  const std::string& kind = At(event, "type").string();
  const Json& index = At(event, "index");
  if (kind == "content_block_start") {
    const Json& block = At(event, "content_block");
    out->push_back(
        Short({Text("open"), index, At(block, "type"), Text(At(block, "name").string())}));
  } else if (kind == "content_block_delta") {
    const Json& delta = At(event, "delta");
    if (At(delta, "type").string() == "signature_delta") {
      out->push_back(Short({Text("signature"), index}));
      return;
    }
    for (const char* key : {"text", "thinking", "partial_json"}) {
      if (delta.Find(key) != nullptr) {
        out->push_back(Short({At(delta, "type"), index, At(delta, key)}));
      }
    }
  } else if (kind == "content_block_stop") {
    out->push_back(Short({Text("close"), index}));
  } else if (kind == "message_delta") {
    const Json& delta = At(event, "delta");
    out->push_back(Short({Text("end"), At(delta, "stop_reason"), At(delta, "stop_sequence")}));
  } else {
    out->push_back(Short({Text(kind)}));
  }
}

void OfResponses(const Json& event, bool cut, std::vector<Json>* out) {
  const std::string& kind = At(event, "type").string();
  const Json& index = At(event, "output_index");
  const Json& item = At(event, "item");
  if (kind == "response.output_item.added") {
    out->push_back(Short({Text(kind), index, At(item, "type"), Text(At(item, "name").string())}));
  } else if (kind == "response.output_item.done") {
    out->push_back(Short({Text(kind), index, cut ? Text("") : At(item, "status"),
                          Text(At(item, "phase").string())}));
  } else if (kind.ends_with(".delta")) {
    out->push_back(Short({Text(kind), index, At(event, "delta")}));
  } else if (!index.is_null()) {
    const char* key = event.Find("text") != nullptr        ? "text"
                      : event.Find("arguments") != nullptr ? "arguments"
                                                           : nullptr;
    const Json& text = key != nullptr ? At(event, key) : At(At(event, "part"), "text");
    out->push_back(Short({Text(kind), index, Text(text.string())}));
  } else {
    out->push_back(Short({Text(kind)}));
  }
}

bool Flows(const Json& event) {
  const std::string& kind = event.items()[0].string();
  return kind == "reasoning" || kind == "content" || kind == "arguments" || kind.ends_with("delta");
}

// Neighbours that differ in their last member alone become one.
Json Merged(const std::vector<Json>& events) {
  std::vector<std::vector<Json>> joined;
  for (const Json& event : events) {
    const std::vector<Json>& items = event.items();
    const bool continues = Flows(event) && !joined.empty() &&
                           joined.back().size() == items.size() &&
                           std::equal(items.begin(), items.end() - 1, joined.back().begin());
    if (continues) {
      joined.back().back() = Text(joined.back().back().string() + items.back().string());
    } else {
      joined.push_back(items);
    }
  }
  Json out = Json::Array();
  for (const std::vector<Json>& items : joined) {
    Json& event = out.Push(Json::Array());
    for (const Json& item : items) event.Push(item);
  }
  return out;
}

struct Dialect {
  const char* name;
  Result<DialectCall> (*parse)(const Json&, const DialectContext&);
  void (*shorten)(const Json&, bool cut, std::vector<Json>*);
  const char* stops;
};
constexpr Dialect kDialects[] = {
    {"chat", ParseChatCompletion, OfChat, "stop"},
    {"messages", ParseMessages, OfMessages, "stop_sequences"},
    {"responses", ParseResponses, OfResponses, "stop"},
};

// The deltas that the engine would send, with its way of finding stop strings.
std::string Stream(ResponseStream* response, const Json& pieces, const std::string& finish,
                   std::vector<std::string> stops) {
  StopMatcher matcher(std::move(stops), StopMatcher::StopText::kExclude);
  std::string out;
  int64_t tokens = 0;
  const auto send = [&](std::string text, FinishReason reason) {
    OutputDelta delta;
    delta.text = std::move(text);
    delta.token_ids = {'x'};
    delta.usage = {10, ++tokens, 0};
    delta.finish = reason;
    if (matcher.matched()) delta.stop_text = matcher.match();
    response->OnDelta(0, std::move(delta), &out);
  };
  for (const Json& piece : pieces.items()) {
    std::string text;
    matcher.Push(piece.string(), &text);
    send(std::move(text), matcher.matched() ? FinishReason::kStop : FinishReason::kNone);
    if (matcher.matched()) break;
  }
  if (!matcher.matched()) {
    std::string text;
    matcher.Finish(&text);
    send(std::move(text), finish == "length" ? FinishReason::kLength : FinishReason::kStop);
  }
  response->Finish(&out);
  return out;
}

std::vector<Json> Events(std::string_view stream, const Dialect& dialect, bool cut) {
  std::vector<Json> events;
  while (!stream.empty()) {
    std::string_view frame = stream.substr(0, stream.find("\n\n"));
    stream.remove_prefix(frame.size() + 2);
    frame.remove_prefix(frame.find("data: ") + 6);
    if (frame == "[DONE]") continue;
    const Result<Json> json = Json::Parse(frame);
    EXPECT_TRUE(json.ok()) << frame;
    if (json.ok()) dialect.shorten(*json, cut, &events);
  }
  return events;
}

std::vector<std::string> StopsOf(const Json& body, const Dialect& dialect) {
  std::vector<std::string> stops;
  for (const Json& stop : At(body, dialect.stops).items()) stops.push_back(stop.string());
  return stops;
}

// The library looks for stop strings in content alone (tests/recipe/README.md).
bool StopsElsewhere(const Json& line, const std::vector<std::string>& stops) {
  std::string text;
  for (const Json& piece : At(line, "pieces").items()) text += piece.string();
  const bool thinks = At(At(At(line, "body"), "thinking"), "type").string() == "enabled";
  const size_t begin = thinks ? text.find("</think>") : 0;
  const size_t end = text.find("<｜DSML｜");
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at != std::string::npos && (at < begin || at + stop.size() > end)) return true;
  }
  return false;
}

TEST(Recipe, EventsOfEveryDialect) {
  TinyText text = MakeTinyText();
  text.prompt_profile = FindPromptProfile("deepseek_v41");
  ASSERT_NE(text.prompt_profile, nullptr);
  DialectContext context = text.Context();
  context.max_model_len = 4000;
  const Result<MappedFile> file = MappedFile::Open("tests/recipe/dialects.jsonl");
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::string_view rest(reinterpret_cast<const char*>(file->bytes().data()), file->size());
  int compared = 0, skipped = 0;
  while (!rest.empty()) {
    const std::string_view source = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(source.size() + 1);
    const Result<Json> line = Json::Parse(source);
    ASSERT_TRUE(line.ok()) << line.status().message();
    const Dialect* dialect = std::find_if(
        std::begin(kDialects), std::end(kDialects),
        [&](const Dialect& candidate) { return At(*line, "dialect").string() == candidate.name; });
    ASSERT_NE(dialect, std::end(kDialects));
    Json body = At(*line, "body");
    const std::vector<std::string> stops = StopsOf(body, *dialect);
    if (StopsElsewhere(*line, stops)) {
      ++skipped;
      continue;
    }
    body.Set("stream", Json::Bool(true));
    Result<DialectCall> call = dialect->parse(body, context);
    ASSERT_TRUE(call.ok()) << call.status().message() << "\n" << source;
    const std::string& finish = At(*line, "finish").string();
    const std::string stream = Stream(call->response.get(), At(*line, "pieces"), finish, stops);
    EXPECT_EQ(Merged(Events(stream, *dialect, finish == "length")).Dump(),
              At(*line, "events").Dump())
        << source;
    ++compared;
  }
  EXPECT_GE(compared, 300);
  EXPECT_LT(skipped, 60);
}

}  // namespace
}  // namespace deepinfer
