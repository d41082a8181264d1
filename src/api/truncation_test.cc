// "truncation": "auto" of /v1/responses.
#include <gtest/gtest.h>

#include "api/api_test_util.h"
#include "api/responses.h"
#include "base/format.h"

namespace deepinfer {
namespace {

class TruncationTest : public testing::Test {
 protected:
  TruncationTest() { context_ = text_.Context(); }
  // Turns "u0 ... a0", "u1 ... a1", ... and a last question.
  static std::string Body(int begin, int turns, const char* more) {
    std::string items = R"({"role":"developer","content":"rule"})";
    for (int i = begin; i < turns; ++i) {
      items += Format(R"(,{{"role":"user","content":"u{} {}"}},)", i, std::string(40, 'x'));
      items += Format(R"({{"role":"assistant","content":"a{}"}})", i);
    }
    return Format(R"({{"input":[{},{{"role":"user","content":"last"}}]{}}})", items, more);
  }
  Result<std::string> Prompt(const std::string& body) {
    DI_ASSIGN(DialectCall call, ParseResponses(*Json::Parse(body), context_));
    return text_.tokenizer->Decode(call.requests[0].prompt, false);
  }

  const TinyText text_ = MakeTinyText();
  DialectContext context_;
};

TEST_F(TruncationTest, DropsAsFewOfTheOldestTurnsAsWillDo) {
  context_.max_model_len = 100'000;
  const Result<std::string> whole = Prompt(Body(0, 8, ""));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  for (int length = 120; length < 400; length += 40) {
    context_.max_model_len = length;
    EXPECT_FALSE(Prompt(Body(0, 8, "")).ok()) << length;
    const Result<std::string> cut = Prompt(Body(0, 8, R"(,"truncation":"auto")"));
    ASSERT_TRUE(cut.ok()) << length << ": " << cut.status().message();
    EXPECT_NE(cut->find("rule"), std::string::npos);
    EXPECT_NE(cut->find("last"), std::string::npos);
    // What stays is the end of the whole; one turn more would not fit.
    int first = 0;
    while (cut->find(Format("u{} ", first)) == std::string::npos && first < 8) ++first;
    EXPECT_GT(first, 0);
    const std::string tail = first < 8 ? Format("u{} ", first) : std::string("last");
    EXPECT_EQ(cut->substr(cut->find(tail)), whole->substr(whole->find(tail)));
    EXPECT_FALSE(Prompt(Body(first - 1, 8, "")).ok()) << length;
    EXPECT_EQ(*Prompt(Body(first, 8, "")), *cut) << length;
  }
}

TEST_F(TruncationTest, SaysWhatNoCutMakesFit) {
  context_.max_model_len = 10;
  EXPECT_FALSE(Prompt(Body(0, 2, R"(,"truncation":"auto")")).ok());
  EXPECT_FALSE(Prompt(Body(0, 0, R"(,"truncation":"sometimes")")).ok());
}

}  // namespace
}  // namespace deepinfer
