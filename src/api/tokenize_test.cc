#include "api/tokenize.h"

#include <gtest/gtest.h>

#include "api/api_test_util.h"
#include "api/models.h"

namespace deepinfer {
namespace {

class TokenizeTest : public testing::Test {
 protected:
  std::string Answer(Result<Json> (*route)(const Json&, const DialectContext&),
                     std::string_view body) {
    const Result<Json> answer = route(*Json::Parse(body), text_.Context());
    return answer.ok() ? answer->Dump() : "error " + answer.status().param();
  }
  const TinyText text_ = MakeTinyText();
};

TEST_F(TokenizeTest, ReadsVllmsAndLlamaCppsKeys) {
  EXPECT_EQ(Answer(Tokenize, R"({"prompt":"hello a","return_token_strs":true})"),
            R"({"count":3,"max_model_len":100,"tokens":[259,256,257],)"
            "\"token_strs\":[\"<s>\",\"hello\",\"\xC4\xA0\x61\"]}");
  EXPECT_EQ(Answer(Tokenize, R"({"prompt":"hello","add_special_tokens":false})"),
            R"({"count":1,"max_model_len":100,"tokens":[256]})");
  EXPECT_EQ(Answer(Tokenize, R"({"content":"hello<|end|>"})"),
            R"({"count":2,"max_model_len":100,"tokens":[256,260]})");
  EXPECT_EQ(Answer(Tokenize, R"({"content":"hello","add_special":true})"),
            R"({"count":2,"max_model_len":100,"tokens":[259,256]})");
  EXPECT_EQ(Answer(Tokenize, R"({"content":"\ud83d\ude00","with_pieces":true})"),
            R"({"count":3,"max_model_len":100,"tokens":[{"id":258,"piece":[240,159]},)"
            R"({"id":152,"piece":[152]},{"id":128,"piece":[128]}]})");
  EXPECT_EQ(Answer(Tokenize, R"({"messages":[{"role":"user","content":"hello"}]})"),
            R"({"count":9,"max_model_len":100,"tokens":[259,261,117,58,256,260,261,97,58]})");
  EXPECT_EQ(Answer(Tokenize, R"({"messages":[{"role":"user","content":"a"}],
                                 "add_generation_prompt":false,"add_special_tokens":true})"),
            R"({"count":6,"max_model_len":100,"tokens":[259,261,117,58,97,260]})");
}

TEST_F(TokenizeTest, RefusesWrongBodies) {
  EXPECT_EQ(Answer(Tokenize, "{}"), "error prompt");
  EXPECT_EQ(Answer(Tokenize, R"({"prompt":1})"), "error prompt");
  EXPECT_EQ(Answer(Tokenize, R"({"messages":1})"), "error messages");
  EXPECT_EQ(Answer(Detokenize, "{}"), "error tokens");
  EXPECT_EQ(Answer(Detokenize, R"({"tokens":[1000]})"), "error tokens");
  EXPECT_EQ(Answer(Detokenize, R"({"tokens":["a"]})"), "error tokens");
}

TEST_F(TokenizeTest, DetokenizeGivesTheText) {
  EXPECT_EQ(Answer(Detokenize, R"({"tokens":[259,256,257]})"),
            R"({"prompt":"<s>hello a","content":"<s>hello a"})");
  EXPECT_EQ(Answer(Detokenize, R"({"tokens":[259,256],"skip_special_tokens":true})"),
            R"({"prompt":"hello","content":"hello"})");
}

TEST_F(TokenizeTest, ListsModels) {
  const DialectContext context = text_.Context();
  const Json list = ModelList(context);
  ASSERT_EQ(list.Find("data")->items().size(), 2U);
  const Result<Json> card = ModelCard(context, "alias");
  ASSERT_TRUE(card.ok());
  EXPECT_EQ(card->Dump(),
            R"({"id":"alias","object":"model","created":1700000000,"owned_by":"deepinfer",)"
            R"("root":"tiny","parent":"tiny","max_model_len":100,"permission":[]})");
  EXPECT_EQ(ModelCard(context, "other").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace deepinfer
