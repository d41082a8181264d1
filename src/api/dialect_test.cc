#include "api/dialect.h"

#include <gtest/gtest.h>

#include <limits>

#include "api/api_test_util.h"
#include "api/error.h"
#include "base/format.h"

namespace deepinfer {
namespace {

using Parser = Result<DialectCall> (*)(const Json&, const DialectContext&);

class DialectTest : public testing::Test {
 protected:
  Result<DialectCall> Parse(Parser parser, std::string_view text) {
    Result<Json> body = Json::Parse(text);
    EXPECT_TRUE(body.ok()) << body.status().message() << text;
    return parser(*body, context_);
  }
  DialectCall Chat(std::string_view fields) {
    Result<DialectCall> call = Parse(
        ParseChatCompletion, Format(R"({{"messages":[{{"role":"user","content":"hello"}}]{}{}}})",
                                    fields.empty() ? "" : ",", fields));
    EXPECT_TRUE(call.ok()) << call.status().message();
    return call.ok() ? *std::move(call) : DialectCall();
  }
  DialectCall Completion(std::string_view fields) {
    Result<DialectCall> call = Parse(ParseCompletion, Format("{{{}}}", fields));
    EXPECT_TRUE(call.ok()) << call.status().message();
    return call.ok() ? *std::move(call) : DialectCall();
  }
  // The error's param, and its code after a slash when it is a special one.
  std::string ErrorOf(Parser parser, std::string_view text) {
    const Result<DialectCall> call = Parse(parser, text);
    EXPECT_FALSE(call.ok()) << text;
    if (call.ok()) return "";
    EXPECT_FALSE(call.status().message().empty());
    const Status& status = call.status();
    return status.param() + (status.reason() != nullptr ? "/" + std::string(status.reason()) : "");
  }

  const TinyText text_ = MakeTinyText();
  DialectContext context_ = text_.Context();
};

OutputDelta Delta(std::string text, std::vector<TokenId> ids, int sample = 0) {
  OutputDelta delta;
  delta.sample = sample;
  delta.text = std::move(text);
  for (const TokenId id : ids) {
    delta.logprobs.push_back(
        {id, -0.5F, 1, {{id, -0.5F}, {kHello, -std::numeric_limits<float>::infinity()}}});
  }
  delta.token_ids = std::move(ids);
  delta.usage = {5, static_cast<int64_t>(delta.token_ids.size()), 2};
  return delta;
}

OutputDelta Last(OutputDelta delta, FinishReason reason) {
  delta.finish = reason;
  delta.last = true;
  return delta;
}

std::vector<Json> Frames(std::string_view stream) {
  std::vector<Json> frames;
  while (!stream.empty()) {
    EXPECT_TRUE(stream.starts_with("data: ")) << stream;
    const size_t end = stream.find("\n\n");
    const std::string_view data = stream.substr(6, end - 6);
    stream.remove_prefix(end + 2);
    if (data == "[DONE]") {
      EXPECT_TRUE(stream.empty());
      break;
    }
    Result<Json> json = Json::Parse(data);
    EXPECT_TRUE(json.ok()) << json.status().message() << data;
    if (json.ok()) frames.push_back(*std::move(json));
  }
  return frames;
}

std::string WriteAll(DialectCall* call, std::vector<std::pair<int, OutputDelta>> deltas) {
  std::string out;
  for (auto& [prompt, delta] : deltas) call->response->OnDelta(prompt, std::move(delta), &out);
  call->response->Finish(&out);
  return out;
}

Json Body(DialectCall* call, std::vector<std::pair<int, OutputDelta>> deltas) {
  const std::string text = WriteAll(call, std::move(deltas));
  Result<Json> json = Json::Parse(text);
  EXPECT_TRUE(json.ok()) << json.status().message() << text;
  return json.ok() ? *std::move(json) : Json();
}

const Json& At(const Json& json, std::initializer_list<std::string_view> path) {
  static const Json kNone;
  const Json* at = &json;
  for (const std::string_view key : path) {
    const bool index = !key.empty() && key.find_first_not_of("0123456789") == key.npos;
    if (index && at->is_array() && std::stoul(std::string(key)) < at->items().size()) {
      at = &at->items()[std::stoul(std::string(key))];
      continue;
    }
    at = at->Find(key);
    if (at == nullptr) {
      ADD_FAILURE() << "no " << key << " in " << json.Dump();
      return kNone;
    }
  }
  return *at;
}

// --- Requests -------------------------------------------------------------------------------

TEST_F(DialectTest, ChatRendersAndMarksSpecialTokens) {
  const DialectCall call = Chat(R"("max_tokens":3,"temperature":0)");
  ASSERT_EQ(call.requests.size(), 1U);
  const std::vector<TokenId> expected = {kBos, kStart, 'u', ':', kHello, kEnd, kStart, 'a', ':'};
  EXPECT_EQ(call.requests[0].prompt, expected);
  EXPECT_EQ(call.requests[0].sampling.max_tokens, 3);
  EXPECT_FALSE(Chat("").requests[0].sampling.max_tokens.has_value());
}

TEST_F(DialectTest, TextOfUsersNamesNoSpecialToken) {
  const auto count_ends = [&](const DialectContext& context) {
    const Result<DialectCall> call =
        ParseChatCompletion(*Json::Parse(R"({"messages":[{"role":"user","content":"<|end|>"}],
                         "chat_template_kwargs":{"note":"<|end|>"}})"),
                            context);
    EXPECT_TRUE(call.ok()) << call.status().message();
    const auto& ids = call->requests[0].prompt;
    return std::count(ids.begin(), ids.end(), kEnd);
  };
  EXPECT_EQ(count_ends(context_), 1);
  context_.trust = SpecialTokenTrust::kEverywhere;
  EXPECT_EQ(count_ends(context_), 3);
}

TEST_F(DialectTest, ChatContentPartsAndContinuation) {
  const Result<DialectCall> call = Parse(ParseChatCompletion, R"({"messages":[
      {"role":"developer","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},
      {"role":"assistant","content":"hello "}],"continue_final_message":true,"echo":true})");
  ASSERT_TRUE(call.ok()) << call.status().message();
  const std::vector<TokenId> expected = {kBos, kStart, 's', ':', 'x',    '\n', 'y',
                                         kEnd, kStart, 'a', ':', kHello, ' '};
  EXPECT_EQ(call->requests[0].prompt, expected);
  DialectCall echoing = *Parse(ParseChatCompletion, R"({"messages":[
      {"role":"assistant","content":"hello"}],"continue_final_message":true,"echo":true})");
  const Json body = Body(&echoing, {{0, Last(Delta(" a", {kSpaceA}), FinishReason::kLength)}});
  EXPECT_EQ(At(body, {"choices", "0", "message", "content"}).string(), "hello a");
}

TEST_F(DialectTest, CompletionPromptsOfEveryShape) {
  EXPECT_EQ(Completion(R"("prompt":"hello")").requests[0].prompt,
            (std::vector<TokenId>{kBos, kHello}));
  EXPECT_EQ(Completion(R"("prompt":"<|end|>","add_special_tokens":false)").requests[0].prompt,
            (std::vector<TokenId>{kEnd}));
  EXPECT_EQ(Completion(R"("prompt":[7,8])").requests[0].prompt, (std::vector<TokenId>{7, 8}));
  EXPECT_EQ(Completion(R"("prompt":[[7],[8,9]])").requests[1].prompt, (std::vector<TokenId>{8, 9}));
  EXPECT_EQ(Completion(R"("prompt":["a","b"])").requests.size(), 2U);
  EXPECT_EQ(Completion(R"("prompt":"a")").requests[0].sampling.max_tokens, 16);
}

TEST_F(DialectTest, OptionsReachTheRequest) {
  const DialectCall call = Completion(
      R"("prompt":[1,2,3,4,5],"truncate_prompt_tokens":3,"cache_salt":"s","priority":-4,
         "cache_prompt":false,"request_id":"me","logprobs":2,"echo":true,"n":2,"seed":5,
         "model":"alias","stop_token_ids":[7],"ignore_eos":true,"min_tokens":2)");
  const Request& request = call.requests[0];
  EXPECT_EQ(request.prompt, (std::vector<TokenId>{3, 4, 5}));
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.priority, -4);
  EXPECT_TRUE(request.skip_prefix_cache);
  EXPECT_EQ(request.id, "me");
  EXPECT_EQ(request.sampling.logprobs, 2);
  EXPECT_EQ(request.sampling.prompt_logprobs, 2);
  EXPECT_EQ(request.sampling.n, 2);
  EXPECT_EQ(Completion(R"("prompt":[1,2,3],"truncate_prompt_tokens":2,"truncation_side":"right")")
                .requests[0]
                .prompt,
            (std::vector<TokenId>{1, 2}));
}

TEST_F(DialectTest, ChatErrorsNameTheField) {
  const auto with = [](std::string_view fields) {
    return Format(R"({{"messages":[{{"role":"user","content":"x"}}],{}}})", fields);
  };
  const std::pair<std::string, std::string> cases[] = {
      {"{}", "messages"},
      {"[]", ""},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":"x"})", "messages"},
      {R"({"messages":[7]})", "messages[0]"},
      {R"({"messages":[{"role":"king","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
       "messages[0].content/unsupported_parameter"},
      {with(R"("model":"other")"), "model/model_not_found"},
      {with(R"("tools":[{"type":"function","function":{"name":"f g"}}])"),
       "tools[0].function.name"},
      {with(R"("tool_choice":"required")"), "tool_choice"},
      {with(R"("tool_choice":{"type":"function","function":{"name":"f"}})"), "tool_choice"},
      {with(R"("response_format":{"type":"xml"})"), "response_format"},
      {with(R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})"),
       "response_format.json_schema.schema"},
      {with(R"("guided_json":5)"), "guided_json"},
      {with(R"("guided_choice":["a",1])"), "guided_choice"},
      {with(R"("guided_regex":"a","grammar":"root ::= \"a\"")"), "grammar"},
      {with(R"("structured_outputs":{"regex":"a","choice":["a"]})"), "structured_outputs.choice"},
      {with(R"("structured_outputs":{"json":{},"whitespace_pattern":" "})"),
       "structured_outputs.whitespace_pattern/unsupported_parameter"},
      {with(R"("chat_template":"{{ x }}")"), "chat_template/unsupported_parameter"},
      {with(R"("modalities":["audio"])"), "modalities/unsupported_parameter"},
      {with(R"("top_logprobs":2)"), "top_logprobs"},
      {with(R"("logprobs":5)"), "logprobs"},
      {with(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs"},
      {with(R"("stream_options":{"include_usage":true})"), "stream_options"},
      {with(R"("stream":"yes")"), "stream"},
      {with(R"("stream":true,"prompt_logprobs":1)"), "prompt_logprobs"},
      {with(R"("add_generation_prompt":true,"continue_final_message":true)"),
       "continue_final_message"},
      {with(R"("chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs"},
      {with(R"("max_tokens":0)"), "max_tokens"},
      {with(R"("cache_salt":"")"), "cache_salt"},
      {with(R"("truncate_prompt_tokens":0)"), "truncate_prompt_tokens"},
      {with(R"("temperature":9)"), "temperature"},
      {with(R"("priority":1.5)"), "priority"},
      {Format(R"({{"messages":[{{"role":"user","content":"{}"}}]}})", std::string(200, 'x')),
       "messages/context_length_exceeded"},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_EQ(ErrorOf(ParseChatCompletion, body), expected) << body;
  }
  context_.chat_template = nullptr;
  EXPECT_EQ(ErrorOf(ParseChatCompletion, with(R"("n":1)")), "");
}

TEST_F(DialectTest, CompletionErrorsNameTheField) {
  const std::pair<std::string, std::string> cases[] = {
      {"{}", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":7})", "prompt"},
      {R"({"prompt":["a",[1]]})", "prompt"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt"},
      {R"({"prompt":[999]})", "prompt"},
      {R"({"prompt":[-1]})", "prompt"},
      {R"({"prompt":"","add_special_tokens":false})", "prompt"},
      {R"({"prompt":"a","suffix":"b"})", "suffix/unsupported_parameter"},
      {R"({"prompt":"a","best_of":3})", "best_of/unsupported_parameter"},
      {R"({"prompt":"a","max_tokens":0})", "max_tokens"},
      {R"({"prompt":"a","logprobs":21})", "logprobs"},
      {R"({"prompt":"a","seed":1,"seq_seed":2})", "seq_seed"},
      {R"({"prompt":"a","use_beam_search":true})", "use_beam_search/unsupported_parameter"},
      {R"({"prompt":"a","guided_regex":["x"]})", "guided_regex"},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_EQ(ErrorOf(ParseCompletion, body), expected) << body;
  }
}

TEST(ErrorBody, HasOpenAisKeysAndTheStatus) {
  const Json body = ErrorBody(NotFound("gone").WithParam("model").WithReason(kModelNotFound));
  EXPECT_EQ(body.Dump(), R"({"error":{"message":"gone","type":"not_found_error","param":"model",)"
                         R"("code":"model_not_found","status":404}})");
  EXPECT_TRUE(At(ErrorBody(Invalid("x")), {"error", "param"}).is_null());
}

// --- Responses ------------------------------------------------------------------------------

TEST_F(DialectTest, ChatStreamHasRoleTextFinishAndUsage) {
  DialectCall call = Chat(R"("stream":true,"stream_options":{"include_usage":true},"colour":1)");
  EXPECT_EQ(call.mode, DialectCall::Mode::kStream);
  const std::vector<Json> frames =
      Frames(WriteAll(&call, {{0, Delta("hel", {1})},
                              {0, Delta("", {2})},
                              {0, Last(Delta("lo", {1, 2, 3}), FinishReason::kStop)}}));
  ASSERT_EQ(frames.size(), 5U);
  EXPECT_EQ(At(frames[0], {"object"}).string(), "chat.completion.chunk");
  EXPECT_EQ(At(frames[0], {"choices", "0", "delta"}).Dump(),
            R"({"role":"assistant","content":""})");
  EXPECT_NE(At(frames[0], {"warnings", "0"}).string().find("colour"), std::string::npos);
  EXPECT_EQ(At(frames[1], {"choices", "0", "delta"}).Dump(), R"({"content":"hel"})");
  EXPECT_TRUE(At(frames[1], {"choices", "0", "finish_reason"}).is_null());
  EXPECT_TRUE(At(frames[1], {"usage"}).is_null());
  EXPECT_EQ(At(frames[3], {"choices", "0", "delta"}).Dump(), "{}");
  EXPECT_EQ(At(frames[3], {"choices", "0", "finish_reason"}).string(), "stop");
  EXPECT_EQ(At(frames[4], {"choices"}).Dump(), "[]");
  EXPECT_EQ(At(frames[4], {"usage"}).Dump(),
            R"({"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,)"
            R"("prompt_tokens_details":{"cached_tokens":2}})");
  for (const Json& frame : frames) {
    EXPECT_EQ(At(frame, {"id"}), At(frames[0], {"id"}));
    EXPECT_EQ(At(frame, {"created"}), At(frames[0], {"created"}));
    EXPECT_EQ(At(frame, {"model"}).string(), "tiny");
  }
}

TEST_F(DialectTest, ChatLogprobsCarryExactBytes) {
  DialectCall call = Chat(R"("logprobs":true,"top_logprobs":2)");
  EXPECT_EQ(call.requests[0].sampling.logprobs, 2);
  const Json body = Body(&call, {{0, Last(Delta("", {kEmoji}), FinishReason::kLength)}});
  const Json& item = At(body, {"choices", "0", "logprobs", "content", "0"});
  EXPECT_EQ(item.Dump(),
            "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,\"bytes\":[240,159],\"top_logprobs\":["
            "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,\"bytes\":[240,159]},"
            "{\"token\":\"hello\",\"logprob\":-9999.0,\"bytes\":[104,101,108,108,111]}]}");
  DialectCall ids = Chat(R"("logprobs":true,"return_tokens_as_token_ids":true)");
  const Json named = Body(&ids, {{0, Last(Delta("", {kEmoji}), FinishReason::kLength)}});
  EXPECT_EQ(At(named, {"choices", "0", "logprobs", "content", "0", "token"}).string(),
            "token_id:258");
}

TEST_F(DialectTest, StopReasonIsTheStringOrTheListedId) {
  DialectCall call = Completion(R"("prompt":"a","stop_token_ids":[7],"n":3)");
  OutputDelta by_text = Last(Delta("x", {1}), FinishReason::kStop);
  by_text.stop_text = "END";
  OutputDelta by_id = Last(Delta("x", {1}, 1), FinishReason::kStop);
  by_id.stop_token = 7;
  OutputDelta by_eos = Last(Delta("x", {1}, 2), FinishReason::kStop);
  by_eos.stop_token = kEnd;
  const Json body = Body(&call, {{0, by_text}, {0, by_id}, {0, by_eos}});
  EXPECT_EQ(At(body, {"choices", "0", "stop_reason"}).Dump(), "\"END\"");
  EXPECT_EQ(At(body, {"choices", "1", "stop_reason"}).Dump(), "7");
  EXPECT_TRUE(At(body, {"choices", "2", "stop_reason"}).is_null());
  EXPECT_EQ(At(body, {"usage", "completion_tokens"}).Dump(), "3");
}

TEST_F(DialectTest, ScoringModeEchoesPromptLogprobs) {
  DialectCall call = Completion(
      R"("prompt":"hello a","echo":true,"max_tokens":0,"logprobs":1,"return_token_ids":true)");
  EXPECT_EQ(call.requests[0].sampling.max_tokens, 0);
  EXPECT_EQ(call.requests[0].sampling.prompt_logprobs, 1);
  OutputDelta delta = Last(Delta("", {}), FinishReason::kLength);
  delta.prompt_logprobs = {std::nullopt, TokenLogprob{kHello, -1.0F, 2, {{kSpaceA, -0.25F}}},
                           TokenLogprob{kSpaceA, -0.25F, 1, {{kSpaceA, -0.25F}}}};
  const Json body = Body(&call, {{0, delta}});
  const Json& choice = At(body, {"choices", "0"});
  EXPECT_EQ(At(choice, {"text"}).string(), "hello a");
  EXPECT_EQ(At(choice, {"logprobs"}).Dump(),
            R"({"tokens":["<s>","hello"," a"],"token_logprobs":[null,-1.0,-0.25],)"
            R"("top_logprobs":[null,{" a":-0.25,"hello":-1.0},{" a":-0.25}],)"
            R"("text_offset":[0,0,5]})");
  EXPECT_EQ(At(choice, {"prompt_token_ids"}).Dump(), "[259,256,257]");
  EXPECT_EQ(At(choice, {"token_ids"}).Dump(), "[]");
  EXPECT_EQ(choice.Find("prompt_logprobs"), nullptr);
}

TEST_F(DialectTest, EchoedLogprobsReachEverySampleInAnyOrder) {
  DialectCall call = Completion(R"("prompt":[104],"echo":true,"logprobs":0,"n":2)");
  OutputDelta first = Last(Delta("x", {'x'}), FinishReason::kLength);
  first.prompt_logprobs = {std::nullopt};
  const Json body =
      Body(&call, {{0, Last(Delta("y", {'y'}, 1), FinishReason::kLength)}, {0, first}});
  for (const char* i : {"0", "1"}) {
    EXPECT_EQ(At(body, {"choices", i, "logprobs", "tokens"}).items().size(), 2U);
    EXPECT_EQ(At(body, {"choices", i, "logprobs", "text_offset"}).Dump(), "[0,1]");
  }
  EXPECT_EQ(At(body, {"choices", "1", "text"}).string(), "hy");
}

TEST_F(DialectTest, PromptLogprobsHaveVllmsShape) {
  DialectCall call = Chat(R"("prompt_logprobs":1)");
  OutputDelta delta = Last(Delta("x", {'x'}), FinishReason::kLength);
  delta.prompt_logprobs = {std::nullopt, TokenLogprob{kHello, -1.0F, 4, {{kSpaceA, -0.25F}}}};
  EXPECT_EQ(At(Body(&call, {{0, delta}}), {"prompt_logprobs"}).Dump(),
            R"([null,{"256":{"logprob":-1.0,"rank":4,"decoded_token":"hello"},)"
            R"("257":{"logprob":-0.25,"rank":1,"decoded_token":" a"}}])");
}

TEST_F(DialectTest, ListPromptsNumberTheirChoices) {
  DialectCall call = Completion(R"("prompt":[[1],[2]],"n":2)");
  std::vector<std::pair<int, OutputDelta>> deltas;
  for (const int prompt : {1, 0}) {
    for (const int sample : {1, 0}) {
      deltas.emplace_back(
          prompt, Last(Delta(Format("{}{}", prompt, sample), {1}, sample), FinishReason::kLength));
    }
  }
  const Json body = Body(&call, std::move(deltas));
  ASSERT_EQ(At(body, {"choices"}).items().size(), 4U);
  for (int i = 0; i < 4; ++i) {
    const Json& choice = At(body, {"choices"}).items()[static_cast<size_t>(i)];
    EXPECT_EQ(At(choice, {"index"}).Dump(), Format("{}", i));
    EXPECT_EQ(At(choice, {"text"}).string(), Format("{}{}", i / 2, i % 2));
  }
  EXPECT_EQ(At(body, {"usage"}).Dump(),
            R"({"prompt_tokens":2,"completion_tokens":4,"total_tokens":6,)"
            R"("prompt_tokens_details":{"cached_tokens":4}})");
}

TEST_F(DialectTest, ErrorFrameEndsAStream) {
  DialectCall call = Chat(R"("stream":true)");
  std::string out;
  call.response->Fail({StatusCode::kDeadline, "too late"}, &out);
  const std::vector<Json> frames = Frames(out);
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(At(frames[0], {"error", "status"}).Dump(), "504");
}

// Folds a stream's frames the way clients do.
Json FoldStream(const std::vector<Json>& frames, std::string_view text_key) {
  Json folded = Json::Array();
  std::map<int64_t, std::map<std::string, std::string>> choices;
  for (const Json& frame : frames) {
    for (const Json& choice : At(frame, {"choices"}).items()) {
      auto& out = choices[*At(choice, {"index"}).AsInt()];
      const Json* delta = choice.Find("delta");
      const Json* text = delta != nullptr ? delta->Find("content") : choice.Find(text_key);
      if (text != nullptr) out["text"] += text->string();
      for (const char* key : {"finish_reason", "stop_reason"}) {
        const Json* value = choice.Find(key);
        if (value != nullptr && !value->is_null()) out[key] = value->Dump();
      }
      const auto extend = [&](const std::string& name, const Json& list) {
        for (const Json& item : list.items()) out[name] += item.Dump() + " ";
      };
      if (const Json* ids = choice.Find("token_ids")) extend("token_ids", *ids);
      const Json* logprobs = choice.Find("logprobs");
      for (const auto& [name, list] :
           logprobs == nullptr ? Json().members() : logprobs->members()) {
        if (list.is_array()) extend(name, list);
      }
    }
  }
  for (const auto& [index, members] : choices) {
    Json& choice = folded.Push(Json::Object());
    for (const auto& [name, value] : members) choice.Set(name, Json::String(value));
  }
  return folded;
}

// The body as a stream of one frame: what FoldStream gives for both must agree.
Json FoldBody(Json body) {
  Json frame = Json::Object();
  Json& choices = frame.Set("choices", Json::Array());
  for (const Json& choice : At(body, {"choices"}).items()) {
    Json copy = choice;
    if (const Json* message = choice.Find("message")) {
      Json delta = Json::Object();
      delta.Set("content", *message->Find("content"));
      copy.Set("delta", std::move(delta));
    }
    choices.Push(std::move(copy));
  }
  return FoldStream({frame}, "text");
}

TEST_F(DialectTest, TheBodyIsTheFoldOfTheStream) {
  std::vector<std::pair<int, OutputDelta>> deltas;
  for (int step = 0; step < 5; ++step) {
    for (int sample = 0; sample < 2; ++sample) {
      OutputDelta delta = Delta(step == 2 ? "" : Format("t{}s{} é", step, sample),
                                {'t', '0' + step, kEmoji}, sample);
      delta.usage.completion_tokens = 3 * (step + 1);
      if (step == 0 && sample == 0) delta.prompt_logprobs = {std::nullopt};
      if (step == 4) delta.finish = sample == 0 ? FinishReason::kStop : FinishReason::kLength;
      if (step == 4 && sample == 0) delta.stop_text = "!";
      deltas.emplace_back(0, delta);
    }
  }
  const char* options = R"("n":2,"return_token_ids":true)";
  for (const char* logprobs : {"", R"(,"logprobs":1,"echo":true)"}) {
    const std::string fields = Format(R"("prompt":[104],{}{})", options, logprobs);
    DialectCall whole = Completion(fields);
    DialectCall stream =
        Completion(fields + R"(,"stream":true,"stream_options":{"continuous_usage_stats":true})");
    EXPECT_EQ(FoldStream(Frames(WriteAll(&stream, deltas)), "text").Dump(),
              FoldBody(Body(&whole, deltas)).Dump());
  }
  for (const char* logprobs : {"", R"(,"logprobs":true,"top_logprobs":1)"}) {
    const std::string fields = Format("{}{}", options, logprobs);
    DialectCall whole = Chat(fields);
    DialectCall stream = Chat(fields + R"(,"stream":true)");
    EXPECT_EQ(FoldStream(Frames(WriteAll(&stream, deltas)), "text").Dump(),
              FoldBody(Body(&whole, deltas)).Dump());
  }
}

}  // namespace
}  // namespace deepinfer
