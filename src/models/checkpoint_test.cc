#include "models/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/checkpoint_test_util.h"
#include "tensor/gguf_writer.h"

namespace deepinfer {
namespace {

constexpr const char* kFamilies[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                     "Qwen3MoeForCausalLM"};

std::string OpenError(const std::string& path) {
  const auto checkpoint = Checkpoint::Open(path);
  return checkpoint.ok() ? "" : checkpoint.status().message();
}

TEST(Checkpoint, EveryFamilyOpens) {
  for (const char* family : kFamilies) {
    const TempDirectory directory;
    const Json config = TinyConfig(family);
    const Result<ModelConfig> expected = ConfigFromHf(config, nullptr);
    ASSERT_TRUE(expected.ok());
    WriteTinyCheckpoint(directory, config, TinyTensors(*expected));
    auto checkpoint = Checkpoint::Open(directory.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const Checkpoint& c = **checkpoint;
    EXPECT_EQ(c.format(), CheckpointFormat::kSafetensors);
    EXPECT_EQ(c.config().architecture, expected->architecture);
    EXPECT_EQ(c.main_dtype(), DType::kBF16);
    EXPECT_EQ(c.Find(TensorRole::kQ, 1)->shape, (std::vector<int64_t>{128, 64}));
    EXPECT_EQ(c.Find(TensorRole::kOutput)->shape, (std::vector<int64_t>{300, 64}));
    EXPECT_EQ(c.Find(TensorRole::kQBias, 0) != nullptr, expected->qkv_bias);
    EXPECT_EQ(c.Find(TensorRole::kKNorm, 0) != nullptr, expected->qk_norm);
    const bool sparse = expected->IsSparse(0);
    EXPECT_EQ(c.Find(TensorRole::kGate, 0) == nullptr, sparse);
    EXPECT_EQ(c.Experts(TensorRole::kExpertDown, 1).size(), sparse ? 4U : 0U);
    EXPECT_EQ(c.chat_template(), "{{ x }}");
    ASSERT_TRUE(c.tokenizer().has_value());
    EXPECT_EQ(c.tokenizer()->bos_id, 0);
    EXPECT_EQ(c.tokenizer()->eos_id, 1);
    EXPECT_TRUE((*checkpoint)->TakeTokenizer().ok());
    EXPECT_FALSE((*checkpoint)->TakeTokenizer().ok());
  }
}

TEST(Checkpoint, ProblemsAreNamedTogether) {
  const TempDirectory directory;
  const Json config = TinyConfig("Qwen3ForCausalLM");
  std::vector<TinyTensor> tensors = TinyTensors(*ConfigFromHf(config, nullptr));
  std::erase_if(tensors, [](const TinyTensor& t) {
    return t.name == "model.layers.1.self_attn.q_norm.weight";
  });
  for (TinyTensor& tensor : tensors) {
    if (tensor.name == "model.layers.0.mlp.up_proj.weight") tensor.shape = {64, 96};
  }
  tensors.push_back({"model.layers.2.extra.weight", {2}, {1.0F, 2.0F}});
  WriteTinyCheckpoint(directory, config, tensors);
  const std::string message = OpenError(directory.path());
  for (const char* says :
       {"model.layers.1.self_attn.q_norm.weight [32] is missing",
        "model.layers.0.mlp.up_proj.weight is [64, 96], expected [96, 64]",
        "model.layers.2.extra.weight [2] does not belong to architecture qwen3"}) {
    EXPECT_NE(message.find(says), std::string::npos) << message;
  }
}

TEST(Checkpoint, ManyProblemsAreCounted) {
  const TempDirectory directory;
  WriteTinyCheckpoint(directory, TinyConfig("LlamaForCausalLM"), {});
  EXPECT_NE(OpenError(directory.path()).find("; and 13 more"), std::string::npos)
      << OpenError(directory.path());
}

// transformers may keep the experts of a layer in two stacked tensors.
TEST(Checkpoint, FusedExpertsGiveTheSameViews) {
  const Json config = TinyConfig("Qwen3MoeForCausalLM");
  const ModelConfig shape = *ConfigFromHf(config, nullptr);
  const std::vector<TinyTensor> apart = TinyTensors(shape);
  std::vector<TinyTensor> fused;
  for (const TinyTensor& tensor : apart) {
    if (tensor.name.find(".experts.") == std::string::npos) fused.push_back(tensor);
  }
  const auto values = [&apart](const std::string& name) {
    return std::find_if(apart.begin(), apart.end(),
                        [&name](const TinyTensor& t) { return t.name == name; })
        ->values;
  };
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = Format("model.layers.{}.mlp.experts.", layer);
    TinyTensor gate_up{prefix + "gate_up_proj", {4, 64, 64}, {}};
    TinyTensor down{prefix + "down_proj", {4, 64, 32}, {}};
    for (int e = 0; e < 4; ++e) {
      for (const char* part : {"gate_proj", "up_proj"}) {
        const std::vector<float> one = values(Format("{}{}.{}.weight", prefix, e, part));
        gate_up.values.insert(gate_up.values.end(), one.begin(), one.end());
      }
      const std::vector<float> one = values(Format("{}{}.down_proj.weight", prefix, e));
      down.values.insert(down.values.end(), one.begin(), one.end());
    }
    fused.push_back(std::move(gate_up));
    fused.push_back(std::move(down));
  }
  const TempDirectory a, b;
  WriteTinyCheckpoint(a, config, apart);
  WriteTinyCheckpoint(b, config, fused);
  auto first = Checkpoint::Open(a.path());
  auto second = Checkpoint::Open(b.path());
  ASSERT_TRUE(first.ok() && second.ok()) << first.status().message() << second.status().message();
  for (const TensorRole role :
       {TensorRole::kExpertGate, TensorRole::kExpertUp, TensorRole::kExpertDown}) {
    for (int layer = 0; layer < 2; ++layer) {
      const auto x = (*first)->Experts(role, layer);
      const auto y = (*second)->Experts(role, layer);
      ASSERT_EQ(x.size(), 4U);
      ASSERT_EQ(y.size(), 4U);
      for (size_t e = 0; e < 4; ++e) {
        EXPECT_EQ(x[e].shape, y[e].shape);
        ASSERT_EQ(x[e].bytes, y[e].bytes);
        EXPECT_TRUE(std::equal(x[e].data, x[e].data + x[e].bytes, y[e].data));
      }
    }
  }
}

TEST(Checkpoint, PathErrors) {
  const TempDirectory directory;
  EXPECT_NE(OpenError(directory.File("absent")).find("no such file"), std::string::npos);
  EXPECT_NE(OpenError(directory.path()).find("neither config.json nor"), std::string::npos);
  directory.Write("model.bin", "x");
  EXPECT_NE(OpenError(directory.File("model.bin")).find("a .gguf or a .safetensors"),
            std::string::npos);
  directory.Write("a.gguf", "x");
  EXPECT_NE(OpenError(directory.path()).find("not a GGUF"), std::string::npos);
  directory.Write("b.gguf", "x");
  EXPECT_NE(OpenError(directory.path()).find("name one file"), std::string::npos);
  directory.Write("config.json", "{\"architectures\":");
  EXPECT_NE(OpenError(directory.path()).find("config.json"), std::string::npos);
}

TEST(Checkpoint, TokenizerMustFitTheEmbedding) {
  const TempDirectory directory;
  const Json config = TinyConfig("LlamaForCausalLM", R"({"vocab_size":100})");
  WriteTinyCheckpoint(directory, config, TinyTensors(*ConfigFromHf(config, nullptr)));
  EXPECT_NE(OpenError(directory.path()).find("260 tokens, the embedding 100 rows"),
            std::string::npos)
      << OpenError(directory.path());
}

// Metadata of a one-layer GGUF llama without tensors beyond the embedding.
void WriteGguf(const std::string& path, const std::string& architecture,
               const std::vector<std::pair<std::string, uint32_t>>& numbers) {
  auto writer = GgufWriter::Create(path);
  ASSERT_TRUE(writer.ok());
  (*writer)->SetString("general.architecture", architecture);
  for (const auto& [key, value] : numbers) (*writer)->SetU32(key, value);
  const int64_t shape[] = {10, 8};
  ASSERT_TRUE((*writer)->AddTensor("token_embd.weight", DType::kF32, shape).ok());
  ASSERT_TRUE((*writer)->WriteHeader().ok());
  ASSERT_TRUE((*writer)->WriteData(std::vector<std::byte>(320)).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
}

TEST(Checkpoint, GgufConfigurationErrorsNameTheKey) {
  const TempDirectory directory;
  const std::string path = directory.File("m.gguf");
  WriteGguf(path, "falcon", {});
  EXPECT_NE(OpenError(path).find("\"falcon\" is not known"), std::string::npos);
  WriteGguf(path, "llama", {});
  EXPECT_NE(OpenError(path).find("llama.block_count is missing"), std::string::npos);
  std::vector<std::pair<std::string, uint32_t>> numbers = {{"llama.block_count", 1},
                                                           {"llama.embedding_length", 8},
                                                           {"llama.feed_forward_length", 16},
                                                           {"llama.attention.head_count", 2},
                                                           {"llama.context_length", 64}};
  WriteGguf(path, "llama", numbers);
  EXPECT_NE(OpenError(path).find("blk.0.attn_q.weight [8, 8] is missing"), std::string::npos)
      << OpenError(path);
  const struct {
    const char* key;
    uint32_t value;
    const char* says;
  } cases[] = {
      {"llama.attention.head_count_kv", 3, "head_count_kv is 3"},
      {"llama.attention.key_length", 5, "head_dim is 5"},
      {"llama.attention.value_length", 2, "must be equal"},
      {"llama.attention.sliding_window", 32, "sliding-window"},
      {"llama.expert_count", 8, "expert_count is 8"},
      {"llama.rope.dimension_count", 6, "dimension_count is 6"},
      {"llama.rope.freq_base", 0, "freq_base is 0"},
      {"tokenizer.ggml.bos_token_id", 10, "bos_token_id is 10"},
      {"general.sampling.temp", 9, "general.sampling.temp is 9"},
  };
  for (const auto& c : cases) {
    auto with = numbers;
    with.emplace_back(c.key, c.value);
    WriteGguf(path, "llama", with);
    EXPECT_NE(OpenError(path).find(c.says), std::string::npos) << OpenError(path);
  }
}

}  // namespace
}  // namespace deepinfer
