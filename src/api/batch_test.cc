#include "api/batch.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

BatchItem Parse(std::string text, std::string_view endpoint = "") {
  return ParseBatchItem({.index = 0, .text = std::move(text)}, endpoint);
}

TEST(ParseBatchItem, AsksForAWholeAnswerWhateverTheLineSays) {
  const BatchItem item = Parse(
      R"({"custom_id":"a","url":"/v1/responses","body":{"stream":true,"background":true,"x":1}})");
  ASSERT_TRUE(item.status.ok()) << item.status.message();
  EXPECT_EQ(item.custom_id, "a");
  EXPECT_FALSE(*item.body.GetBool("stream", true));
  EXPECT_FALSE(*item.body.GetBool("background", true));
  EXPECT_FALSE(*item.body.GetBool("store", true));
  EXPECT_EQ(*item.body.GetInt("x", 0), 1);
}

TEST(ParseBatchItem, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", ""},
      {"[]", ""},
      {R"({"url":"/v1/completions","body":{}})", "custom_id"},
      {R"({"custom_id":"","url":"/v1/completions","body":{}})", "custom_id"},
      {R"({"custom_id":7,"url":"/v1/completions","body":{}})", "custom_id"},
      {R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})", "method"},
      {R"({"custom_id":"a","url":"/v1/files","body":{}})", "url"},
      {R"({"custom_id":"a","url":"/v1/responses","body":{}})", "url"},
      {R"({"custom_id":"a","url":"/v1/completions","body":[]})", "body"},
      {R"({"custom_id":"a","url":"/v1/completions"})", "body"}};
  for (const auto& [text, param] : cases) {
    const BatchItem item = Parse(text, "/v1/completions");
    EXPECT_FALSE(item.status.ok()) << text;
    EXPECT_EQ(item.status.param(), param) << text;
  }
  EXPECT_FALSE(ParseBatchItem({.index = 0, .text = {}, .too_long = true}, "").status.ok());
}

TEST(BatchAnswers, AreLinesThatGiveTheirIndexBack) {
  const std::string answer = AnswerLine("j_1", 12, "a\"b\n", {"r", 200, R"({"x":[1]})"});
  EXPECT_EQ(answer,
            R"({"id":"batch_req_j_1_00000012","custom_id":"a\"b\n","response":{"status_code":200,)"
            R"("request_id":"r","body":{"x":[1]}},"error":null})");
  EXPECT_EQ(IndexOfAnswer(answer), 12);
  const std::string error = ErrorLine("j", 123456789, "", Invalid("no").WithParam("url"));
  EXPECT_EQ(error, R"({"id":"batch_req_j_123456789","custom_id":null,"response":null,)"
                   R"("error":{"code":"invalid_value","message":"no","param":"url"}})");
  EXPECT_EQ(IndexOfAnswer(error), 123456789);
  for (const char* other : {"", "precious", R"({"id":"x_1"})", R"({"id":"batch_req_j"})",
                            R"({"id":"batch_req_j_-1"})", R"({"id":"batch_req_j_1","cut)"}) {
    EXPECT_FALSE(IndexOfAnswer(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace deepinfer
