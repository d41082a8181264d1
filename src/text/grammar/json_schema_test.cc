// Which documents a compiled JSON Schema accepts, when checking and when generating.
#include "text/grammar/grammar_test_util.h"

namespace deepinfer {
namespace {

struct SchemaCase {
  std::string schema;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

void RunCase(const SchemaCase& test, const GrammarOptions& options) {
  const Grammar grammar = CompileOrFail(GrammarSource::Kind::kJsonSchema, test.schema, options);
  if (grammar == nullptr) return;
  for (const std::string& text : test.valid) {
    EXPECT_TRUE(Accepts(grammar, text)) << test.schema << " should accept " << text;
  }
  for (const std::string& text : test.invalid) {
    EXPECT_FALSE(Accepts(grammar, text)) << test.schema << " should refuse " << text;
  }
}

// Equal for both modes: plain spellings without space.
const SchemaCase kBoth[] = {
    {"true",
     {"null", "true", "-1.5e3", "\"x\"", "[1,[2]]", "{\"a\":{}}"},
     {"nul", "01", "[1", "{a:1}", "+1"}},
    {R"({"type":"integer"})",
     {"0", "-7", "123456789012345678901234567890"},
     {"1.5", "01", "\"1\"", "-"}},
    {R"({"type":["string","null"]})", {"null", "\"\""}, {"1", "true"}},
    {R"({"const":{"a":[1,"x"]}})",
     {R"({"a":[1,"x"]})"},
     {R"({"a":[1]})", R"({"a":[1,"x"],"b":1})", "{}"}},
    {R"({"enum":["a",1,null,true]})",
     {"\"a\"", "1", "null", "true"},
     {"\"b\"", "2", "false", "\"aa\""}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},
         "required":["a"],"additionalProperties":false})",
     {R"({"a":1})", R"({"b":"x","a":2})", R"({"a":2,"b":""})"},
     {"{}", R"({"b":"x"})", R"({"a":1,"c":1})", R"({"a":1,"a":2})", R"({"a":"1"})", R"({"a":1,})"}},
    {R"({"properties":{"a":{"type":"integer"}},"required":["b"]})",
     {R"({"b":1})", R"({"zz":[],"b":1,"a":3})", "12"},
     {R"({"a":1})", R"({"a":"x","b":1})"}},
    {R"({"type":"object","patternProperties":{"^n_":{"type":"integer"}},
        "additionalProperties":{"type":"string"}})",
     {R"({"n_a":1,"b":"x"})"},
     {R"({"n_a":"x"})", R"({"b":1})"}},
    {R"({"type":"object","propertyNames":{"maxLength":2}})",
     {R"({"ab":1})", "{}"},
     {R"({"abc":1})"}},
    {R"({"type":"object","minProperties":1,"maxProperties":2})",
     {R"({"a":1})", R"({"a":1,"b":2})"},
     {"{}", R"({"a":1,"b":2,"c":3})"}},
    {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1,2,3]"},
     {"[]", "[1,2,3,4]", "[\"x\"]"}},
    {R"({"type":"array","prefixItems":[{"type":"string"}],"items":false})",
     {"[]", "[\"a\"]"},
     {"[1]", "[\"a\",1]"}},
    {R"({"type":"array","contains":{"const":1},"minContains":2,"maxContains":2})",
     {"[1,1]", "[1,5,1]"},
     {"[1]", "[1,1,1]", "[]"}},
    {R"({"type":"string","minLength":2,"maxLength":3})",
     {"\"ab\"", "\"äöü\"", R"("\u00e4b")"},
     {"\"a\"", "\"abcd\""}},
    {R"({"type":"string","pattern":"^a+$","maxLength":3})",
     {"\"a\"", "\"aaa\""},
     {"\"aaaa\"", "\"b\"", "\"\""}},
    {R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\""}, {"\"ac\""}},
    {R"({"type":"string","format":"date"})",
     {"\"2024-02-29\""},
     {"\"2023-02-29\"", "\"2024-13-01\"", "\"x\""}},
    {R"({"type":"string","format":"ipv4"})", {"\"127.0.0.1\""}, {"\"256.0.0.1\"", "\"1.2.3\""}},
    {R"({"type":"string","format":"uuid"})",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"no\""}},
    {R"({"type":"integer","minimum":3,"maximum":120})",
     {"3", "9", "10", "99", "120"},
     {"2", "121", "1000", "-5"}},
    {R"({"type":"integer","minimum":-5,"exclusiveMaximum":5})",
     {"-5", "0", "4"},
     {"-6", "5", "55"}},
    {R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "70"}, {"1", "13"}},
    {R"({"type":"number","minimum":0.5,"maximum":1})",
     {"0.5", "0.75", "1", "1.0"},
     {"0.4", "1.01", "2", "-1"}},
    {R"({"type":"number","multipleOf":0.01})", {"1.25", "3", "0.01"}, {"0.001", "1.255"}},
    {R"({"anyOf":[{"type":"integer","minimum":10},{"type":"string"}]})",
     {"10", "\"\""},
     {"9", "null"}},
    {R"({"oneOf":[{"type":"integer"},{"minimum":2}]})", {"1", "2.5", "\"x\""}, {"3", "1.5"}},
    {R"({"allOf":[{"minLength":2},{"maxLength":4},{"type":"string"}]})",
     {"\"abc\""},
     {"\"a\"", "\"abcde\"", "1"}},
    {R"({"not":{"type":"integer"}})", {"\"a\"", "1.5", "null"}, {"3"}},
    {R"({"type":"object","properties":{"k":{"type":"integer"}},
        "if":{"properties":{"k":{"const":1}},"required":["k"]},
         "then":{"required":["x"]},"else":{"required":["y"]}})",
     {R"({"k":1,"x":0})", R"({"k":2,"y":0})", R"({"y":0})"},
     {R"({"k":1})", R"({"k":1,"y":0})", R"({"k":2,"x":0})"}},
    {R"({"dependentRequired":{"a":["b"]}})",
     {R"({"a":1,"b":2})", R"({"b":1})", "{}", "1"},
     {R"({"a":1})"}},
    {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},
        "next":{"$ref":"#/$defs/n"}},
         "required":["v"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
     {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})"},
     {R"({"v":1,"next":{}})", R"({"next":{"v":1}})"}},
    {R"({"properties":{"foo":{"type":"string"}},"unevaluatedProperties":false,"type":"object",
         "anyOf":[{"properties":{"bar":{"const":"b"}},"required":["bar"]},{"required":["foo"]}]})",
     {R"({"foo":"x","bar":"b"})", R"({"foo":"x"})"},
     {R"({"foo":"x","bar":"c"})", R"({"foo":"x","q":1})"}},
};

TEST(JsonSchemaTest, AcceptsExactlyWhatIsValid) {
  GrammarOptions compact;
  compact.whitespace = GrammarOptions::Whitespace::kCompact;
  for (const SchemaCase& test : kBoth) {
    RunCase(test, GrammarOptions::ForChecking());
    RunCase(test, {});
    RunCase(test, compact);
  }
}

TEST(JsonSchemaTest, CheckingTakesEverySpelling) {
  const SchemaCase cases[] = {
      {R"({"const":1})", {"1", "1.0", "1e0", "10e-1", " 1 ", "\n1\t\r\n"}, {"1.5", "1e1", "2"}},
      {R"({"type":"integer"})", {"1.0", "1e3", "12.50e1"}, {"1.5", "1e-1"}},
      {R"({"maximum":100})", {"1e2", "100.000", "-1e300"}, {"1.001e2", "1e400"}},
      {R"({"enum":["é"]})", {R"("é")", R"("\u00e9")", R"("\u00E9")"}, {R"("e")"}},
      {R"({"enum":["😀/"]})", {R"("😀/")", R"("\ud83d\uDE00\/")"}, {R"("\ud83d")", R"("\ude00/")"}},
      {R"({"properties":{"a\tb":{"type":"null"}}})",
       {"{ \"a\\tb\" : null }"},
       {R"({"a\u0009b":1})"}},
      {R"({"type":"array"})", {"[ 1 ,\n\t2 ]"}, {"[1 2]", "[,1]"}},
  };
  for (const SchemaCase& test : cases) RunCase(test, GrammarOptions::ForChecking());
}

TEST(JsonSchemaTest, FormatsFollowTheDialectWhenChecking) {
  const std::string format = R"("type":"string","format":"ipv4"})";
  const std::string named =
      R"({"$schema":"https://json-schema.org/draft/2020-12/schema",)" + format;
  RunCase({named, {"\"x\""}, {}}, GrammarOptions::ForChecking());
  RunCase({"{" + format, {"\"1.2.3.4\""}, {"\"x\""}}, GrammarOptions::ForChecking());
  RunCase({named, {"\"1.2.3.4\""}, {"\"x\""}}, {});
}

TEST(JsonSchemaTest, RefusalsNameKeywordAndPlace) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"properties":{"a":{"type":"array","uniqueItems":true}}})", "#/properties/a/uniqueItems"},
      {R"({"items":{"$ref":"https://example.com/x"}})", "#/items/$ref"},
      {R"({"type":"string","pattern":"(?=a)b"})", "#/pattern"},
      {R"({"type":"strnig"})", "#/type"},
      {R"({"$ref":"#/$defs/none"})", "#/$defs/none"},
      {R"({"not":{"additionalProperties":false}})", "#/not/additionalProperties"},
      {R"({"properties":{"a":{"$dynamicRef":"#x"}}})", "#/properties/a/$dynamicRef"},
      {R"({"minLength":-1})", "#/minLength"},
  };
  for (const auto& [schema, pointer] : cases) {
    const Result<Grammar> grammar =
        CompiledGrammar::Compile({GrammarSource::Kind::kJsonSchema, schema});
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalid);
    EXPECT_NE(grammar.status().message().find(pointer), std::string::npos)
        << schema << ": " << grammar.status().message();
  }
}

TEST(JsonSchemaTest, RefusesWhatNothingSatisfies) {
  for (
      const char* schema :
      {"false", R"({"not":{"$ref":"#"}})", R"({"type":"string","minLength":3,"maxLength":2})",
       R"({"type":"integer","minimum":1.1,"maximum":1.9})",
       R"({"$defs":{"a":{"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"required":["x"]}},
            "$ref":"#/$defs/a"})",
       R"({"allOf":[{"type":"string"},{"type":"object"}]})"}) {
    EXPECT_NE(ErrorOf(GrammarSource::Kind::kJsonSchema, schema).find("nothing satisfies"),
              std::string::npos)
        << schema;
  }
}

// Whatever it says, a schema is compiled or refused within its budget.
TEST(JsonSchemaTest, CountsOfAnySizeAreTaken) {
  const Grammar grammar = CompileOrFail(
      GrammarSource::Kind::kJsonSchema,
      R"({"type":"array","maxItems":10000000000000000000,"minItems":1e0,
          "items":{"maxLength":2.0}})");
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(Accepts(grammar, R"([1,"ab"])"));
  EXPECT_FALSE(Accepts(grammar, "[]"));
  EXPECT_FALSE(Accepts(grammar, R"(["abc"])"));
  EXPECT_NE(ErrorOf(GrammarSource::Kind::kJsonSchema, R"({"maxItems":-1})"), "");
  EXPECT_NE(ErrorOf(GrammarSource::Kind::kJsonSchema, R"({"maxItems":1.5})"), "");
}

TEST(JsonSchemaTest, HostileSchemasAreBounded) {
  std::string deep = "true";
  for (int i = 0; i < 60; ++i) deep = R"({"anyOf":[)" + deep + "," + deep.substr(0, 40) + "]}";
  std::string any = R"({"allOf":[)";
  for (int i = 0; i < 40; ++i) {
    any += std::string(i == 0 ? "" : ",") + R"({"anyOf":[{"minLength":)" + std::to_string(i) +
           R"(},{"maximum":)" + std::to_string(i) + R"(},{"minItems":)" + std::to_string(i) + "}]}";
  }
  any += "]}";
  EXPECT_NE(ErrorOf(GrammarSource::Kind::kJsonSchema, any), "");
  EXPECT_NE(ErrorOf(GrammarSource::Kind::kJsonSchema, deep), "");
  for (const char* schema :
       {R"({"pattern":"(a{1000}){1000}"})", R"({"pattern":"((((a*)*)*)*)*"})",
        R"({"pattern":"((){1000000}){1000000}"})", R"({"pattern":"(a|b)*a(a|b){30}"})",
        R"({"$ref":"#"})", R"({"allOf":[{"$ref":"#"}]})", R"({"not":{"$ref":"#"}})",
        R"({"maxLength":1e308})", R"({"multipleOf":1e-300})", R"({"minimum":1e999999999999})"}) {
    GrammarOptions options;
    options.work_max = 200'000;
    (void)CompiledGrammar::Compile({GrammarSource::Kind::kJsonSchema, schema}, options);
  }
}

TEST(JsonSchemaTest, NestingIsLimited) {
  const Grammar grammar = CompileOrFail(GrammarSource::Kind::kJsonSchema, "true");
  GrammarMatcher matcher(grammar, nullptr, 0);
  const std::string deep(1000, '[');
  EXPECT_EQ(matcher.AcceptText(deep), 128U);
  EXPECT_NE(matcher.limit_reached(), nullptr);
}

}  // namespace
}  // namespace deepinfer
