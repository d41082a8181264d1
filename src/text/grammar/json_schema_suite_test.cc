// The JSON-Schema-Test-Suite: whatever is compiled accepts every valid document and refuses every
// invalid one, and most of the suite is compiled.
#include <fstream>
#include <map>

#include "base/json.h"
#include "text/grammar/grammar_test_util.h"

namespace deepinfer {
namespace {

struct Score {
  int cases = 0;
  int enforced = 0;
  int wrong = 0;
};

void RunGroup(const Json& group, Score* score) {
  const std::vector<Json>& tests = group.Find("tests")->items();
  score->cases += static_cast<int>(tests.size());
  const std::string schema = group.Find("schema")->Dump();
  const Result<Grammar> grammar = CompiledGrammar::Compile(
      {GrammarSource::Kind::kJsonSchema, schema}, GrammarOptions::ForChecking());
  // A schema that nothing satisfies is refused, which is right where every document is invalid.
  const bool nothing = grammar.status().message().find("nothing satisfies") != std::string::npos;
  if (!grammar.ok() && !nothing) {
    EXPECT_FALSE(grammar.status().param().empty()) << grammar.status().message();
    return;
  }
  score->enforced += static_cast<int>(tests.size());
  for (const Json& test : tests) {
    const std::string& text = test.items()[0].string();
    const bool valid = *test.items()[1].AsBool();
    if ((grammar.ok() && Accepts(*grammar, text)) == valid) continue;
    ++score->wrong;
    ADD_FAILURE() << group.Find("keyword")->string() << ", " << group.Find("description")->string()
                  << ": " << schema << (valid ? " must accept " : " must refuse ") << text;
  }
}

TEST(JsonSchemaSuiteTest, EveryVerdictIsRight) {
  std::ifstream file("tests/schemas/draft2020-12.jsonl");
  ASSERT_TRUE(file.good()) << "run from the repository's root";
  std::map<std::string, Score> by_keyword;
  Score all;
  for (std::string line; std::getline(file, line);) {
    const Result<Json> group = Json::Parse(line);
    ASSERT_TRUE(group.ok()) << group.status().message();
    Score* score = &by_keyword[group->Find("keyword")->string()];
    RunGroup(*group, score);
  }
  for (const auto& [keyword, score] : by_keyword) {
    all.cases += score.cases;
    all.enforced += score.enforced;
    all.wrong += score.wrong;
  }
  EXPECT_EQ(all.wrong, 0);
  EXPECT_GE(all.cases, 1200);
  EXPECT_GE(all.enforced * 100, all.cases * 94) << all.enforced << " of " << all.cases;
}

}  // namespace
}  // namespace deepinfer
