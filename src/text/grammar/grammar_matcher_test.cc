// Masks against the definition of a mask, and moving back and forth; random generation.
#include "text/grammar/grammar_matcher.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "text/grammar/grammar_test_util.h"
#include "text/grammar/mask_cache.h"

namespace deepinfer {
namespace {

using Kind = GrammarSource::Kind;

const GrammarSource kSources[] = {
    {Kind::kJsonSchema, "true"},
    {Kind::kJsonObject, ""},
    {Kind::kJsonSchema,
     R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
        "age":{"type":"integer",
         "minimum":0,"maximum":150},"value":{"enum":["string","ing","é"]}},"required":["name",
        "age"],
         "additionalProperties":false})"},
    {Kind::kJsonSchema,
     R"({"type":"string","pattern":"^[a-z]{2,}( [a-z]+)*$","maxLength":100000})"},
    {Kind::kJsonSchema, R"({"type":"string","minLength":3,"maxLength":5})"},
    {Kind::kJsonSchema, R"({"type":"string","pattern":"^[a-z ]*$","maxLength":7})"},
    {Kind::kJsonSchema, R"({"type":"string","pattern":"[0-9a-f]+","minLength":5,"maxLength":5})"},
    {Kind::kJsonSchema, R"({"type":"string","pattern":"^(a*|b.*)c$","minLength":4})"},
    {Kind::kJsonSchema,
     R"({"type":"array","items":{"anyOf":[{"type":"integer","minimum":7},{"type":"number"}]}})"},
    {Kind::kJsonSchema,
     R"({"type":"object","patternProperties":{"^[a-z]+$":{"type":"integer","multipleOf":3}},
        "additionalProperties":false,"minProperties":2})"},
    {Kind::kJsonSchema,
     R"({"type":"array","items":{"anyOf":[{"type":"number","minimum":0.5,"maximum":2},
        {"type":"null"},
         {"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],
        "maxProperties":2}]},
         "minItems":1,"maxItems":4})"},
    {Kind::kJsonSchema,
     R"({"type":"object","propertyNames":{"pattern":"^[an]"},"minProperties":1})"},
    {Kind::kJsonSchema, R"({"type":"string","format":"date-time"})"},
    {Kind::kJsonSchema, R"({"type":"array","contains":{"const":12},"maxContains":1,"maxItems":3})"},
    {Kind::kRegex, R"([a-b]{2,9}(é|中)?\d*)"},
    {Kind::kChoice, R"(["name","named","value"])"},
    {Kind::kBnf, "root ::= (\"(\" root \")\" | [a-z ])*"},
    {Kind::kBnf, "root ::= \"{\\\"\" [^\"]* \"\\\"}\""},
    {Kind::kBnf, "root ::= (\"{\" %until\"st\" \"st\" | %json{\"type\":\"integer\"} \";\")*"},
    {Kind::kStructuralTag,
     R"({"structures":[{"begin":"a the","schema":{"type":"integer"},"end":"}"}],
        "triggers":["a th"]})"},
};

bool Bit(const std::vector<uint64_t>& mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

std::vector<TokenId> Allowed(const std::vector<uint64_t>& mask, size_t size) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < static_cast<TokenId>(size); ++id) {
    if (Bit(mask, id)) ids.push_back(id);
  }
  return ids;
}

class GrammarMatcherTest : public testing::TestWithParam<size_t> {
 protected:
  GrammarMatcherTest() : small_(JsonWords()) {
    grammar_ = CompileOrFail(kSources[GetParam()].kind, kSources[GetParam()].text);
  }
  std::vector<uint64_t> MaskOf(GrammarMatcher* matcher) {
    std::vector<uint64_t> mask(small_.vocabulary->mask_words());
    any_ = matcher->FillMask(mask);
    return mask;
  }
  SmallVocabulary small_;
  Grammar grammar_;
  bool any_ = false;
  std::vector<TokenId> taken_;
};

// A mask holds exactly the tokens that Accept takes; what may follow is never a dead end.
TEST_P(GrammarMatcherTest, MasksAreWhatIsAccepted) {
  TestRng rng(17 + GetParam());
  for (int walk = 0; walk < 12; ++walk) {
    GrammarMatcher matcher(grammar_, small_.vocabulary, 4);
    for (int step = 0; step < 40; ++step) {
      const std::vector<uint64_t> mask = MaskOf(&matcher);
      ASSERT_TRUE(any_) << "dead after " << step;
      for (TokenId id = 0; id < static_cast<TokenId>(small_.bytes.size()); ++id) {
        ASSERT_EQ(Bit(mask, id), matcher.Allows(id))
            << "token \"" << small_.bytes[static_cast<size_t>(id)] << "\" after " << step;
      }
      const std::vector<TokenId> ids = Allowed(mask, small_.bytes.size());
      const TokenId id = ids[rng.Next() % ids.size()];
      ASSERT_TRUE(matcher.Accept(id));
      if (id == small_.stop) break;
    }
  }
}

TEST_P(GrammarMatcherTest, RollbackRestoresTheMask) {
  TestRng rng(5 + GetParam());
  GrammarMatcher matcher(grammar_, small_.vocabulary, 8);
  std::vector<std::vector<uint64_t>> masks;
  for (int step = 0; step < 300 && !matcher.IsTerminated(); ++step) {
    masks.push_back(MaskOf(&matcher));
    const std::vector<TokenId> ids = Allowed(masks.back(), small_.bytes.size());
    ASSERT_FALSE(ids.empty());
    ASSERT_TRUE(matcher.Accept(ids[rng.Next() % ids.size()]));
    if (rng.Next() % 3 != 0) continue;
    const int back = static_cast<int>(rng.Next() % (std::min<size_t>(masks.size(), 8) + 1));
    if (!matcher.Rollback(back)) continue;  // fewer are kept after a rollback
    for (int i = 0; i < back; ++i) {
      if (i + 1 == back) {
        ASSERT_EQ(MaskOf(&matcher), masks.back());
      }
      masks.pop_back();
    }
  }
  EXPECT_FALSE(matcher.Rollback(1000));
  EXPECT_FALSE(matcher.Rollback(-1));
}

TEST_P(GrammarMatcherTest, DraftMasksAreThoseOfEachPosition) {
  TestRng rng(23 + GetParam());
  GrammarMatcher matcher(grammar_, small_.vocabulary, 8);
  const size_t words = small_.vocabulary->mask_words();
  for (int step = 0; step < 30; ++step) {
    // A draft that keeps to the grammar for some tokens.
    GrammarMatcher ahead(grammar_, small_.vocabulary, 0);
    for (const TokenId id : taken_) ASSERT_TRUE(ahead.Accept(id));
    std::vector<TokenId> draft;
    std::vector<std::vector<uint64_t>> expected = {MaskOf(&ahead)};
    for (int i = 0; i < 4; ++i) {
      const std::vector<TokenId> ids = Allowed(expected.back(), small_.bytes.size());
      const bool wrong = ids.empty() || rng.Next() % 5 == 0;
      draft.push_back(wrong ? 0 : ids[rng.Next() % ids.size()]);
      if (!ahead.Accept(draft.back())) break;
      expected.push_back(MaskOf(&ahead));
    }
    std::vector<uint64_t> masks((draft.size() + 1) * words);
    ASSERT_EQ(matcher.FillDraftMasks(draft, masks), expected.size());
    for (size_t row = 0; row < expected.size(); ++row) {
      EXPECT_TRUE(std::equal(expected[row].begin(), expected[row].end(),
                             masks.begin() + static_cast<std::ptrdiff_t>(row * words)));
    }
    ASSERT_EQ(MaskOf(&matcher), expected[0]);
    const std::vector<TokenId> ids = Allowed(expected[0], small_.bytes.size());
    const TokenId next = ids[rng.Next() % ids.size()];
    if (next == small_.stop) break;
    ASSERT_TRUE(matcher.Accept(next));
    taken_.push_back(next);
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, GrammarMatcherTest,
                         testing::Range(size_t{0}, std::size(kSources)));

TEST(GrammarForcedTest, BytesAndTokensWithoutAChoice) {
  SmallVocabulary small(JsonWords());
  GrammarOptions compact;
  compact.whitespace = GrammarOptions::Whitespace::kCompact;
  const Grammar grammar =
      CompileOrFail(Kind::kJsonSchema,
                    R"({"type":"object","properties":{"name":{"const":"x"}},"required":["name"],
        "additionalProperties":false})",
                    compact);
  GrammarMatcher matcher(grammar, small.vocabulary, 4);
  EXPECT_EQ(matcher.ForcedBytes(), R"({"name":"x"})");
  EXPECT_EQ(matcher.ForcedBytes(3), R"({"n)");
  EXPECT_EQ(matcher.ForcedToken(), -1);  // { or {"
  EXPECT_EQ(matcher.AcceptText(R"({"name":"x")"), 11U);
  EXPECT_EQ(matcher.ForcedToken(), '}');
  ASSERT_TRUE(matcher.Accept('}'));
  EXPECT_TRUE(matcher.IsComplete());
  EXPECT_EQ(matcher.ForcedToken(), small.stop);
  ASSERT_TRUE(matcher.Accept(small.stop));
  EXPECT_TRUE(matcher.IsTerminated());
  std::vector<uint64_t> mask(small.vocabulary->mask_words());
  EXPECT_FALSE(matcher.FillMask(mask));
  EXPECT_FALSE(matcher.Accept('}'));
  ASSERT_TRUE(matcher.Rollback(1));
  EXPECT_FALSE(matcher.IsTerminated());
}

TEST(GrammarCacheTest, StaysBelowItsLimit) {
  std::vector<std::string> bytes;
  for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
  for (int i = 0; i < 3000; ++i) bytes.push_back("w" + std::to_string(i) + "\"");
  GrammarVocabulary::Options options;
  options.mask_cache_bytes_max = 4000;
  const auto vocabulary = *GrammarVocabulary::Create(bytes, options);
  const Grammar grammar = CompileOrFail(Kind::kJsonSchema, R"({"type":"string","maxLength":900})");
  GrammarMatcher matcher(grammar, vocabulary, 0);
  std::vector<uint64_t> mask(vocabulary->mask_words());
  ASSERT_TRUE(matcher.Accept('"'));
  for (int i = 0; i < 900; ++i) {
    ASSERT_TRUE(matcher.FillMask(mask));
    ASSERT_TRUE(matcher.Accept('w'));
    ASSERT_LE(vocabulary->cache().stats().bytes, options.mask_cache_bytes_max);
  }
  EXPECT_FALSE(matcher.Accept('w'));
  EXPECT_TRUE(matcher.Accept('"'));
  EXPECT_TRUE(matcher.IsComplete());
}

// More keys than bits in a word, and outputs long enough that old frames are thrown away.
TEST(GrammarLongOutputTest, WideObjectsAndRollbackSurviveCompaction) {
  const SmallVocabulary small(JsonWords());
  std::string properties;
  std::string required;
  std::string document;
  for (int i = 0; i < 150; ++i) {
    const std::string key = "\"key" + std::to_string(i) + "\"";
    properties += (i == 0 ? "" : ",") + key + R"(:{"type":"integer"})";
    required += (i == 0 ? "" : ",") + key;
    document = key + ":" + std::to_string(i) + (i == 0 ? "" : ",") + document;
  }
  document = "{" + document + "}";
  const Grammar grammar =
      CompileOrFail(Kind::kJsonSchema,
                    R"({"type":"array","items":{"type":"object","properties":{)" + properties +
                        R"(},"required":[)" + required + R"(],"additionalProperties":false}})");
  EXPECT_TRUE(Accepts(grammar, "[" + document + "]"));
  EXPECT_FALSE(Accepts(grammar, "[{}]"));
  EXPECT_FALSE(Accepts(grammar, "[{\"key7\":1," + document.substr(1) + "]"));
  std::string missing = document;
  missing.replace(missing.find("\"key70\":70,"), 11, "");
  EXPECT_FALSE(Accepts(grammar, "[" + missing + "]"));

  GrammarMatcher matcher(grammar, small.vocabulary, 16);
  std::string text = "[";
  for (int i = 0; i < 25; ++i) text += (i == 0 ? "" : ",") + document;
  text += "]";
  std::vector<uint64_t> before(small.vocabulary->mask_words());
  std::vector<uint64_t> after(small.vocabulary->mask_words());
  for (size_t i = 0; i < text.size(); ++i) {
    ASSERT_TRUE(matcher.Accept(static_cast<TokenId>(text[i]))) << i;
    if (i % 997 != 0 || i < 16) continue;
    ASSERT_TRUE(matcher.FillMask(before));
    ASSERT_TRUE(matcher.Rollback(12));
    for (size_t k = i - 11; k <= i; ++k) {
      ASSERT_TRUE(matcher.Accept(static_cast<TokenId>(text[k])));
    }
    ASSERT_TRUE(matcher.FillMask(after));
    ASSERT_EQ(before, after) << i;
  }
  EXPECT_TRUE(matcher.IsComplete());
}

TEST(GrammarVocabularyTest, RefusesAStopTokenOutsideIt) {
  GrammarVocabulary::Options options;
  options.stop_ids = {3};
  EXPECT_FALSE(GrammarVocabulary::Create(std::vector<std::string>{"a", "b"}, options).ok());
}

// No token of the vocabulary is long: each still has to fit.
TEST(GrammarMatcherTest, ShortLimitsHoldInAVocabularyOfShortTokens) {
  const SmallVocabulary small({"four", " adventurous", "\"four"});
  const Grammar grammar =
      CompileOrFail(GrammarSource::Kind::kJsonSchema, R"({"type":"string","maxLength":5})");
  GrammarMatcher matcher(grammar, small.vocabulary, 0);
  std::vector<uint64_t> mask(small.vocabulary->mask_words());
  ASSERT_TRUE(matcher.Accept('"'));
  for (int length = 0; length <= 5; ++length) {
    ASSERT_TRUE(matcher.FillMask(mask));
    for (TokenId id = 0; id <= small.stop; ++id) {
      const bool shown = (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
      EXPECT_EQ(shown, matcher.Allows(id)) << small.bytes[static_cast<size_t>(id)] << length;
    }
    if (length < 5) {
      ASSERT_TRUE(matcher.Accept('x'));
    }
  }
}

}  // namespace
}  // namespace deepinfer
