// Random output under masks always parses and satisfies its schema, judged by a validator of the
// test's own.
#include <algorithm>
#include <set>

#include "base/json.h"
#include "text/grammar/grammar_test_util.h"

namespace deepinfer {
namespace {

size_t LengthOf(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

const char* TypeOf(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "boolean";
    case Json::Kind::kNumber:
      return "number";
    case Json::Kind::kString:
      return "string";
    case Json::Kind::kArray:
      return "array";
    default:
      return "object";
  }
}

bool Valid(const Json& schema, const Json& value);

bool ValidObject(const Json& schema, const Json& value) {
  const Json* properties = schema.Find("properties");
  const Json* rest = schema.Find("additionalProperties");
  for (const auto& [key, member] : value.members()) {
    const Json* known = properties != nullptr ? properties->Find(key) : nullptr;
    const Json* rule = known != nullptr ? known : rest;
    if (rule != nullptr && !Valid(*rule, member)) return false;
  }
  if (const Json* required = schema.Find("required"); required != nullptr) {
    for (const Json& key : required->items()) {
      if (value.Find(key.string()) == nullptr) return false;
    }
  }
  const auto count = static_cast<int64_t>(value.members().size());
  return count >= *schema.GetInt("minProperties", 0) &&
         count <= *schema.GetInt("maxProperties", 1000);
}

// The keywords that kSchemas use.
bool Valid(const Json& schema, const Json& value) {
  if (schema.is_bool()) return *schema.AsBool();
  const std::string type = TypeOf(value);
  if (const Json* wanted = schema.Find("type"); wanted != nullptr) {
    const bool integer =
        type == "number" && value.string().find_first_of(".eE") == std::string::npos;
    if (wanted->string() != type && !(wanted->string() == "integer" && integer)) return false;
  }
  if (const Json* choices = schema.Find("enum"); choices != nullptr) {
    if (std::find(choices->items().begin(), choices->items().end(), value) ==
        choices->items().end()) {
      return false;
    }
  }
  if (const Json* parts = schema.Find("anyOf"); parts != nullptr) {
    if (std::none_of(parts->items().begin(), parts->items().end(),
                     [&](const Json& part) { return Valid(part, value); })) {
      return false;
    }
  }
  if (type == "string") {
    const auto length = static_cast<int64_t>(LengthOf(value.string()));
    if (length < *schema.GetInt("minLength", 0) || length > *schema.GetInt("maxLength", 1 << 20)) {
      return false;
    }
  }
  if (type == "number") {
    const Result<double> number = value.AsDouble();  // too large for one: no limit was given
    const bool limited = schema.Find("minimum") != nullptr;
    if (limited && (!number.ok() || *number < *schema.GetDouble("minimum", 0) ||
                    *number > *schema.GetDouble("maximum", 0))) {
      return false;
    }
    const int64_t step = *schema.GetInt("multipleOf", 1);
    int64_t rest = 0;  // of any size of number
    for (const char c : value.string()) {
      if (c != '-') rest = (rest * 10 + (c - '0')) % step;
    }
    if (step > 1 && rest != 0) return false;
  }
  if (type == "array") {
    const auto count = static_cast<int64_t>(value.items().size());
    if (count < *schema.GetInt("minItems", 0) || count > *schema.GetInt("maxItems", 1 << 20)) {
      return false;
    }
    const Json* items = schema.Find("items");
    for (const Json& item : value.items()) {
      if (items != nullptr && !Valid(*items, item)) return false;
    }
  }
  return type != "object" || ValidObject(schema, value);
}

constexpr const char* kSchemas[] = {
    R"({"type":"object","properties":{"name":{"type":"string","minLength":2,"maxLength":9},
        "age":{"type":"integer","minimum":-20,"maximum":130},"ok":{"type":"boolean"}},
        "required":["age","name"],"additionalProperties":false})",
    R"({"type":"object","properties":{"a":{"type":"integer"}},
        "additionalProperties":{"type":"null"},
        "minProperties":1,"maxProperties":3})",
    R"({"type":"array","items":{"anyOf":[{"type":"integer","multipleOf":3},{"type":"string",
        "maxLength":4},
        {"type":"array","maxItems":1,"items":{"type":"null"}}]},"minItems":2,"maxItems":5})",
    R"({"type":"number","minimum":0.25,"maximum":17.5})",
    R"({"enum":["name","value",[1,{"a":"b"}],null,{"x":[]},-12.5]})",
    R"({"type":"object","properties":{"value":{"type":"object","properties":{"n":{"enum":[1,2,33]}},
        "required":["n"],"additionalProperties":false}},"required":["value"],"maxProperties":1})",
};

TEST(GrammarGenerationTest, RandomWalksEndInValidDocuments) {
  const SmallVocabulary small(JsonWords());
  TestRng rng(99);
  for (const char* text : kSchemas) {
    const Grammar grammar = CompileOrFail(GrammarSource::Kind::kJsonSchema, text);
    const Result<Json> schema = Json::Parse(text);
    int finished = 0;
    for (int walk = 0; walk < 60; ++walk) {
      GrammarMatcher matcher(grammar, small.vocabulary, 0);
      std::string output;
      std::vector<uint64_t> mask(small.vocabulary->mask_words());
      for (int step = 0; step < 600 && !matcher.IsTerminated(); ++step) {
        ASSERT_TRUE(matcher.FillMask(mask)) << text << ": no way on after " << output;
        std::vector<TokenId> ids;
        for (TokenId id = 0; id <= small.stop; ++id) {
          if ((mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
        }
        // Mostly towards an end: closing tokens and the stop token first.
        TokenId id = ids[rng.Next() % ids.size()];
        if (step > 20 && rng.Next() % 2 == 0) {
          for (const TokenId other : ids) {
            if (other == small.stop || other == '"' || other == '}' || other == ']') id = other;
          }
        }
        ASSERT_TRUE(matcher.Accept(id));
        output += small.bytes[static_cast<size_t>(id)];
      }
      if (!matcher.IsTerminated()) continue;
      ++finished;
      const Result<Json> value = Json::Parse(output);
      ASSERT_TRUE(value.ok()) << output << ": " << value.status().message();
      EXPECT_TRUE(Valid(*schema, *value)) << text << " made " << output;
    }
    EXPECT_GT(finished, 30) << text;
  }
}

}  // namespace
}  // namespace deepinfer
