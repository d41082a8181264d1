// What a client adds up from a stream is the body that it would have got without one, however the
// text arrives, in every dialect.
#include <gtest/gtest.h>

#include <random>

#include "api/api_test_util.h"
#include "api/dialect.h"
#include "api/messages.h"
#include "api/responses.h"
#include "base/format.h"

namespace deepinfer {
namespace {

using Parser = Result<DialectCall> (*)(const Json&, const DialectContext&);

const std::string kTexts[] = {
    "hello",
    "",
    "hm\n</think>\n\nSure <b>.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\\n\"}}\n"
    "</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>",
    "only </thi",
    "</think><tool_call>{\"name\": \"f\", \"arguments\": {\"cut\": [1, ",
    "</think>a<tool_call>no call</tool_call>b",
};

// The deltas of one sample: a few characters each, the end with the last.
std::vector<OutputDelta> Cut(std::string_view text, FinishReason finish, std::mt19937* random) {
  std::vector<OutputDelta> deltas;
  int64_t tokens = 0;
  const auto add = [&](std::string_view piece) {
    OutputDelta delta;
    delta.text = piece;
    // A token a byte, so that every cut has as many.
    delta.token_ids.assign(piece.size(), 'x');
    tokens += static_cast<int64_t>(piece.size());
    delta.usage = {7, tokens, 2};
    deltas.push_back(std::move(delta));
  };
  while (!text.empty()) {
    size_t size = std::min<size_t>(1 + (*random)() % 9, text.size());
    // Deltas hold whole characters.
    while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) ++size;
    add(text.substr(0, size));
    text.remove_prefix(size);
  }
  add("");
  deltas.back().finish = finish;
  deltas.back().last = true;
  return deltas;
}

class FoldTest : public testing::Test {
 protected:
  std::string Answer(Parser parser, std::string body, bool stream, int interval,
                     const std::vector<OutputDelta>& deltas) {
    body.insert(1, Format(R"("request_id":"r","stream":{},"stream_interval":{},)",
                          stream ? "true" : "false", interval));
    Result<DialectCall> call = parser(*Json::Parse(body), context_);
    EXPECT_TRUE(call.ok()) << call.status().message();
    if (!call.ok()) return "";
    std::string out;
    EXPECT_TRUE(call->response->OnStart([] {}).ok());
    for (const OutputDelta& delta : deltas) call->response->OnDelta(0, delta, &out);
    call->response->Finish(&out);
    return out;
  }

  // Calls `check(body, frames)` for every text, end and some ways to cut.
  template <typename Check>
  void ForAll(Parser parser, const std::string& body, Check check) {
    std::mt19937 random(7);
    for (const std::string& text : kTexts) {
      for (const FinishReason finish : {FinishReason::kStop, FinishReason::kLength}) {
        const Result<Json> whole =
            Json::Parse(Answer(parser, body, false, 1, Cut(text, finish, &random)));
        ASSERT_TRUE(whole.ok()) << whole.status().message();
        for (int round = 0; round < 8; ++round) {
          const std::string stream =
              Answer(parser, body, true, 1 + round % 3, Cut(text, finish, &random));
          check(*whole, Frames(stream));
          if (HasFailure()) FAIL() << text << "\n" << whole->Dump() << "\n" << stream;
        }
      }
    }
  }

  static std::vector<Json> Frames(std::string_view stream) {
    std::vector<Json> frames;
    while (!stream.empty()) {
      std::string_view frame = stream.substr(0, stream.find("\n\n"));
      stream.remove_prefix(frame.size() + 2);
      std::string event;
      if (frame.starts_with("event: ")) {
        event = frame.substr(7, frame.find('\n') - 7);
        frame.remove_prefix(frame.find('\n') + 1);
      }
      EXPECT_TRUE(frame.starts_with("data: ")) << frame;
      frame.remove_prefix(6);
      if (frame == "[DONE]") continue;
      Result<Json> json = Json::Parse(frame);
      EXPECT_TRUE(json.ok()) << json.status().message() << frame;
      if (!json.ok()) continue;
      if (!event.empty()) {
        EXPECT_EQ(json->Find("type")->string(), event);
      }
      frames.push_back(*std::move(json));
    }
    return frames;
  }

  const TinyText text_ = MakeTinyText(TinyTemplate::kHermes);
  DialectContext context_ = [this] {
    DialectContext context = text_.Context();
    context.max_model_len = 4000;
    return context;
  }();
};

const Json& At(const Json& json, std::string_view key) {
  static const Json kNone;
  const Json* value = json.Find(key);
  return value == nullptr ? kNone : *value;
}

// Adds what `delta` says of a text member, as the OpenAI clients do.
void AddText(const Json& delta, const char* key, Json* message) {
  const Json* value = delta.Find(key);
  if (value == nullptr || !value->is_string()) return;
  message->Set(key, Json::String(At(*message, key).string() + value->string()));
}

TEST_F(FoldTest, ChatCompletions) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled"},
          "stream_options":{"include_usage":true},
          "tools":[{"type":"function","function":{"name":"f"}}]})";
  const Parser parser = [](const Json& json, const DialectContext& context) {
    Json copy = json;
    if (!*At(json, "stream").AsBool()) copy.Set("stream_options", Json());
    return ParseChatCompletion(copy, context);
  };
  ForAll(parser, body, [](const Json& whole, const std::vector<Json>& frames) {
    Json message = Json::Object(), finish, usage;
    std::vector<std::pair<Json, std::string>> calls;
    for (const Json& frame : frames) {
      if (!At(frame, "usage").is_null()) usage = At(frame, "usage");
      if (At(frame, "choices").items().empty()) continue;
      const Json& choice = At(frame, "choices").items()[0];
      const Json& delta = At(choice, "delta");
      AddText(delta, "content", &message);
      AddText(delta, "reasoning_content", &message);
      for (const Json& call : At(delta, "tool_calls").items()) {
        const auto index = static_cast<size_t>(*At(call, "index").AsInt());
        ASSERT_LE(index, calls.size());
        if (index == calls.size()) calls.emplace_back(call, "");
        calls[index].second += At(At(call, "function"), "arguments").string();
      }
      if (!At(choice, "finish_reason").is_null()) finish = At(choice, "finish_reason");
    }
    const Json& choice = At(whole, "choices").items()[0];
    const Json& expected = At(choice, "message");
    EXPECT_EQ(At(message, "content").string(), At(expected, "content").string());
    EXPECT_EQ(At(message, "reasoning_content"), At(expected, "reasoning_content"));
    EXPECT_EQ(finish, At(choice, "finish_reason"));
    EXPECT_EQ(At(usage, "total_tokens"), At(At(whole, "usage"), "total_tokens"));
    ASSERT_EQ(calls.size(), At(expected, "tool_calls").items().size());
    for (size_t i = 0; i < calls.size(); ++i) {
      const Json& call = At(expected, "tool_calls").items()[i];
      EXPECT_EQ(At(calls[i].first, "id"), At(call, "id"));
      EXPECT_EQ(At(At(calls[i].first, "function"), "name"), At(At(call, "function"), "name"));
      EXPECT_EQ(calls[i].second, At(At(call, "function"), "arguments").string());
    }
  });
}

TEST_F(FoldTest, Messages) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled"},
          "tools":[{"name":"f"}]})";
  ForAll(ParseMessages, body, [](const Json& whole, const std::vector<Json>& frames) {
    ASSERT_GE(frames.size(), 4U);
    EXPECT_EQ(At(frames.front(), "type").string(), "message_start");
    EXPECT_EQ(At(frames.back(), "type").string(), "message_stop");
    Json message = At(frames.front(), "message"), content = Json::Array(), block;
    std::string input;
    for (const Json& frame : frames) {
      const std::string& type = At(frame, "type").string();
      if (type == "content_block_start") {
        EXPECT_EQ(*At(frame, "index").AsInt(), static_cast<int64_t>(content.items().size()));
        EXPECT_TRUE(block.is_null());
        block = At(frame, "content_block");
        input.clear();
      } else if (type == "content_block_delta") {
        const Json& delta = At(frame, "delta");
        input += At(delta, "partial_json").string();
        for (const char* key : {"text", "thinking", "signature"}) AddText(delta, key, &block);
      } else if (type == "content_block_stop") {
        const Result<Json> parsed = Json::Parse(input);
        if (parsed.ok() && parsed->is_object()) block.Set("input", *parsed);
        content.Push(std::exchange(block, Json()));
      } else if (type == "message_delta") {
        message.Set("stop_reason", At(At(frame, "delta"), "stop_reason"));
        message.Set("usage", At(frame, "usage"));
      }
    }
    message.Set("content", content);
    EXPECT_EQ(message, whole);
  });
}

TEST_F(FoldTest, Responses) {
  const std::string body =
      R"({"input":"x","chat_template_kwargs":{"thinking":true},
          "tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}]})";
  ForAll(ParseResponses, body, [](const Json& whole, const std::vector<Json>& frames) {
    Json output = Json::Array();
    std::string text;
    for (size_t i = 0; i < frames.size(); ++i) {
      const Json& frame = frames[i];
      EXPECT_EQ(*At(frame, "sequence_number").AsInt(), static_cast<int64_t>(i));
      const std::string& type = At(frame, "type").string();
      if (type == "response.output_item.added") {
        EXPECT_EQ(*At(frame, "output_index").AsInt(), static_cast<int64_t>(output.items().size()));
        text.clear();
      } else if (type.ends_with(".delta")) {
        text += At(frame, "delta").string();
      } else if (type == "response.output_item.done") {
        const Json& item = At(frame, "item");
        const Json& parts = At(item, "content");
        const std::string said = parts.is_array()     ? At(parts.items()[0], "text").string()
                                 : item.Find("input") ? At(item, "input").string()
                                                      : At(item, "arguments").string();
        EXPECT_EQ(said, text);
        output.Push(item);
      }
    }
    const Json& last = At(frames.back(), "response");
    EXPECT_EQ(At(whole, "output"), output);
    for (const char* key : {"output", "status", "incomplete_details", "id"}) {
      EXPECT_EQ(At(whole, key), At(last, key)) << key;
    }
    EXPECT_EQ(At(At(whole, "usage"), "total_tokens"), At(At(last, "usage"), "total_tokens"));
    EXPECT_GE(whole.members().size(), 32U);
    EXPECT_EQ(At(frames.back(), "type").string(), "response." + At(whole, "status").string());
  });
}

}  // namespace
}  // namespace deepinfer
