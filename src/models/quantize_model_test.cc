#include "models/quantize_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/checkpoint_test_util.h"
#include "models/quantize_types.h"
#include "models/random_model.h"
#include "tensor/dequantize.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

std::unique_ptr<Checkpoint> MustOpen(const std::string& path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

std::unique_ptr<Checkpoint> WriteAndOpen(const TempDirectory& directory, const Json& config) {
  const Result<ModelConfig> read = ConfigFromHf(config, nullptr);
  EXPECT_TRUE(read.ok()) << read.status().message();
  WriteTinyCheckpoint(directory, config, TinyTensors(*read));
  return MustOpen(directory.path());
}

std::vector<float> Values(const TensorView& view) { return *DequantizeTensor(view); }

// Every matrix of the GGUF file equals the source; rows of Llama's q and k in GGUF order.
void ExpectSameTensors(const Checkpoint& source, const Checkpoint& written) {
  const ModelConfig& config = source.config();
  for (int r = 0; r < kNumTensorRoles; ++r) {
    const auto role = static_cast<TensorRole>(r);
    for (int layer = 0; layer < (IsLayerRole(role) ? config.layers : 1); ++layer) {
      if (ExpectedShape(config, role, layer).empty()) continue;
      if (IsExpertRole(role)) {
        for (size_t e = 0; e < 4; ++e) {
          EXPECT_EQ(Values(source.Experts(role, layer)[e]),
                    Values(written.Experts(role, layer)[e]));
        }
        continue;
      }
      const TensorView* from = source.Find(role, layer);
      const TensorView* to = written.Find(role, layer);
      ASSERT_NE(to, nullptr);
      const std::vector<float> a = Values(*from);
      const std::vector<float> b = Values(*to);
      const bool rotated = role == TensorRole::kQ || role == TensorRole::kK ||
                           role == TensorRole::kQBias || role == TensorRole::kKBias;
      if (config.family != ModelFamily::kLlama || !rotated) {
        EXPECT_EQ(a, b) << from->name;
        continue;
      }
      const size_t cols = from->shape.size() == 1 ? 1 : static_cast<size_t>(from->shape[1]);
      const auto head = static_cast<size_t>(config.head_dim);
      for (size_t row = 0; row < a.size() / cols; ++row) {
        // Element i of the first half of a head is element 2i in GGUF, of the second half 2i + 1.
        const size_t in_head = row % head;
        const size_t half = head / 2;
        const size_t place =
            row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
        for (size_t col = 0; col < cols; ++col) {
          ASSERT_EQ(a[row * cols + col], b[place * cols + col]) << from->name << " row " << row;
        }
      }
    }
  }
}

TEST(QuantizeModel, HuggingFaceToGgufKeepsEverything) {
  const std::pair<const char*, const char*> cases[] = {
      {"LlamaForCausalLM", R"({"attention_bias":true,"mlp_bias":true,"rope_theta":500000,)"
                           R"("rope_scaling":{"rope_type":"llama3","factor":8,)"
                           R"("low_freq_factor":1,"high_freq_factor":4,)"
                           R"("original_max_position_embeddings":64}})"},
      {"LlamaForCausalLM", R"({"tie_word_embeddings":true})"},
      {"Qwen2ForCausalLM", R"({"rope_scaling":{"rope_type":"linear","factor":2}})"},
      {"Qwen3ForCausalLM", R"({"rope_scaling":{"rope_type":"yarn","factor":4,)"
                           R"("original_max_position_embeddings":32}})"},
      {"Qwen3MoeForCausalLM", R"({"mlp_only_layers":[1]})"}};
  for (const auto& [family, extra] : cases) {
    const TempDirectory directory;
    const auto source = WriteAndOpen(directory, TinyConfig(family, extra));
    ASSERT_NE(source, nullptr);
    const std::string path = directory.File("out.gguf");
    const auto summary = QuantizeCheckpoint(*source, path, {.type = "f32"});
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    const auto written = MustOpen(path);
    ASSERT_NE(written, nullptr);
    ExpectSameTensors(*source, *written);
    const ModelConfig& a = source->config();
    const ModelConfig& b = written->config();
    EXPECT_EQ(a.architecture, b.architecture);
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.context_max, b.context_max);
    EXPECT_EQ(a.norm_eps, b.norm_eps);
    EXPECT_EQ(a.tied_head, b.tied_head);
    EXPECT_EQ(a.qkv_bias, b.qkv_bias);
    EXPECT_EQ(a.output_bias, b.output_bias);
    EXPECT_EQ(a.eos_ids, b.eos_ids);
    EXPECT_EQ(a.moe.sparse_layer, b.moe.sparse_layer);
    EXPECT_EQ(a.moe.normalize_top_k, b.moe.normalize_top_k);
    EXPECT_NEAR(a.rope.attention_factor, b.rope.attention_factor, 1e-6F);
    EXPECT_EQ(b.rope.style,
              a.family == ModelFamily::kLlama ? RopeStyle::kInterleaved : RopeStyle::kHalves);
    for (size_t i = 0; i < a.rope.inv_freq.size(); ++i) {
      EXPECT_NEAR(a.rope.inv_freq[i], b.rope.inv_freq[i], a.rope.inv_freq[i] * 1e-6F) << i;
    }
    EXPECT_EQ(written->chat_template(), "{{ x }}");
    const auto before = Tokenizer::Create(*source->tokenizer());
    const auto after = Tokenizer::Create(*written->tokenizer());
    ASSERT_TRUE(before.ok() && after.ok()) << after.status().message();
    const std::string text = "<s>hello h\xC3\xA9llo 12";
    EXPECT_EQ((*before)->Encode(text), (*after)->Encode(text));
  }
}

TEST(QuantizeModel, MatricesAreStoredAsAsked) {
  const TempDirectory directory;
  const auto source = WriteAndOpen(directory, TinyConfig("Qwen3ForCausalLM"));
  ASSERT_NE(source, nullptr);
  ComputePool pool(2);
  size_t reports = 0;
  uint64_t last_done = 0;
  struct Seen {
    size_t* reports;
    uint64_t* last_done;
  } seen{&reports, &last_done};
  QuantizeOptions options{.type = "Q4_0", .pool = &pool};
  options.progress.context = &seen;
  options.progress.report = [](void* context, uint64_t done, uint64_t total, const std::string&) {
    auto* s = static_cast<Seen*>(context);
    ++*s->reports;
    EXPECT_GE(done, *s->last_done);
    EXPECT_LE(done, total);
    *s->last_done = done;
  };
  const std::string path = directory.File("out.gguf");
  const auto summary = QuantizeCheckpoint(*source, path, options);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->bytes_out, last_done);
  EXPECT_GE(reports, static_cast<size_t>(summary->tensors));
  const auto written = MustOpen(path);
  ASSERT_NE(written, nullptr);
  EXPECT_EQ(written->Find(TensorRole::kQ, 0)->dtype, DType::kQ4_0);
  EXPECT_EQ(written->Find(TensorRole::kAttnNorm, 0)->dtype, DType::kF32);
  EXPECT_EQ(written->Find(TensorRole::kOutput)->dtype, DType::kQ8_0);  // 64 is no multiple of 256
  const std::vector<float> a = Values(*source->Find(TensorRole::kUp, 1));
  const std::vector<float> b = Values(*written->Find(TensorRole::kUp, 1));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 0.07F);

  const std::string again = directory.File("again.gguf");
  const auto refused = QuantizeCheckpoint(*written, again, {.type = "Q5_1"});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--allow-requantize"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(again));
  // The same type is no new encoding: bytes are copied.
  ASSERT_TRUE(QuantizeCheckpoint(*written, again, {.type = "Q4_0"}).ok());
  EXPECT_EQ(Values(*MustOpen(again)->Find(TensorRole::kUp, 1)), b);
  const auto allowed =
      QuantizeCheckpoint(*written, again, {.type = "BF16", .requantize = Requantize::kAllow});
  ASSERT_TRUE(allowed.ok()) << allowed.status().message();
  EXPECT_EQ(MustOpen(again)->Find(TensorRole::kUp, 1)->dtype, DType::kBF16);
}

TEST(QuantizeModel, DamagedValuesAreNamed) {
  const TempDirectory directory;
  const Json config = TinyConfig("Qwen3ForCausalLM");
  std::vector<TinyTensor> tensors = TinyTensors(*ConfigFromHf(config, nullptr));
  for (TinyTensor& tensor : tensors) {
    if (tensor.name == "model.layers.1.mlp.up_proj.weight") tensor.values[70] = NAN;
  }
  WriteTinyCheckpoint(directory, config, tensors);
  const auto source = MustOpen(directory.path());
  ASSERT_NE(source, nullptr);
  const auto result = QuantizeCheckpoint(*source, directory.File("o.gguf"), {.type = "Q8_0"});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("model.layers.1.mlp.up_proj.weight, row 1"),
            std::string::npos)
      << result.status().message();
  EXPECT_FALSE(std::filesystem::exists(directory.File("o.gguf.partial")));
}

TEST(QuantizeTypes, MixturesKeepDelicateTensors) {
  ModelConfig config;
  config.layers = 32;
  config.hidden = 1024;
  config.intermediate = 4096;
  config.heads = config.kv_heads = 8;
  config.head_dim = 128;
  config.vocab = 1000;
  const QuantizationType medium = *ParseQuantizationType("q4_k_m");
  const auto stored = [&](TensorRole role, int layer, int64_t cols) {
    return StoredType(medium, config, role, layer, cols);
  };
  EXPECT_EQ(stored(TensorRole::kDown, 0, 4096), DType::kQ6_K);
  EXPECT_EQ(stored(TensorRole::kV, 31, 1024), DType::kQ6_K);
  EXPECT_EQ(stored(TensorRole::kV, 4, 1024), DType::kQ4_K);
  EXPECT_EQ(stored(TensorRole::kV, 6, 1024), DType::kQ6_K);
  EXPECT_EQ(stored(TensorRole::kQ, 0, 1024), DType::kQ4_K);
  EXPECT_EQ(stored(TensorRole::kQ, 0, 96), DType::kQ5_0);
  EXPECT_EQ(stored(TensorRole::kQ, 0, 40), DType::kF16);
  EXPECT_EQ(stored(TensorRole::kOutput, 0, 1024), DType::kQ6_K);
  EXPECT_EQ(stored(TensorRole::kTokenEmbedding, 0, 1024), DType::kQ4_K);
  EXPECT_EQ(stored(TensorRole::kFfnNorm, 0, 1024), DType::kF32);
  EXPECT_NE(ParseQuantizationType("Q9").status().message().find("Q4_K_M"), std::string::npos);
}

TEST(RandomModel, EveryTypeOpensHere) {
  const TempDirectory directory;
  const std::string path = directory.File("r.gguf");
  for (const char* type : {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_M",
                           "Q5_K_M", "Q6_K", "MXFP4"}) {
    const auto summary = WriteRandomModel(path, {.preset = "tiny", .type = type});
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    const auto checkpoint = MustOpen(path);
    ASSERT_NE(checkpoint, nullptr) << type;
    EXPECT_EQ(checkpoint->config().architecture, "qwen3_moe");
    // Centred, and as wide as asked: else activations would grow or vanish with depth.
    for (const TensorRole role : {TensorRole::kQ, TensorRole::kV, TensorRole::kTokenEmbedding}) {
      const std::vector<float> values = Values(*checkpoint->Find(role, 1));
      double sum = 0.0, squares = 0.0;
      for (const float value : values) {
        sum += value;
        squares += double{value} * double{value};
      }
      const auto count = static_cast<double>(values.size());
      EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.004) << type;
      EXPECT_NEAR(sum / count, 0.0, 0.0005) << type;
    }
  }
}

TEST(RandomModel, SeedsAndTokenizer) {
  const TempDirectory directory;
  const auto q = [&](uint64_t seed) {
    const std::string path = directory.File("r.gguf");
    EXPECT_TRUE(WriteRandomModel(path, {.preset = "tiny", .seed = seed}).ok());
    return Values(*MustOpen(path)->Find(TensorRole::kQ, 0));
  };
  const std::vector<float> first = q(1);
  EXPECT_EQ(first, q(1));
  EXPECT_NE(first, q(2));
  const auto checkpoint = MustOpen(directory.File("r.gguf"));
  const auto tokenizer = Tokenizer::Create(*checkpoint->tokenizer());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->vocab_size(), 512);
  const std::string text = "<|im_start|>abc \xE2\x82\xAC zzz";
  const auto ids = (*tokenizer)->Encode(text);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ((*tokenizer)->Decode(ids, false), text);
  EXPECT_NE(
      WriteRandomModel(directory.File("x"), {.preset = "huge"}).status().message().find("tiny"),
      std::string::npos);
}

}  // namespace
}  // namespace deepinfer
