// Engram constants against the published ones of V4.1 and the golden checkpoint's sidecar.
#include "text/engram_map.h"

#include <gtest/gtest.h>

#include "models/tokenizer_source.h"
#include "tests/prompts/deepseek_tokenizer.h"
#include "text/reference_data.h"

namespace deepinfer {
namespace {

TEST(EngramMap, PublishedConstantsOfV41) {
  EngramShape shape;
  shape.layer_ids = {1, 14};
  shape.table_size = 16'000'000;
  shape.max_ngram = 4;
  shape.heads = 8;
  shape.pad_token = 2;
  shape.vocab = 129'280;
  const Result<EngramSidecar> made = ComputeEngramSidecar(shape, DeepseekTokenizer());
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->keys, 99'092);
  EXPECT_EQ(made->rows, (std::vector<int64_t>{384'006'168, 384'016'682}));
  EXPECT_EQ(made->multipliers[0],
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(made->multipliers[1],
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  EXPECT_EQ(made->primes[0].front(), 16000057);
  EXPECT_EQ(made->primes[0].back(), 16000463);
  EXPECT_EQ(made->primes[1].front(), 16000477);
  EXPECT_EQ(made->primes[1].back(), 16000889);
  EXPECT_EQ(made->pad, made->token_map[2]);
  // One key for a word's spellings.
  const auto key = [&](std::string_view piece) {
    const TokenId id = DeepseekTokenizer().Find(piece);
    EXPECT_GE(id, 0) << piece;
    return id < 0 ? -1 : made->token_map[static_cast<size_t>(id)];
  };
  EXPECT_EQ(key("Hello"), key("Ġhello"));
  EXPECT_NE(key("Hello"), key("Ġworld"));
}

TEST(EngramMap, GoldenSidecar) {
  const std::string golden = "../golden/data/deepseek_v41/";
  Result<TokenizerSpec> spec = ParseTokenizerJson(ReadReferenceFile(golden + "tokenizer.json"));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(std::move(spec).value());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EngramShape shape;
  shape.layer_ids = {1, 3};
  shape.table_size = 64;
  shape.max_ngram = 4;
  shape.heads = 2;
  shape.pad_token = 2;
  shape.vocab = 384;
  const Result<EngramSidecar> made = ComputeEngramSidecar(shape, **tokenizer);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Json expected = ReadReferenceJson(golden + "engram.json");
  const Json json = EngramSidecarJson(*made);
  for (const auto& [field, value] : expected.members()) {
    const Json* found = json.Find(field);
    ASSERT_NE(found, nullptr) << field;
    EXPECT_EQ(found->Dump(), value.Dump()) << field;
  }
}

TEST(EngramMap, Keys) {
  EXPECT_EQ(EngramKeyOf(" Hello"), "hello");
  EXPECT_EQ(EngramKeyOf("HÉLLO\t\r\n x "), "hello x");
  EXPECT_EQ(EngramKeyOf("ﬁ"), "fi");   // compatibility form
  EXPECT_EQ(EngramKeyOf("ΑΣ"), "ασ");  // no final sigma
  EXPECT_EQ(EngramKeyOf("\n\n\n"), " ");
  EXPECT_EQ(EngramKeyOf("\xC2\xA0\xC2\xA0"), " ");  // no-break spaces become blanks
  EXPECT_EQ(EngramKeyOf("\x1C"), "\x1C");           // a separator is no White_Space
  EXPECT_EQ(EngramKeyOf("\xE2\x83\x9D"), "");       // an enclosing mark alone
  EXPECT_EQ(EngramKeyOf("\xEE\x80\x80x"), " x");
}

TEST(EngramMap, NumbersOfNumpy) {
  // numpy.random.default_rng(10007).integers(0, 46539438283891, 4)
  EXPECT_EQ(NumpyIntegers(10007, 46539438283891, 4),
            (std::vector<int64_t>{38316048023122, 2419938046656, 17979836159674, 36993668729195}));
  // A bound at which about half of the draws are rejected:
  // numpy.random.default_rng(5).integers(0, 2**62 + 1, 6)
  EXPECT_EQ(NumpyIntegers(5, (int64_t{1} << 62) + 1, 6),
            (std::vector<int64_t>{3712420728229738858, 2376519684796296048, 1318026228599734557,
                                  248711466137453627, 1883750170337626353, 208794978701495667}));
}

TEST(EngramMap, RefusesShapesOutOfRange) {
  EngramShape good;
  good.layer_ids = {0};
  good.table_size = 10;
  good.max_ngram = 2;
  good.heads = 1;
  good.vocab = 10;
  EXPECT_TRUE(ComputeEngramSidecar(good, DeepseekTokenizer()).ok());
  const auto param = [&](auto change) {
    EngramShape bad = good;
    change(&bad);
    return ComputeEngramSidecar(bad, DeepseekTokenizer()).status().param();
  };
  EXPECT_EQ(param([](EngramShape* s) { s->pad_token = 10; }), "engram_pad_token_id");
  EXPECT_EQ(param([](EngramShape* s) { s->heads = 0; }), "engram_n_heads");
  EXPECT_EQ(param([](EngramShape* s) { s->max_ngram = 1; }), "engram_max_ngram_size");
  EXPECT_EQ(param([](EngramShape* s) { s->table_size = 0; }), "engram_vocab_size");
  EXPECT_EQ(param([](EngramShape* s) { s->layer_ids = {-1}; }), "engram_layer_ids");
  EXPECT_EQ(param([](EngramShape* s) { s->vocab = 0; }), "vocab_size");
}

}  // namespace
}  // namespace deepinfer
