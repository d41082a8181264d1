// Regular expressions, choices, GBNF and EBNF, structural tags: what they accept and refuse.
#include "text/grammar/grammar_test_util.h"

namespace deepinfer {
namespace {

using Kind = GrammarSource::Kind;

struct TextCase {
  Kind kind;
  std::string source;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

const TextCase kCases[] = {
    {Kind::kRegex, R"([a-c]+\d{2,3})", {"a12", "abc123"}, {"a1", "12", "a1234", "d12"}},
    {Kind::kRegex, R"(^(foo|bar)?$)", {"", "foo", "bar"}, {"fo", "foobar"}},
    {Kind::kRegex, R"((?:x|(?<n>y))z*?)", {"x", "yzz"}, {"z"}},
    {Kind::kRegex, R"([^\w\s]\u00e9\x41\cJ)", {"!éA\n"}, {"aéA\n"}},
    {Kind::kRegex, R"(\p{Lu}[\p{Ll}-]*)", {"Äa-b", "B"}, {"a", "BB"}},
    {Kind::kRegex, R"(.{3})", {"aé中"}, {"ab", "a\nb"}},
    {Kind::kChoice, R"(["yes","no","not sure"])", {"yes", "no", "not sure"}, {"ye", "nope", ""}},
    {Kind::kBnf, "root ::= \"a\" | \"b\" root\n", {"a", "ba", "bbba"}, {"", "b", "ab"}},
    {Kind::kBnf,
     "root ::= expr\nexpr ::= term ([+-] term)*\nterm ::= num | \"(\" expr \")\"\nnum ::= [0-9]+",
     {"1", "1+2", "((1)-2)+33"},
     {"1+", "(1", "()", "1)"}},
    {Kind::kBnf,
     "# lines\nroot ::= item{2,3} # end\nitem ::= [^\\x00-\\x1F\"]\n  | \"\\n\"\n",
     {"ab", "a\nc"},
     {"a", "abcd"}},
    {Kind::kBnf, "root = \"x\", { \"y\" }, ( 'z' | 'w' ) ;", {"xz", "xyyw"}, {"x", "yz"}},
    {Kind::kBnf,
     "root ::= ([ab] | sub)*\nsub ::= \"c\" root \"d\"",
     {"", "ab", "cacdd", "acd"},
     {"c", "d"}},
    {Kind::kBnf,
     "root ::= \"<\" x{100000} \">\" | \"ok\"\nx ::= [a-z0-9] [a-z]",
     {"ok"},
     {"<>", "<ab>"}},
    {Kind::kBnf,
     "root ::= (\"<p>\" %until\"</p>\" \"</p>\" | \"<n>\" %json{\"type\":\"integer\"} \"</n>\")+",
     {"<p></p>", "<p>a < b </ p></p>", "<n>12</n><p><</p>", "<p></</p>"},
     {"<p></p></p>", "<n>x</n>", "<n></n>", "<p>"}},
    {Kind::kBnf,
     "root ::= %until(\"</b>\" \"<b\") %grammar{\"regex\":\"x+|y\"}\n"
     "# the same: %until(\"a\")",
     {"y", "xx", "< / b xx"},
     {"<b>x", "</b>x", "z", ""}},
    {Kind::kBnf,
     "root ::= \"[\" %grammar{\"choice\":[\"a b\",\"c\"]} \"|\" "
     "%grammar{\"grammar\":\"root ::= \\\"p\\\" root | \\\"q\\\"\"} \"]\"",
     {"[a b|q]", "[c|ppq]"},
     {"[|q]", "[a b|]"}},
    {Kind::kBnf,
     "root ::= %until \"aab\" \"!\"",
     {"!", "aa!", "aaa!", "abaa!"},
     {"aab!", "aaab!", ""}},
    {Kind::kStructuralTag,
     R"({"structures":[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"},
                       {"begin":"<f=b>","schema":{"type":"boolean"},"end":"</f>"}],
        "triggers":["<f="]})",
     {"", "text < f", "hi <f=a>12</f> and <f=b>true</f>", "<f", "<<f=a>1</f>"},
     {"<f=", "<f=c>1</f>", "<f=a>x</f>", "<f=b>1</f>", "<f=a>1"}},
    {Kind::kStructuralTag,
     R"({"structures":[{"begin":"[","schema":{"type":"null"},"end":"]"}],"at_least_one":true,
         "stop_after_first":true})",
     {"[null]", "so: [null]"},
     {"", "so", "[null] ", "[null][null]"}},
};

TEST(GrammarTextTest, AcceptsExactlyTheLanguage) {
  for (const TextCase& test : kCases) {
    const Grammar grammar = CompileOrFail(test.kind, test.source);
    ASSERT_NE(grammar, nullptr);
    for (const std::string& text : test.valid) {
      EXPECT_TRUE(Accepts(grammar, text)) << test.source << " should accept " << text;
    }
    for (const std::string& text : test.invalid) {
      EXPECT_FALSE(Accepts(grammar, text)) << test.source << " should refuse " << text;
    }
  }
}

TEST(GrammarTextTest, CountsWithoutUnrolling) {
  const Grammar grammar =
      CompileOrFail(Kind::kBnf, "root ::= pair{3,100000}\npair ::= [a-z] pair? \";\"");
  std::string text;
  for (int i = 0; i < 2; ++i) text += "a;";
  EXPECT_FALSE(Accepts(grammar, text));
  for (int i = 0; i < 5000; ++i) text += "b;";
  EXPECT_TRUE(Accepts(grammar, text));
  EXPECT_LT(grammar->bytes(), size_t{1} << 20);
}

TEST(GrammarTextTest, RefusalsSayWhatAndWhere) {
  const std::tuple<Kind, std::string, std::string> cases[] = {
      {Kind::kRegex, "(a", "'(' without its ')'"},
      {Kind::kRegex, "a**", "nothing to repeat"},
      {Kind::kRegex, "(?!x)a", "lookahead"},
      {Kind::kRegex, R"((a)\1)", "back-references"},
      {Kind::kRegex, "[z-a]", "out of order"},
      {Kind::kRegex, "[]", "nothing matches"},
      {Kind::kBnf, "root ::= a", "\"a\" is used but not defined"},
      {Kind::kBnf, "start ::= \"a\"", "no rule \"root\""},
      {Kind::kBnf, "root ::= root \"a\" | \"b\"", "left-recursive"},
      {Kind::kBnf, "root ::= a \"x\"\na ::= b\nb ::= c? a | \"y\"\nc ::= \"z\"", "left-recursive"},
      {Kind::kBnf, "root ::= \"a\" root", "never comes to an end"},
      {Kind::kBnf, "root ::= \"a", "line 1, column"},
      {Kind::kBnf, "root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {Kind::kBnf, "root ::= (\"a\"?){100000}", "may be empty"},
      {Kind::kBnf, "root ::= %json{\"type\":\"x\"}", "#/type"},
      {Kind::kBnf, "root ::= %json{\"type\"", "without its last brace"},
      {Kind::kBnf, "root ::= %until\"\"", "not empty"},
      {Kind::kBnf, "root ::= \"\\ud800\"", "half of a surrogate pair"},
      {Kind::kBnf, "root ::= %grammar{\"lark\":\"x\"}", "wants one of regex"},
      {Kind::kBnf, "root ::= %grammar{\"regex\":\"(\"}", "'(' without its ')'"},
      {Kind::kChoice, "[]", "one string or more"},
      {Kind::kChoice, "[1]", "must be a string"},
      {Kind::kStructuralTag, R"({"structures":[{"begin":"a","schema":true}],"triggers":["b"]})",
       "trigger"},
      {Kind::kStructuralTag, R"({"structures":[{"begin":"a","schema":{"type":"x"}}]})", "#/type"},
  };
  for (const auto& [kind, source, part] : cases) {
    EXPECT_NE(ErrorOf(kind, source).find(part), std::string::npos)
        << source << ": " << ErrorOf(kind, source);
  }
}

TEST(GrammarTextTest, HostileGrammarsAreBounded) {
  GrammarOptions options;
  options.work_max = 300'000;
  std::string chain = "root ::= r0 r0\n";
  for (int i = 0; i < 200; ++i) {
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " r" +
             std::to_string(i + 1) + "\n";
  }
  chain += "r200 ::= \"a\"\n";
  for (const std::string& source :
       {chain, std::string("root ::= ((\"a\"*)*)*"), std::string("root ::= (\"a\"* \"b\"*){50}"),
        std::string("root ::= ([ab]* \"a\" [ab]{24})"), std::string(100'000, '('),
        "root ::= " + std::string(5000, '(') + "\"a\"" + std::string(5000, ')')}) {
    const Result<Grammar> grammar = CompiledGrammar::Compile({Kind::kBnf, source}, options);
    if (!grammar.ok()) continue;
    GrammarMatcher matcher(*grammar, nullptr, 0);
    matcher.AcceptText(std::string(200, 'a'));
  }
  // Ambiguous without end: the set of stacks stays bounded.
  const Grammar ambiguous =
      CompileOrFail(Kind::kBnf, "root ::= \"a\" root root | \"a\" root | \"a\"");
  GrammarMatcher matcher(ambiguous, nullptr, 0);
  EXPECT_GT(matcher.AcceptText(std::string(300, 'a')), 0U);
}

}  // namespace
}  // namespace deepinfer
