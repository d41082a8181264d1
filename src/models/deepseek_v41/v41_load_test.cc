// What a DeepSeek-V4.1 checkpoint may look like and what is refused: both spellings of the
// configuration, contradictions by field, tensors by name. Uses the reference checkpoint's files.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "base/check.h"
#include "models/checkpoint_test_util.h"
#include "models/deepseek_v41/v41_config.h"
#include "models/registry.h"

namespace deepinfer {
namespace {

constexpr const char* kReference = "tests/golden/data/deepseek_v41/";

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  DI_CHECK(file.good(), "{}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json ReferenceConfig() {
  Result<Json> json = Json::Parse(ReadText(std::string(kReference) + "config.json"));
  DI_CHECK(json.ok());
  return std::move(json).value();
}

Json Value(std::string_view text) {
  Result<Json> json = Json::Parse(text);
  DI_CHECK(json.ok(), "{}", text);
  return std::move(json).value();
}

Json Without(const Json& object, std::string_view key) {
  Json copy = Json::Object();
  for (const auto& [name, value] : object.members()) {
    if (name != key) copy.Set(name, value);
  }
  return copy;
}

// The reference configuration with one field of text_config replaced (or removed: empty text).
Json Changed(std::string_view key, std::string_view value) {
  Json config = ReferenceConfig();
  Json text = Without(*config.Find("text_config"), key);
  if (!value.empty()) text.Set(std::string(key), Value(value));
  config.Set("text_config", std::move(text));
  return config;
}

TEST(V41Config, ReadsTheReleasedShape) {
  const Result<V41Config> config = ReadV41Config(ReferenceConfig());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->boundary, 6);
  EXPECT_EQ(config->roles_of(3).kv_source, 2);
  EXPECT_EQ(config->roles_of(5).kv_source, 4);
  EXPECT_EQ(config->roles_of(7).index_source, 6);
  EXPECT_EQ(config->roles_of(9).index_source, 8);
  EXPECT_EQ(config->roles_of(9).kv_source, 6);
  EXPECT_EQ(config->norm_eps, 1e-20);
  EXPECT_EQ(config->draft.target_layers, (std::vector<int>{7, 8, 9}));
  EXPECT_EQ(config->image_id, 380);
}

TEST(V41Config, BothSpellingsAreOne) {
  const V41Config released = ReadV41Config(ReferenceConfig()).value();
  const auto same_rope = [&](const Json& json) {
    const Result<V41Config> other = ReadV41Config(json);
    ASSERT_TRUE(other.ok()) << other.status().message();
    EXPECT_EQ(other->main_rope, released.main_rope);
    EXPECT_EQ(other->compress_rope, released.compress_rope);
  };
  same_rope(Changed("rope_scaling",
                    R"({"rope_type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                        "original_max_position_embeddings": 32})"));
  Json parameters = Changed("rope_scaling", "");
  Json text = *parameters.Find("text_config");
  for (const char* key : {"rope_theta", "compress_rope_theta"}) text = Without(text, key);
  text.Set("rope_parameters", Value(R"({
    "main": {"rope_type": "default", "rope_theta": 10000},
    "compress": {"rope_type": "yarn", "rope_theta": 160000, "factor": 4, "beta_fast": 32,
                 "beta_slow": 1, "original_max_position_embeddings": 32}})"));
  parameters.Set("text_config", std::move(text));
  same_rope(parameters);
  EXPECT_NE(released.main_rope, released.compress_rope);

  Json pad = Changed("engram_pad_token_id", "");
  Json renamed = *pad.Find("text_config");
  renamed.Set("engram_pad_id", Json::Int(3));
  pad.Set("text_config", std::move(renamed));
  V41Config config = ReadV41Config(pad).value();
  const Status status = ReadV41Ngram(kReference, pad, &config);
  EXPECT_NE(status.message().find("engram_pad_token_id 3"), std::string::npos) << status.message();
}

TEST(V41Config, LayersPastTheListHaveRatioZero) {
  const Result<V41Config> longer =
      ReadV41Config(Changed("compress_ratios", "[0,0,2,2,2,2,1,1,1,1,0,0,0,0,0]"));
  EXPECT_TRUE(longer.ok()) << longer.status().message();
  const Result<V41Config> shorter =
      ReadV41Config(Changed("compress_ratios", "[0,0,2,2,2,2,1,1,1]"));
  ASSERT_TRUE(shorter.ok()) << shorter.status().message();
  EXPECT_EQ(shorter->roles_of(9).ratio, 0);
}

TEST(V41Config, ContradictionsNameTheField) {
  const struct {
    const char* key;
    const char* value;
    const char* says;
  } cases[] = {
      {"hidden_size", "", "text_config.hidden_size is missing"},
      {"head_dim", "48", "text_config.head_dim is 48"},
      {"qk_rope_head_dim", "65", "text_config.qk_rope_head_dim is 65"},
      {"o_groups", "3", "text_config.o_groups is 3"},
      {"num_key_value_heads", "2", "text_config.num_key_value_heads is 2"},
      {"rms_norm_eps", "0", "text_config.rms_norm_eps is 0"},
      {"rms_norm_eps", "\"small\"", "text_config.rms_norm_eps is \"small\""},
      {"compress_ratios", "[0,0,4,4,4,4,1,1,1,1]", "text_config.compress_ratios has 4"},
      {"compress_ratios", "[2,0,2,2,2,2,1,1,1,1]", "layer 0 has ratio 2 but no source"},
      {"compress_ratios", "[0,0,2,2,2,1,1,1,1,1]",
       "layer 5 has ratio 1, its source, layer 4, has 2"},
      {"compress_ratios", "[0,0,0,2,2,2,1,1,1,1]", "layer 2 is a source but its ratio"},
      {"kv_source_layer_ids", "[4,2,6]", "text_config.kv_source_layer_ids must ascend"},
      {"kv_source_layer_ids", "[2,4,60]", "text_config.kv_source_layer_ids has 60"},
      {"index_source_layer_ids", "[2,6,8]", "layer 4 has ratio 2 but no source"},
      {"candidate_source_layer_id", "7", "text_config.candidate_source_layer_id is 7"},
      {"candidate_source_layer_id", "4", "layer 6 chooses among the candidates of layer 4"},
      {"index_head_dim", "40", "text_config.index_head_dim is 40"},
      {"num_experts_per_tok", "9", "text_config.num_experts_per_tok is 9"},
      {"scoring_func", "\"softmax\"", "text_config.scoring_func is \"softmax\""},
      {"hidden_act", "\"gelu\"", "text_config.hidden_act is \"gelu\""},
      {"hc_mult", "9", "text_config.hc_mult is 9"},
      {"engram_num_embeddings", "[462]", "text_config.engram_num_embeddings has 1 numbers"},
      {"engram_max_ngram_size", "9", "text_config.engram_max_ngram_size is 9"},
      {"engram_layer_ids", "[1,7]", "layer 7 lies behind the boundary layer 6"},
      {"dspark_target_layer_ids", "[1,8,9]", "text_config.dspark_target_layer_ids must name"},
      {"dspark_noise_token_id", "384", "text_config.dspark_noise_token_id is 384"},
      {"rope_scaling", R"({"type": "llama3"})", "rope_type is \"llama3\""},
      {"rope_scaling", R"({"type": "yarn"})", "factor is missing"},
      {"num_hash_layers", "1", "text_config.num_hash_layers is 1"},
      {"compress_ratios", "[0,0,2,2,2,2,1,1,1,1,0,1]", "compress_ratios has 1 for layer 11"},
      {"gate_temp", "2", "text_config.gate_temp is not 1"},
      {"attention_bias", "true", "text_config.attention_bias is true"},
  };
  for (const auto& c : cases) {
    const Result<V41Config> config = ReadV41Config(Changed(c.key, c.value));
    ASSERT_FALSE(config.ok()) << c.key << " = " << c.value;
    EXPECT_NE(config.status().message().find(c.says), std::string::npos)
        << c.key << " = " << c.value << ": " << config.status().message();
  }
  Json quantized = ReferenceConfig();
  quantized.Set("quantization_config", Value(R"({"quant_method": "gptq"})"));
  EXPECT_NE(ReadV41Config(quantized).status().message().find("quant_method is \"gptq\""),
            std::string::npos);
}

// ---- the side file

TEST(V41Ngram, TheSideFileMustFit) {
  const Json reference = Value(ReadText(std::string(kReference) + "engram.json"));
  const struct {
    const char* key;
    const char* value;
    const char* says;
  } cases[] = {
      {"token_map", "[1, 2]", "token_map has 2 entries, vocab_size is 384"},
      {"token_map", "", "token_map is missing"},
      {"compressed_vocab_size", "331", "engram_compressed_vocab_size 330"},
      {"compressed_vocab_size", "12", "compressed_vocab_size is 12"},
      {"pad", "400", "pad is 400"},
      {"primes", "[[1],[1]]", "primes has 1 numbers in list 0"},
      {"multipliers", "[[9223372036854775807,1,1,1],[1,1,1,1]]", "overflows"},
      {"multipliers", "[[-1,1,1,1],[1,1,1,1]]", "-1 is not a whole number"},
      {"offsets", "[[0,67,138,211,290,400],[0,1,2,3,4,5]]", "reach beyond the 462 rows"},
  };
  for (const auto& c : cases) {
    TempDirectory directory;
    Json changed = Without(reference, c.key);
    if (*c.value != 0) changed.Set(c.key, Value(c.value));
    directory.Write("engram.json", changed.Dump());
    V41Config config = ReadV41Config(ReferenceConfig()).value();
    const Status status = ReadV41Ngram(directory.path(), ReferenceConfig(), &config);
    EXPECT_NE(status.message().find(c.says), std::string::npos)
        << c.key << ": " << status.message();
  }
  // Tables with other numbers of rows than the hashes name.
  for (const char* rows : {"[463, 630]", "[462, 1000]", "[461, 630]"}) {
    const Json changed = Changed("engram_num_embeddings", rows);
    V41Config config = ReadV41Config(changed).value();
    const Status status = ReadV41Ngram(kReference, changed, &config);
    EXPECT_NE(status.message().find("engram_num_embeddings"), std::string::npos) << rows;
  }
  TempDirectory empty;
  V41Config config = ReadV41Config(ReferenceConfig()).value();
  EXPECT_NE(ReadV41Ngram(empty.path(), ReferenceConfig(), &config).message().find("engram.json"),
            std::string::npos);
}

// ---- tensors

struct StoredTensor {
  Json entry;
  std::string bytes;
};
using Tensors = std::map<std::string, StoredTensor>;

Tensors ReferenceTensors() {
  Tensors tensors;
  for (const char* shard :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    const std::string file = ReadText(std::string(kReference) + shard);
    uint64_t header = 0;
    memcpy(&header, file.data(), sizeof(header));
    const Json json = Value(file.substr(8, header));
    for (const auto& [name, entry] : json.members()) {
      if (name == "__metadata__") continue;
      const std::vector<Json>& range = entry.Find("data_offsets")->items();
      const auto begin = static_cast<size_t>(*range[0].AsInt());
      const auto end = static_cast<size_t>(*range[1].AsInt());
      tensors[name] = {entry, file.substr(8 + header + begin, end - begin)};
    }
  }
  return tensors;
}

// Loads the reference with changed tensors; returns the error, empty when it loads.
std::string LoadChanged(const std::function<void(Tensors*)>& change,
                        std::string* draft_note = nullptr) {
  Tensors tensors = ReferenceTensors();
  change(&tensors);
  Json header = Json::Object();
  std::string data;
  for (auto& [name, tensor] : tensors) {
    Json entry = tensor.entry;
    Json range = Json::Array();
    range.Push(Json::Int(static_cast<int64_t>(data.size())));
    data += tensor.bytes;
    range.Push(Json::Int(static_cast<int64_t>(data.size())));
    entry.Set("data_offsets", std::move(range));
    header.Set(name, std::move(entry));
  }
  std::string text = header.Dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  TempDirectory directory;
  directory.Write("model.safetensors",
                  std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
  for (const char* name : {"config.json", "engram.json"}) {
    directory.Write(name, ReadText(std::string(kReference) + name));
  }
  Result<std::unique_ptr<Backend>> backend = CreateBackend({.device = "cpu", .threads = 1});
  DI_CHECK(backend.ok());
  const Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(directory.path());
  if (!checkpoint.ok()) return checkpoint.status().message();
  const Result<std::unique_ptr<Model>> model = LoadModel(**checkpoint, backend->get());
  if (!model.ok()) return model.status().message();
  if (draft_note != nullptr) *draft_note = (*model)->draft_info().note;
  return "";
}

TEST(V41Tensors, WhatIsWrongIsNamed) {
  EXPECT_EQ(LoadChanged([](Tensors*) {}), "");
  const auto expect = [](const char* says, const std::function<void(Tensors*)>& change) {
    const std::string message = LoadChanged(change);
    EXPECT_NE(message.find(says), std::string::npos) << "wanted: " << says << "\ngot: " << message;
  };
  expect("layers.3.attn.kv_norm.weight [64] is missing",
         [](Tensors* t) { t->erase("layers.3.attn.kv_norm.weight"); });
  expect("layers.4.ffn.experts.5.w3.weight [64, 64] is missing", [](Tensors* t) {
    t->erase("layers.4.ffn.experts.5.w3.weight");
    t->erase("layers.4.ffn.experts.5.w3.scale");
  });
  expect("layers.0.attn.extra [1] does not belong to architecture deepseek_v41", [](Tensors* t) {
    (*t)["layers.0.attn.extra"] = {Value(R"({"dtype": "F32", "shape": [1]})"), std::string(4, 0)};
  });
  expect("layers.6.attn.compressor.wgate.weight", [](Tensors* t) {
    (*t)["layers.6.attn.compressor.wgate.weight"] = t->at("layers.4.attn.compressor.wgate.weight");
  });
  expect("norm.weight is [32, 2], expected [64]", [](Tensors* t) {
    StoredTensor& norm = t->at("norm.weight");
    norm.entry.Set("shape", Value("[32, 2]"));
  });
  expect("layers.1.engram.embed.weight stands for [231, 64], expected [462, 32]", [](Tensors* t) {
    t->at("layers.1.engram.embed.weight").entry.Set("shape", Value("[231, 64]"));
    t->at("layers.1.engram.embed.scale").entry.Set("shape", Value("[231, 2]"));
  });
  expect("layers.2.attn.wq_a", [](Tensors* t) { t->erase("layers.2.attn.wq_a.scale"); });
  expect("layers.5.attn.wkv.weight",
         [](Tensors* t) { t->at("layers.5.attn.wkv.scale").bytes[1] = static_cast<char>(255); });
}

TEST(V41Tensors, WithoutDraftTensorsThereIsNoDrafting) {
  std::string note;
  EXPECT_EQ(LoadChanged(
                [](Tensors* t) {
                  std::erase_if(*t,
                                [](const auto& item) { return item.first.starts_with("mtp."); });
                },
                &note),
            "");
  EXPECT_NE(note.find("no mtp.* tensors"), std::string::npos) << note;
  // Some of them are not enough.
  const std::string message = LoadChanged([](Tensors* t) { t->erase("mtp.1.norm.weight"); });
  EXPECT_NE(message.find("mtp.1.norm.weight [64] is missing"), std::string::npos) << message;
}

}  // namespace
}  // namespace deepinfer
