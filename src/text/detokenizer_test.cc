#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "text/reference_data.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

using Ids = std::vector<TokenId>;

std::unique_ptr<Tokenizer> Make(TokenizerSpec spec) {
  auto created = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(created.ok()) << created.status().message();
  return std::move(created).value();
}

// Pieces of a stream, each checked to be valid UTF-8 and to hold back an incomplete character at
// most.
std::string Stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  Detokenizer detokenizer(&tokenizer, skip_special, true);
  std::string text;
  for (const TokenId id : ids) {
    std::string piece;
    detokenizer.Push(id, &piece);
    EXPECT_EQ(ValidUtf8Prefix(piece), piece.size());
    text += piece;
  }
  std::string rest;
  detokenizer.Finish(&rest);
  EXPECT_LE(rest.size(), kReplacementUtf8.size());
  EXPECT_EQ(ValidUtf8Prefix(rest), rest.size());
  return text + rest;
}

TEST(Detokenizer, PiecesOfRandomIdsJoinToDecode) {
  for (const char* name : {"smollm2", "gpt2_small", "llama3_small", "unigram_small",
                           "unigram_bytes", "fallback_small", "words_small"}) {
    const auto tokenizer = Make(ReadReferenceSpec(name));
    ReferenceRng rng(3);
    for (int round = 0; round < 200; ++round) {
      Ids ids(rng.Below(40));
      for (TokenId& id : ids) {
        id =
            static_cast<TokenId>(rng.Below(static_cast<uint64_t>(tokenizer->vocab_size()) + 3)) - 1;
      }
      const bool skip = rng.Below(2) == 0;
      EXPECT_EQ(Stream(*tokenizer, ids, skip), tokenizer->Decode(ids, skip)) << name;
    }
  }
}

TEST(Detokenizer, TextComesBackFromItsIds) {
  const std::string text = MixedText(ReadReferenceJson("mix.json"), 11, 100000);
  for (const char* name : {"llama3_small", "deepseek_v3"}) {
    const auto tokenizer = Make(ReadReferenceSpec(name));
    const Ids ids = tokenizer->Encode(text, {.add_special_tokens = false});
    EXPECT_EQ(Stream(*tokenizer, ids, false), text) << name;
  }
}

// One token for each byte.
TokenizerSpec ByteSpec() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    spec.vocab.push_back({'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'});
  }
  spec.added = {{.id = 256, .content = "<s>", .special = true},
                {.id = 257, .content = "<t>", .special = true}};
  spec.decoders = {{.kind = DecoderStep::Kind::kByteFallback}, {.kind = DecoderStep::Kind::kFuse}};
  return spec;
}

TEST(Detokenizer, NeverWithholdsACompleteCharacterNorStallsOnGarbage) {
  const auto tokenizer = Make(ByteSpec());
  Detokenizer detokenizer(tokenizer.get(), true, true);
  const auto push = [&](TokenId id) {
    std::string piece;
    detokenizer.Push(id, &piece);
    return piece;
  };
  EXPECT_EQ(push(0xE4), "");
  EXPECT_EQ(push(0xB8), "");
  EXPECT_EQ(push(0xAD), "\xE4\xB8\xAD");
  EXPECT_EQ(push(0xFF), "\xEF\xBF\xBD");  // can start nothing
  EXPECT_EQ(push(0xE4), "");
  EXPECT_EQ(push('a'),
            "\xEF\xBF\xBD"
            "a");  // the prefix turned out invalid
  EXPECT_EQ(push(0xED), "");
  EXPECT_EQ(push(0xA0), "\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  EXPECT_EQ(push(0xF0), "");
  EXPECT_EQ(push(256), "");  // a special token is skipped
  EXPECT_EQ(push(0x9F), "");
  EXPECT_EQ(push(0x98), "");
  EXPECT_EQ(push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(push(0xE4), "");
  std::string rest;
  detokenizer.Finish(&rest);
  EXPECT_EQ(rest, "\xEF\xBF\xBD");
}

TEST(Detokenizer, AllByteStringsBecomeValidText) {
  const auto tokenizer = Make(ByteSpec());
  ReferenceRng rng(4);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(rng.Below(12));
    for (TokenId& id : ids) {
      // Mostly lead and continuation bytes.
      id = static_cast<TokenId>(rng.Below(4) == 0 ? rng.Below(256) : 0x80 + rng.Below(128));
    }
    EXPECT_EQ(Stream(*tokenizer, ids, false), tokenizer->Decode(ids, false));
  }
}

TEST(Detokenizer, LeavesOutSpacesBetweenSpecialTokensOnRequest) {
  TokenizerSpec spec = ByteSpec();
  spec.decoders.clear();  // joins with spaces
  const auto tokenizer = Make(spec);
  for (const bool spaces : {true, false}) {
    Detokenizer detokenizer(tokenizer.get(), false, spaces);
    std::string text;
    for (const TokenId id : {256, 257, 256}) detokenizer.Push(id, &text);
    detokenizer.Finish(&text);
    EXPECT_EQ(text, spaces ? "<s> <t> <s>" : "<s><t><s>");
  }
}

}  // namespace
}  // namespace deepinfer
