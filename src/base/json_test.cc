#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/format.h"

namespace deepinfer {
namespace {

Json Parsed(std::string_view text) {
  Result<Json> json = Json::Parse(text);
  EXPECT_TRUE(json.ok()) << text << ": " << json.status().message();
  return json.ok() ? std::move(json).value() : Json();
}

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  Result<Json> json = Json::Parse(text, limits);
  EXPECT_FALSE(json.ok()) << text;
  return json.status().message();
}

TEST(Json, KeepsMemberOrderAndNumberText) {
  const std::string text = R"({"z":1,"a":[1.50,-0,1e2,18446744073709551616,-9223372036854775808],)"
                           R"("m":{"b":null,"a":true}})";
  EXPECT_EQ(Parsed(text).Dump(), text);
}

TEST(Json, ReadsScalarsAtTheRoot) {
  EXPECT_TRUE(Parsed(" null ").is_null());
  EXPECT_TRUE(Parsed("true").AsBool().value());
  EXPECT_EQ(Parsed("\"x\"").AsString().value(), "x");
  EXPECT_EQ(Parsed("-7").AsInt().value(), -7);
}

TEST(Json, IntegersAreExactAndRangeChecked) {
  EXPECT_EQ(Parsed("9223372036854775807").AsInt().value(), INT64_MAX);
  EXPECT_EQ(Parsed("-9223372036854775808").AsInt().value(), INT64_MIN);
  EXPECT_EQ(Parsed("9007199254740993").AsInt().value(), 9007199254740993);
  EXPECT_EQ(Parsed("3.0").AsInt().value(), 3);
  EXPECT_EQ(Parsed("2e3").AsInt().value(), 2000);
  EXPECT_EQ(Parsed("-0").AsInt().value(), 0);
  for (const char* text : {"9223372036854775808", "3.5", "1e300", "\"3\"", "true", "null", "[3]"}) {
    EXPECT_FALSE(Parsed(text).AsInt().ok()) << text;
  }
}

TEST(Json, DoublesAreNearestAndFinite) {
  EXPECT_EQ(Parsed("0.1").AsDouble().value(), 0.1);
  EXPECT_EQ(Parsed("5").AsDouble().value(), 5.0);
  EXPECT_TRUE(std::signbit(Parsed("-0").AsDouble().value()));
  EXPECT_EQ(Parsed("5e-324").AsDouble().value(), 5e-324);
  EXPECT_EQ(Parsed("1e-400").AsDouble().value(), 0.0);
  EXPECT_FALSE(Json::Parse("1e400").ok());
  const std::string digits(400, '9');  // an integer literal no double holds
  Result<Json> big = Json::Parse(digits);
  EXPECT_TRUE(!big.ok() || !big.value().AsDouble().ok());
}

TEST(Json, ErrorsNameThePlace) {
  EXPECT_NE(ErrorOf("{\"a\": 1,\n  \"b\": }").find("line 2, column 8"), std::string::npos);
  EXPECT_NE(ErrorOf("").find("empty"), std::string::npos);
  const std::string twice = ErrorOf("{\"a\":1,\n\"a\":2}");
  EXPECT_NE(twice.find("line 2, column 6"), std::string::npos) << twice;
  EXPECT_NE(twice.find("'a' twice"), std::string::npos) << twice;
}

TEST(Json, RejectsWhatIsNoJson) {
  for (const char* text :
       {"{",      "[1,]",     "{\"a\":1,}",  "01",           "+1",      ".5",   "1.",
        "NaN",    "Infinity", "nul",         "'a'",          "1 2",     "[1]x", "{a:1}",
        "\"\t\"", "\"\\x\"",  "\"\\ud800\"", "\"\\udc00x\"", "// c\n1", "\"abc"}) {
    EXPECT_FALSE(Json::Parse(text).ok()) << text;
  }
}

TEST(Json, RejectsInvalidUtf8) {
  for (const char* bytes : {"\"\x80\"", "\"\xC0\xAF\"", "\"\xE0\x80\x80\"", "\"\xED\xA0\x80\"",
                            "\"\xF4\x90\x80\x80\"", "\"\xE2\x82\"", "{\"\xFF\":1}"}) {
    const std::string error = ErrorOf(bytes);
    std::string quoted;
    AppendJsonString(&quoted, error);  // the message itself is clean UTF-8
    EXPECT_EQ(quoted.find("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"), std::string::npos);
    EXPECT_TRUE(Json::Parse(quoted).ok());
  }
}

TEST(Json, DecodesEscapes) {
  EXPECT_EQ(Parsed(R"("\u00e9\ud83d\ude00\n\/\u0000")").string(),
            std::string("\xC3\xA9\xF0\x9F\x98\x80\n/\0", 9));
}

TEST(Json, HoldsItsLimits) {
  EXPECT_NE(ErrorOf("[1,2,3]", {.bytes_max = 6}).find("the limit is 6"), std::string::npos);
  EXPECT_TRUE(Json::Parse("[[1]]", {.depth_max = 2}).ok());
  EXPECT_NE(ErrorOf("[[[1]]]", {.depth_max = 2}).find("limit of 2"), std::string::npos);
  EXPECT_TRUE(Json::Parse("[1,2]", {.values_max = 3}).ok());
  EXPECT_NE(ErrorOf("[1,2,3]", {.values_max = 3}).find("limit of 3"), std::string::npos);
  const std::string deep(100000, '[');
  EXPECT_NE(ErrorOf(deep).find("128 levels"), std::string::npos);
}

TEST(Json, LongErrorsAreCut) {
  EXPECT_LT(ErrorOf("[" + std::string(1 << 20, 'x')).size(), 600u);
  const std::string key(1 << 16, 'k');
  EXPECT_LT(ErrorOf("{\"" + key + "\":1,\"" + key + "\":2}").size(), 600u);
}

TEST(Json, FindsMembersOfSmallAndLargeObjects) {
  for (int count : {0, 1, 15, 16, 17, 1000}) {
    Json built = Json::Object();
    for (int i = 0; i < count; ++i) built.Set(Format("key{}", i), Json::Int(i));
    const Json parsed = Parsed(built.Dump());
    for (const Json* json : {static_cast<const Json*>(&built), &parsed}) {
      for (int i = 0; i < count; ++i) {
        ASSERT_NE(json->Find(Format("key{}", i)), nullptr);
        EXPECT_EQ(json->Find(Format("key{}", i))->AsInt().value(), i);
      }
      EXPECT_EQ(json->Find("other"), nullptr);
    }
    EXPECT_EQ(built, parsed);
  }
}

TEST(Json, LargeObjectsRefuseDuplicates) {
  std::string text = "{";
  for (int i = 0; i < 500; ++i) text += Format("\"k{}\":0,", i);
  EXPECT_TRUE(Json::Parse(text + "\"new\":0}").ok());
  EXPECT_NE(ErrorOf(text + "\"k77\":0}").find("'k77' twice"), std::string::npos);
}

TEST(Json, SetReplacesAndKeepsTheOrder) {
  Json json = Json::Object();
  json.Set("b", Json::Int(1));
  json.Set("a", Json::Int(2));
  json.Set("b", Json::String("x"));
  EXPECT_EQ(json.Dump(), R"({"b":"x","a":2})");
}

TEST(Json, CopiesAreIndependent) {
  Json json = Parsed(R"({"a":[1],"b":{"c":1}})");
  Json copy = json;
  copy.Set("a", Json::Int(0));
  copy.Set("d", Json());
  EXPECT_EQ(json.Dump(), R"({"a":[1],"b":{"c":1}})");
  EXPECT_EQ(copy.Dump(), R"({"a":0,"b":{"c":1},"d":null})");
  copy = std::move(json);
  EXPECT_EQ(copy.Dump(), R"({"a":[1],"b":{"c":1}})");
}

TEST(Json, GettersFallBackOnlyOnAbsence) {
  const Json json = Parsed(R"({"i":3,"d":0.5,"s":"x","b":true,"n":null})");
  EXPECT_EQ(json.GetInt("i", 1).value(), 3);
  EXPECT_EQ(json.GetInt("n", 1).value(), 1);
  EXPECT_EQ(json.GetDouble("missing", 2.5).value(), 2.5);
  EXPECT_EQ(json.GetString("s", "").value(), "x");
  EXPECT_TRUE(json.GetBool("b", false).value());
  const Result<int64_t> wrong = json.GetInt("s", 1);
  EXPECT_EQ(wrong.status().param(), "s");
  EXPECT_EQ(wrong.status().message(), "'s': expected an integer, found a string");
  EXPECT_FALSE(Parsed("[]").GetInt("i", 1).ok());
}

TEST(Json, UncheckedViewsAreEmptyForOtherKinds) {
  const Json json = Json::Int(12);
  EXPECT_EQ(json.string(), "12");
  EXPECT_TRUE(json.items().empty());
  EXPECT_TRUE(json.members().empty());
  EXPECT_EQ(json.Find("x"), nullptr);
}

TEST(Json, WritesDoublesShortest) {
  const std::pair<double, const char*> cases[] = {{0.1, "0.1"},
                                                  {3.0, "3.0"},
                                                  {-0.0, "-0.0"},
                                                  {1e16, "1e+16"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e-5, "1e-05"},
                                                  {0.0001, "0.0001"},
                                                  {1.5e300, "1.5e+300"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(Json::Double(value).Dump(), text);
  EXPECT_TRUE(Json::Double(std::numeric_limits<double>::infinity()).is_null());
  EXPECT_TRUE(Json::Double(std::nan("")).is_null());
}

TEST(Json, WritesStrings) {
  std::string out;
  AppendJsonString(&out, std::string("a\"\\\n\x01\x7F\xC3\xA9", 8));
  EXPECT_EQ(out, "\"a\\\"\\\\\\n\\u0001\x7F\xC3\xA9\"");
  out.clear();
  AppendJsonString(&out, "x\xC3\xE2\x82y\xF0\x9F\x98");
  EXPECT_EQ(out, "\"x\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDy\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

TEST(Json, IndentsAsPythonDoes) {
  EXPECT_EQ(Parsed(R"({"a":[1,{}],"b":[]})").Dump(2),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(Json, ComparesByValue) {
  EXPECT_EQ(Parsed(R"({"a":1,"b":2.0})"), Parsed(R"({"b":2,"a":1})"));
  EXPECT_FALSE(Parsed("9007199254740993") == Parsed("9007199254740992"));
  EXPECT_FALSE(Parsed("[1]") == Parsed("[1,1]"));
  EXPECT_FALSE(Parsed("0") == Parsed("false"));
}

}  // namespace
}  // namespace deepinfer
