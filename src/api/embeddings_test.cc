#include "api/embeddings.h"

#include <gtest/gtest.h>

#include "api/api_test_util.h"
#include "api/batch.h"
#include "base/format.h"

namespace deepinfer {
namespace {

class EmbeddingsTest : public testing::Test {
 protected:
  EmbeddingsTest() {
    context_ = text_.Context();
    context_.max_model_len = 1000;
    context_.embedding_size = 3;
  }
  Result<DialectCall> Parse(const std::string& text) {
    return ParseEmbeddings(*Json::Parse(text), context_);
  }
  static OutputDelta Delta(std::vector<float> embedding) {
    OutputDelta delta;
    delta.embedding = std::move(embedding);
    delta.finish = FinishReason::kLength;
    delta.last = true;
    delta.usage.prompt_tokens = 5;
    return delta;
  }

  const TinyText text_ = MakeTinyText();
  DialectContext context_;
};

TEST_F(EmbeddingsTest, AreOfLengthOneInTheOrderOfInputs) {
  Result<DialectCall> call = Parse(R"({"input":["hello","a"]})");
  ASSERT_TRUE(call.ok()) << call.status().message();
  ASSERT_EQ(call->requests.size(), 2U);
  EXPECT_TRUE(call->requests[1].embed);
  EXPECT_EQ(call->requests[1].sampling.max_tokens, 1);
  std::string out;
  call->response->OnDelta(1, Delta({0, 0, -2}), &out);
  call->response->OnDelta(0, Delta({3, 0, 4}), &out);
  call->response->Finish(&out);
  const Result<Json> body = Json::Parse(out);
  ASSERT_TRUE(body.ok()) << out;
  const Json expected = *Json::Parse(
      R"({"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.6,0,0.8]},)"
      R"({"object":"embedding","index":1,"embedding":[0,0,-1]}],"model":"tiny",)"
      R"("usage":{"prompt_tokens":10,"total_tokens":10}})");
  EXPECT_EQ(body->Find("data")->Dump().substr(0, 60), expected.Find("data")->Dump().substr(0, 60));
  EXPECT_EQ(body->Find("usage")->Dump(), expected.Find("usage")->Dump());
}

TEST_F(EmbeddingsTest, Base64IsOfLittleEndianFloats) {
  Result<DialectCall> call = Parse(R"({"input":[1,2],"encoding_format":"base64"})");
  ASSERT_TRUE(call.ok()) << call.status().message();
  std::string out;
  call->response->OnDelta(0, Delta({1, 0, 0}), &out);
  call->response->Finish(&out);
  // python3: base64.b64encode(struct.pack('<3f', 1, 0, 0))
  EXPECT_NE(out.find("\"embedding\":\"AACAPwAAAAAAAAAA\""), std::string::npos) << out;
}

TEST_F(EmbeddingsTest, RefusesWhatItCannotGive) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input":[]})", "input"},
      {R"({"input":{}})", "input"},
      {R"({"input":"a","dimensions":2})", "dimensions"},
      {R"({"input":"a","encoding_format":"int8"})", "encoding_format"},
      {R"({"input":"a","stream":true})", "stream"},
      {R"({"input":"a","model":"other"})", "model"}};
  for (const auto& [text, param] : cases) {
    const Result<DialectCall> call = Parse(text);
    EXPECT_FALSE(call.ok()) << text;
    EXPECT_EQ(call.status().param(), param) << text;
  }
  EXPECT_TRUE(Parse(R"({"input":"a","dimensions":3})").ok());
  context_.embedding_size = 0;
  EXPECT_EQ(Parse(R"({"input":"a"})").status().param(), "input");
}

}  // namespace
}  // namespace deepinfer
