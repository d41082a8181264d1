#include "models/tokenizer_source.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/checkpoint_test_util.h"
#include "tensor/gguf_writer.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

std::string Error(std::string_view text) {
  const auto spec = ParseTokenizerJson(text);
  return spec.ok() ? "" : spec.status().message();
}

TEST(TokenizerJson, ReadsAllParts) {
  const auto spec = ParseTokenizerJson(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true},
                     {"id": 6, "content": "<x>", "lstrip": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
      {"type": "Prepend", "prepend": "_"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Removed", "invert": true},
      {"type": "Digits", "individual_digits": true},
      {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": false}]},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}},
                 {"SpecialToken": {"id": "<x>", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [3]}, "<x>": {"id": "<x>", "ids": [6, 3]}}},
    "model": {"type": "BPE", "unk_token": "u", "fuse_unk": true, "byte_fallback": true,
      "ignore_merges": true, "vocab": {"u": 0, "a": 1, "b": 2}, "merges": ["a b"]}})");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->vocab, (std::vector<std::string>{"u", "a", "b", "<s>", "", "", "<x>"}));
  EXPECT_EQ(spec->merges.at(0), (std::pair<std::string, std::string>{"a", "b"}));
  EXPECT_EQ(spec->unk_id, 0);
  EXPECT_TRUE(spec->fuse_unk && spec->byte_fallback && spec->ignore_merges);
  EXPECT_FALSE(spec->added.at(0).normalized);
  EXPECT_TRUE(spec->added.at(1).normalized && spec->added.at(1).lstrip);
  EXPECT_EQ(spec->normalizers.size(), 3U);
  EXPECT_EQ(spec->normalizers.at(1).content, "_");
  EXPECT_EQ(spec->pre_tokenizers.at(0).behavior, PreTokenizerStep::Behavior::kRemoved);
  EXPECT_TRUE(spec->pre_tokenizers.at(0).invert);
  EXPECT_EQ(spec->pre_tokenizers.at(2).prepend, PreTokenizerStep::Prepend::kFirst);
  EXPECT_EQ(spec->decoders.at(2).start, 1);
  EXPECT_EQ(spec->prefix_ids, (std::vector<TokenId>{3}));
  EXPECT_EQ(spec->suffix_ids, (std::vector<TokenId>{6, 3}));
}

TEST(TokenizerJson, Unigram) {
  const auto spec =
      ParseTokenizerJson(R"({"model":{"type":"Unigram","unk_id":0,"byte_fallback":true,)"
                         R"("vocab":[["<unk>",0],["a",-1.5]]}})");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->model, TokenizerSpec::Model::kUnigram);
  EXPECT_EQ(spec->scores, (std::vector<float>{0.0F, -1.5F}));
}

TEST(TokenizerJson, UnknownPartsAreNamed) {
  const auto with = [](std::string_view extra) {
    return Format(R"({{"model":{{"type":"BPE","vocab":{{"a":0}},"merges":[]}},{}}})", extra);
  };
  EXPECT_EQ(Error(with(R"("normalizer":null)")), "");
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"[1]", "not a JSON object"},
      {"{", "line"},
      {"{}", "model is missing"},
      {R"({"model":{"type":"WordPiece"}})", "\"WordPiece\" is not supported"},
      {R"({"model":{"type":"BPE","vocab":{}}})", "vocab"},
      {R"({"model":{"type":"BPE","vocab":{"a":0}}})", "merges"},
      {R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})", "-1"},
      {R"({"model":{"type":"BPE","vocab":{"a":9000000},"merges":[]}})", "far beyond"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}})", "belongs to"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}})", "two parts"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})", "two parts"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.5}})", "dropout"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>"}})",
       "end_of_word_suffix"},
      {R"({"model":{"type":"Unigram","vocab":[["a"]]}})", "[piece, score]"},
      {R"({"model":{"type":"Unigram","vocab":[["a",0]],"unk_id":1}})", "unk_id is 1"},
      {with(R"("pre_tokenizer":{"type":"BertPreTokenizer"})"), "\"BertPreTokenizer\""},
      {with(R"("normalizer":{"type":"Precompiled"})"), "\"Precompiled\""},
      {with(R"("decoder":{"type":"WordPiece"})"), "\"WordPiece\""},
      {with(R"("post_processor":{"type":"Magic"})"), "\"Magic\""},
      {with(R"("post_processor":{"type":"BertProcessing","cls":["x",5],"sep":["y",0]})"), "id 5"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":3})"), "pattern"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Q"})"), "\"Q\""},
      {with(R"("added_tokens":[{"content":"x"}])"), "has no id"},
  };
  for (const auto& c : cases) {
    EXPECT_NE(Error(c.text).find(c.says), std::string::npos) << c.text << ": " << Error(c.text);
  }
}

TEST(TokenizerConfig, IdsAndLlamaPrefix) {
  auto spec = ParseTokenizerJson(TinyTokenizerJson());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const Json plain = *Json::Parse(R"({"bos_token":"<s>","eos_token":{"content":"</s>"},)"
                                  R"("pad_token":null,"add_bos_token":true})");
  ASSERT_TRUE(ApplyTokenizerConfig(plain, &*spec).ok());
  EXPECT_EQ(spec->bos_id, 0);
  EXPECT_EQ(spec->eos_id, 1);
  EXPECT_EQ(spec->pad_id, -1);
  EXPECT_TRUE(spec->prefix_ids.empty());
  const Json llama = *Json::Parse(R"({"bos_token":"<s>","tokenizer_class":"LlamaTokenizerFast"})");
  ASSERT_TRUE(ApplyTokenizerConfig(llama, &*spec).ok());
  EXPECT_EQ(spec->prefix_ids, (std::vector<TokenId>{0}));
}

TEST(TokenizerConfig, ChatTemplates) {
  EXPECT_EQ(*ChatTemplateOf(*Json::Parse("{}")), "");
  EXPECT_EQ(*ChatTemplateOf(*Json::Parse(R"({"chat_template":"a"})")), "a");
  EXPECT_EQ(*ChatTemplateOf(*Json::Parse(R"({"chat_template":[{"name":"tool_use","template":"t"},)"
                                         R"({"name":"default","template":"d"}]})")),
            "d");
  EXPECT_FALSE(ChatTemplateOf(*Json::Parse(R"({"chat_template":3})")).ok());
}

// Metadata of a GGUF file with the tokenizer keys that `fill` sets.
template <typename Fill>
Result<TokenizerSpec> FromGguf(const Fill& fill) {
  const TempDirectory directory;
  const std::string path = directory.File("t.gguf");
  auto writer = GgufWriter::Create(path);
  fill(writer->get());
  EXPECT_TRUE((*writer)->WriteHeader().ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return TokenizerFromGguf((*file)->metadata());
}

const std::string_view kTokens[] = {"<unk>", "<s>", "a", "b", "ab"};
const int32_t kTypes[] = {2, 3, 1, 1, 4};

TEST(TokenizerGguf, ByteLevel) {
  const std::string_view merges[] = {"a b"};
  const auto spec = FromGguf([&](GgufWriter* writer) {
    writer->SetString("tokenizer.ggml.model", "gpt2");
    writer->SetString("tokenizer.ggml.pre", "smollm");
    writer->SetStrings("tokenizer.ggml.tokens", kTokens);
    writer->SetI32s("tokenizer.ggml.token_type", kTypes);
    writer->SetStrings("tokenizer.ggml.merges", merges);
    writer->SetU32("tokenizer.ggml.bos_token_id", 1);
    writer->SetBool("tokenizer.ggml.add_bos_token", true);
  });
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->vocab.size(), 5U);
  EXPECT_EQ(spec->added.size(), 3U);
  EXPECT_TRUE(spec->added[0].special && spec->added[1].special);
  EXPECT_FALSE(spec->added[2].special);
  EXPECT_EQ(spec->prefix_ids, (std::vector<TokenId>{1}));
  EXPECT_EQ(spec->pre_tokenizers.at(0).kind, PreTokenizerStep::Kind::kDigits);
  EXPECT_EQ(GgufPreTokenizerName(*spec), "smollm");
}

TEST(TokenizerGguf, SentencePiece) {
  const std::string mark = "\xE2\x96\x81";
  const std::string marked = mark + "a";
  const std::string_view tokens[] = {"<unk>", "<s>", "</s>", "<0x0A>", marked, "b", mark, "a"};
  const int32_t types[] = {2, 3, 3, 6, 1, 1, 1, 1};
  const float scores[] = {0, 0, 0, 0, -1, -2, -3, -4};
  const auto spec = FromGguf([&](GgufWriter* writer) {
    writer->SetString("tokenizer.ggml.model", "llama");
    writer->SetStrings("tokenizer.ggml.tokens", tokens);
    writer->SetI32s("tokenizer.ggml.token_type", types);
    writer->SetF32s("tokenizer.ggml.scores", scores);
    writer->SetU32("tokenizer.ggml.bos_token_id", 1);
    writer->SetU32("tokenizer.ggml.unknown_token_id", 0);
  });
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_TRUE(spec->byte_fallback);
  EXPECT_EQ(spec->prefix_ids, (std::vector<TokenId>{1}));  // the default of this model
  auto tokenizer = Tokenizer::Create(*spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->Encode("a\nb"), (std::vector<TokenId>{1, 4, 3, 5}));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{4, 3, 5}, true), "a\nb");
}

TEST(TokenizerGguf, ErrorsNameTheKey) {
  const std::string_view merges[] = {"ab"};
  const auto error = [&](const std::string& pre, const std::string& model, bool broken_merges,
                         uint32_t bos) {
    const auto spec = FromGguf([&](GgufWriter* writer) {
      writer->SetString("tokenizer.ggml.model", model);
      writer->SetString("tokenizer.ggml.pre", pre);
      writer->SetStrings("tokenizer.ggml.tokens", kTokens);
      writer->SetU32("tokenizer.ggml.bos_token_id", bos);
      if (broken_merges) writer->SetStrings("tokenizer.ggml.merges", merges);
    });
    return spec.ok() ? "" : spec.status().message();
  };
  EXPECT_NE(error("mystery", "gpt2", false, 0).find("\"mystery\", which is not known"),
            std::string::npos);
  EXPECT_NE(error("gpt-2", "bert", false, 0).find("\"bert\""), std::string::npos);
  EXPECT_NE(error("gpt-2", "gpt2", false, 0).find("tokenizer.ggml.merges is missing"),
            std::string::npos);
  EXPECT_NE(error("gpt-2", "gpt2", true, 0).find("two parts"), std::string::npos);
  EXPECT_NE(error("gpt-2", "llama", false, 5).find("scores"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
