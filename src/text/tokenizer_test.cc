#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <limits>
#include <thread>

#include "text/reference_data.h"

namespace deepinfer {
namespace {

using Ids = std::vector<TokenId>;

std::unique_ptr<Tokenizer> Make(TokenizerSpec spec) {
  auto created = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(created.ok()) << created.status().message();
  return std::move(created).value();
}

std::string ErrorOf(TokenizerSpec spec) {
  auto created = Tokenizer::Create(std::move(spec));
  EXPECT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), StatusCode::kInvalid);
  return created.status().message();
}

// Characters a..e with merges ab, abc; the space is U+2581.
TokenizerSpec SmallSpec() {
  TokenizerSpec spec;
  spec.vocab = {"<unk>", "a", "b", "c", "d", "e", "ab", "abc", "\xE2\x96\x81"};
  spec.merges = {{"a", "b"}, {"ab", "c"}};
  spec.unk_id = 0;
  spec.decoders = {{.kind = DecoderStep::Kind::kFuse}};
  return spec;
}

constexpr EncodeOptions kPlain = {.add_special_tokens = false};

TEST(Tokenizer, MergesByRankAndMarksTheUnknown) {
  const auto tokenizer = Make(SmallSpec());
  EXPECT_EQ(tokenizer->Encode("abcabde", kPlain), (Ids{7, 6, 4, 5}));
  EXPECT_EQ(tokenizer->Encode("axyb", kPlain), (Ids{1, 0, 0, 2}));
  TokenizerSpec fused = SmallSpec();
  fused.fuse_unk = true;
  EXPECT_EQ(Make(fused)->Encode("axyb", kPlain), (Ids{1, 0, 2}));
  TokenizerSpec dropped = SmallSpec();
  dropped.unk_id = -1;
  EXPECT_EQ(Make(dropped)->Encode("axyb", kPlain), (Ids{6}));
  EXPECT_EQ(tokenizer->Encode("", kPlain), Ids{});
}

TEST(Tokenizer, FallsBackToBytes) {
  TokenizerSpec spec = SmallSpec();
  spec.byte_fallback = true;
  spec.vocab.push_back("<0xC3>");
  spec.vocab.push_back("<0xA9>");
  spec.decoders = {{.kind = DecoderStep::Kind::kByteFallback}, {.kind = DecoderStep::Kind::kFuse}};
  const auto tokenizer = Make(spec);
  EXPECT_EQ(tokenizer->Encode("a\xC3\xA9", kPlain), (Ids{1, 9, 10}));
  EXPECT_EQ(tokenizer->Encode("\xC3\xA8", kPlain), (Ids{0}));  // <0xA8> is missing
  EXPECT_EQ(tokenizer->Decode(Ids{1, 9, 10}, false), "a\xC3\xA9");
  EXPECT_EQ(tokenizer->Decode(Ids{1, 9}, false), "a\xEF\xBF\xBD");
}

TEST(Tokenizer, PutsPrefixAndSuffixAroundWhenAsked) {
  TokenizerSpec spec = SmallSpec();
  spec.prefix_ids = {4};
  spec.suffix_ids = {5};
  const auto tokenizer = Make(spec);
  EXPECT_EQ(tokenizer->Encode("ab"), (Ids{4, 6, 5}));
  EXPECT_EQ(tokenizer->Encode(""), (Ids{4, 5}));
  EXPECT_EQ(tokenizer->Encode("ab", kPlain), (Ids{6}));
}

TokenizerSpec AddedSpec() {
  TokenizerSpec spec = SmallSpec();
  spec.added = {{.id = 9, .content = "<a>", .special = true},
                {.id = 10, .content = "<a><b>", .special = true},
                {.id = 11, .content = "cd"},
                {.id = 12, .content = "ee", .single_word = true},
                {.id = 13, .content = "<l>", .lstrip = true, .rstrip = true},
                {.id = 15, .content = "<think>"}};
  return spec;
}

TEST(Tokenizer, FindsAddedTokensLeftmostLongest) {
  const auto tokenizer = Make(AddedSpec());
  EXPECT_EQ(tokenizer->vocab_size(), 16);
  EXPECT_EQ(tokenizer->Encode("ab<a><b>c<a>", kPlain), (Ids{6, 10, 3, 9}));
  EXPECT_EQ(tokenizer->Encode("abcd", kPlain), (Ids{6, 11}));
  EXPECT_EQ(tokenizer->Encode("ee", kPlain), (Ids{12}));
  EXPECT_EQ(tokenizer->Encode("aee", kPlain), (Ids{1, 5, 5}));
  EXPECT_EQ(tokenizer->Encode("a \n<l>\tb", kPlain), (Ids{1, 13, 2}));
  EXPECT_EQ(tokenizer->Find("<a>"), 9);
  EXPECT_EQ(tokenizer->Find("abc"), 7);
  EXPECT_EQ(tokenizer->Find("zz"), -1);
  EXPECT_EQ(tokenizer->Piece(15), "<think>");
  EXPECT_EQ(tokenizer->Piece(14), "");
  EXPECT_EQ(tokenizer->Piece(16), "");
  EXPECT_EQ(tokenizer->Piece(-1), "");
  EXPECT_TRUE(tokenizer->IsSpecial(9));
  EXPECT_FALSE(tokenizer->IsSpecial(15));
}

TEST(Tokenizer, KeepsControlTokensOutOfUntrustedText) {
  const auto tokenizer = Make(AddedSpec());
  const auto encode = [&](std::string_view text, const std::vector<TrustedSpan>& spans) {
    return tokenizer->Encode(text,
                             {.add_special_tokens = false, .spans_only = true, .spans = spans});
  };
  // "<", ">" and others that the vocabulary lacks are <unk>.
  EXPECT_EQ(encode("<a>ab", {}), (Ids{0, 1, 0, 6}));
  EXPECT_EQ(encode("<a>ab", {{0, 3}}), (Ids{9, 6}));
  EXPECT_EQ(encode("<a>ab", {{0, 2}}), (Ids{0, 1, 0, 6}));
  EXPECT_EQ(encode("<a>ab", {{0, 2}, {2, 5}}), (Ids{0, 1, 0, 6}));
  // Markup that is not flagged special is kept out too; plain vocabulary is not.
  EXPECT_EQ(encode("<think>cd", {}).back(), 11);
  EXPECT_NE(encode("<think>cd", {}).front(), 15);
  EXPECT_EQ(encode("<think>cd", {{0, 7}}), (Ids{15, 11}));
  // The longer token crosses the border, the shorter one does not.
  EXPECT_EQ(encode("<a><b>", {{0, 3}}), (Ids{9, 0, 2, 0}));
  // Text on both sides of a border is one run.
  EXPECT_EQ(encode("ab", {{0, 1}}), (Ids{6}));
  // Borders keep their place when invalid bytes before them become U+FFFD.
  EXPECT_EQ(encode("\xFF<a>", {{1, 4}}), (Ids{0, 9}));
  EXPECT_EQ(encode("\xFF<a>", {{2, 4}}), (Ids{0, 0, 1, 0}));
}

TEST(Tokenizer, FollowsTrustThroughANormalizer) {
  TokenizerSpec spec = AddedSpec();
  for (AddedToken& added : spec.added) added.normalized = true;
  spec.normalizers = {{.kind = NormalizerStep::Kind::kReplace, .pattern = "x", .content = "abc"}};
  const auto tokenizer = Make(spec);
  const std::vector<TrustedSpan> spans = {{2, 5}};
  EXPECT_EQ(tokenizer->Encode("xx<a>x<a>",
                              {.add_special_tokens = false, .spans_only = true, .spans = spans}),
            (Ids{7, 7, 9, 7, 0, 1, 0}));
}

TEST(Tokenizer, ReplacesInvalidUtf8) {
  const auto tokenizer = Make(ReadReferenceSpec("gpt2_small"));
  for (const char* bad : {"\xFF", "\xC3", "\xE4\xB8", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80"}) {
    std::string replaced;
    const std::string_view text = bad;
    // One U+FFFD for each maximal prefix of a character: all of a truncated one, else each byte.
    const size_t count = text == "\xC3" || text == "\xE4\xB8" ? 1 : text.size();
    for (size_t i = 0; i < count; ++i) replaced += "\xEF\xBF\xBD";
    EXPECT_EQ(tokenizer->Encode(text, kPlain), tokenizer->Encode(replaced, kPlain));
  }
}

TEST(Tokenizer, DecodesWithoutADecoderByJoiningWithSpaces) {
  TokenizerSpec spec = SmallSpec();
  spec.decoders.clear();
  EXPECT_EQ(Make(spec)->Decode(Ids{6, 3, 99, -1}, false), "ab c");
}

TEST(Tokenizer, DecodesWordSuffixes) {
  TokenizerSpec spec = SmallSpec();
  spec.vocab.push_back("b</w>");
  spec.decoders = {{.kind = DecoderStep::Kind::kBpe}};
  const auto tokenizer = Make(spec);
  EXPECT_EQ(tokenizer->Decode(Ids{1, 9, 1, 9}, false), "ab ab");
  EXPECT_EQ(tokenizer->Bytes(9), "b ");
}

TEST(Tokenizer, StripsTheStartAndTheEndOfTheText) {
  TokenizerSpec spec = SmallSpec();
  spec.vocab.push_back(" ");
  spec.decoders = {{.kind = DecoderStep::Kind::kFuse},
                   {.kind = DecoderStep::Kind::kStrip, .content = " ", .start = 1, .stop = 2}};
  const auto tokenizer = Make(spec);
  EXPECT_EQ(tokenizer->Decode(Ids{9, 9, 1, 9, 9, 2, 9}, false), " a  b");
  EXPECT_EQ(tokenizer->Decode(Ids{1, 9, 9, 9}, false), "a ");
  EXPECT_EQ(tokenizer->Decode(Ids{1, 9, 9, 9, 2}, false), "a   b");
  EXPECT_EQ(tokenizer->Decode(Ids{9}, false), "");
}

TEST(Tokenizer, RefusesWhatDoesNotFitTogether) {
  TokenizerSpec spec;
  EXPECT_NE(ErrorOf(spec).find("0 entries"), std::string::npos);
  spec = SmallSpec();
  spec.merges.push_back({"a", "zz"});
  EXPECT_NE(ErrorOf(spec).find("\"zz\""), std::string::npos);
  spec = SmallSpec();
  spec.merges.push_back({"a", "e"});
  EXPECT_NE(ErrorOf(spec).find("\"ae\""), std::string::npos);
  spec = SmallSpec();
  spec.unk_id = 9;
  EXPECT_NE(ErrorOf(spec).find("unk_id is 9"), std::string::npos);
  spec = SmallSpec();
  spec.prefix_ids = {-1};
  ErrorOf(spec);
  spec = SmallSpec();
  spec.merges.clear();
  spec.scores = {1.0F};
  EXPECT_NE(ErrorOf(spec).find("1 scores for 9"), std::string::npos);
  spec.scores.assign(9, 0.0F);
  spec.scores[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(ErrorOf(spec).find("token 3"), std::string::npos);
  spec = SmallSpec();
  spec.added = {{.id = 1, .content = "<x>"}};
  EXPECT_NE(ErrorOf(spec).find("\"<x>\""), std::string::npos);
  spec.added = {{.id = 1 << 30, .content = "<x>"}};
  ErrorOf(spec);
  spec.added = {{.id = 20, .content = "\x80"}};
  ErrorOf(spec);
  spec = SmallSpec();
  spec.pre_tokenizers = {{.pattern = "(a"}};
  EXPECT_NE(ErrorOf(spec).find("\"(a\""), std::string::npos);
  spec.pre_tokenizers = {{.pattern = "[a&&b]"}};
  ErrorOf(spec);
  spec = SmallSpec();
  spec.decoders = {{.kind = DecoderStep::Kind::kStrip, .content = "ab", .start = 1}};
  ErrorOf(spec);
}

TEST(Tokenizer, EncodesOnManyThreads) {
  const auto tokenizer = Make(ReadReferenceSpec("llama3_small"));
  const std::string text = MixedText(ReadReferenceJson("mix.json"), 5, 20000);
  const Ids expected = tokenizer->Encode(text);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) EXPECT_EQ(tokenizer->Encode(text), expected);
    });
  }
}

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Quadratic work on so much text would take minutes. The bound leaves room for a sanitizer.
TEST(Tokenizer, TakesLinearTimeOnHostileText) {
  constexpr size_t kBytes = size_t{1} << 18;
  const char* const repeated[] = {
      "a",     " ",      "\n",  "1", "'", "<|im_", "ab", "\xCC\x95\xCC\x96", "\xE2\x96\x81",
      " \n\t", "<0x41>", "\x01"};
  for (const char* name : {"smollm2", "qwen3", "unigram_bytes", "fallback_small", "words_small"}) {
    const auto tokenizer = Make(ReadReferenceSpec(name));
    for (const char* unit : repeated) {
      std::string text;
      while (text.size() < kBytes) text += unit;
      const double start = CpuSeconds();
      EXPECT_FALSE(tokenizer->Encode(text + "x").empty());
      EXPECT_LT(CpuSeconds() - start, 10.0) << name << " on repeated " << unit;
    }
  }
}

TEST(Tokenizer, BoundsThePatternsOfOthers) {
  for (const char* pattern : {"(a+)+b", "(.*)(.*)(.*)x", "(a|a)*$x"}) {
    TokenizerSpec spec = SmallSpec();
    spec.pre_tokenizers = {{.pattern = pattern}};
    const auto tokenizer = Make(spec);
    const double start = CpuSeconds();
    EXPECT_FALSE(tokenizer->Encode(std::string(size_t{1} << 14, 'a')).empty());
    EXPECT_LT(CpuSeconds() - start, 20.0) << pattern;
  }
}

}  // namespace
}  // namespace deepinfer
