#include "apps/prompt_file.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

PromptLine Parse(std::string line) {
  return ParsePromptLine({.index = 3, .text = std::move(line)});
}

TEST(ParsePromptLine, AcceptsTheThreeFormsAndNamesWhatIsWrong) {
  EXPECT_EQ(*Parse(R"({"prompt":"hi"})").text, "hi");
  EXPECT_EQ(Parse(R"({"prompt":[1,2]})").ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(Parse(R"({"messages":[{"role":"user"}],"id":7})").id.string(), "7");
  for (const char* bad : {"", "{", "[]", "{}", R"({"prompt":1})", R"({"prompt":[]})",
                          R"({"prompt":[-1]})", R"({"prompt":[1.5]})", R"({"messages":[]})",
                          R"({"prompt":"a","messages":[{}]})", R"({"prompt":"a","params":[]})"}) {
    EXPECT_FALSE(Parse(bad).status.ok()) << bad;
  }
}

// A line that cannot be used is one bad line, whatever its bytes.
TEST(ParsePromptLine, KeepsItsIndexWhateverTheLineHolds) {
  EXPECT_FALSE(Parse(std::string(3, '\0')).status.ok());
  const PromptLine giant = ParsePromptLine({.index = 4, .text = {}, .too_long = true});
  EXPECT_FALSE(giant.status.ok());
  EXPECT_EQ(giant.index, 4);
}

TEST(IndexOfResult, IsThatOfALineOfOursAlone) {
  EXPECT_EQ(IndexOfResult(R"({"index":7,"text":"x"})"), 7);
  for (const char* other : {"", "precious", "{}", R"({"index":-1})", R"({"index":"7"})"}) {
    EXPECT_FALSE(IndexOfResult(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace deepinfer
