// Ids, pieces, normal forms and decoded text against the Hugging Face package, by hash
// (tools/tokenizer_reference.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/reference_data.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

std::string ReferenceText() {
  return MixedText(ReadReferenceJson("mix.json"), kReferenceTextSeed, kReferenceTextBytes);
}

class TokenizerReference : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerReference, GivesTheIdsAndTextOfThePackage) {
  const Json reference = ReadReferenceJson("reference.json");
  const Json& expected = *reference.Find("models")->Find(GetParam());
  auto created = Tokenizer::Create(ReadReferenceSpec(GetParam()));
  ASSERT_TRUE(created.ok()) << created.status().message();
  const Tokenizer& tokenizer = **created;
  const std::string text = ReferenceText();
  TextsHash text_hash;
  text_hash.Add(text);
  ASSERT_EQ(text_hash.Hex(), reference.Find("text")->string());

  const std::vector<TokenId> ids = tokenizer.Encode(text, {.add_special_tokens = false});
  EXPECT_EQ(std::to_string(ids.size()), expected.Find("count")->string());
  EXPECT_EQ(HashOfIds(ids), expected.Find("hash")->string());
  std::vector<TokenId> line_ids;
  TextsHash decoded_lines;
  for (const std::string_view line : SplitText(text, "\n")) {
    const std::vector<TokenId> some = tokenizer.Encode(line, {.add_special_tokens = false});
    line_ids.insert(line_ids.end(), some.begin(), some.end());
    if (line.find("<0x") == line.npos) decoded_lines.Add(tokenizer.Decode(some, true));
  }
  EXPECT_EQ(std::to_string(line_ids.size()), expected.Find("line_count")->string());
  EXPECT_EQ(HashOfIds(line_ids), expected.Find("line_hash")->string());

  EXPECT_EQ(decoded_lines.Hex(), expected.Find("decode_lines")->string());
  if (const Json* whole = expected.Find("decode"); whole != nullptr) {
    TextsHash hash;
    hash.Add(tokenizer.Decode(ids, false));
    EXPECT_EQ(hash.Hex(), whole->string());
  }
  if (const Json* random = expected.Find("decode_random"); random != nullptr) {
    ReferenceRng rng(9);
    std::vector<TokenId> random_ids(20000);
    for (TokenId& id : random_ids) {
      id = static_cast<TokenId>(rng.Below(static_cast<uint64_t>(tokenizer.vocab_size()) + 5));
    }
    TextsHash hash;
    hash.Add(tokenizer.Decode(random_ids, true));
    EXPECT_EQ(hash.Hex(), random->string());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerReference,
                         ::testing::Values("smollm2", "qwen3", "deepseek_v3", "gpt2_small",
                                           "llama3_small", "unigram_small", "unigram_bytes",
                                           "fallback_small", "words_small"),
                         [](const auto& param) { return std::string(param.param); });

TEST(TokenizerReference, MergingByScoreGivesTheIdsOfTheMergeList) {
  const Json reference = ReadReferenceJson("reference.json");
  const Json& expected = *reference.Find("models")->Find("fallback_small");
  TokenizerSpec spec = ReadReferenceSpec("fallback_small");
  spec.merges.clear();
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    spec.scores.push_back(-static_cast<float>(id));
  }
  auto created = Tokenizer::Create(std::move(spec));
  ASSERT_TRUE(created.ok()) << created.status().message();
  const std::vector<TokenId> ids =
      (*created)->Encode(ReferenceText(), {.add_special_tokens = false});
  EXPECT_EQ(HashOfIds(ids), expected.Find("hash")->string());
}

void ExpectPieces(const Json& expected, const std::vector<std::string_view>& texts) {
  const Json& steps = *expected.Find("pre_tokenizer");
  SCOPED_TRACE(steps.Dump());
  auto compiled = PreTokenizer::Compile(PreTokenizerStepsOf(steps));
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  PreTokenizer::Scratch scratch;
  TextsHash hash;
  int64_t count = 0;
  for (const std::string_view text : texts) {
    (*compiled)->Run(text, PreTokenizer::Place::kStart, &scratch, [&](std::string_view piece) {
      std::string level;
      if ((*compiled)->byte_level()) {
        AppendByteLevel(piece, &level);
        piece = level;
      }
      hash.Add(piece);
      ++count;
    });
  }
  EXPECT_EQ(count, expected.GetInt("count", 0).value());
  EXPECT_EQ(hash.Hex(), expected.Find("hash")->string());
}

TEST(TokenizerReference, CutsPiecesAsThePackage) {
  const Json reference = ReadReferenceJson("reference.json");
  const std::string text =
      MixedText(ReadReferenceJson("mix.json"), kReferenceSplitSeed, kReferenceSplitBytes);
  const std::vector<std::string_view> texts = SplitText(text, "\n\n");
  for (const Json& expected : reference.Find("splits")->items()) ExpectPieces(expected, texts);
}

TEST(TokenizerReference, RunsOtherPatternsAsThePackage) {
  const Json reference = ReadReferenceJson("reference.json");
  const Json mix = ReadReferenceJson("mix.json");
  std::vector<std::string_view> texts;
  for (const char* name : {"texts", "code", "data", "languages"}) {
    for (const Json& line : mix.Find(name)->items()) texts.push_back(line.string());
  }
  for (const Json& expected : reference.Find("regex_splits")->items()) {
    ExpectPieces(expected, texts);
  }
}

TEST(TokenizerReference, NormalizesAsThePackage) {
  const Json reference = ReadReferenceJson("reference.json");
  const std::string text =
      MixedText(ReadReferenceJson("mix.json"), kReferenceSplitSeed, kReferenceSplitBytes);
  for (const Json& expected : reference.Find("normalizers")->items()) {
    const Json& steps = *expected.Find("normalizer");
    SCOPED_TRACE(steps.Dump());
    auto normalizer = Normalizer::Compile(NormalizerStepsOf(steps));
    ASSERT_TRUE(normalizer.ok()) << normalizer.status().message();
    TextsHash hash;
    NormalizedText out, work;
    for (const std::string_view part : SplitText(text, "\n\n")) {
      normalizer->Run(part, Normalizer::Track::kSource, &out, &work);
      hash.Add(out.text);
      ASSERT_EQ(out.source.size(), out.text.size() + 1);
      ASSERT_TRUE(std::is_sorted(out.source.begin(), out.source.end()));
      ASSERT_EQ(out.source.back(), part.size());
    }
    EXPECT_EQ(hash.Hex(), expected.Find("hash")->string());
  }
}

}  // namespace
}  // namespace deepinfer
