// A DeepSeek-V4.1 checkpoint whose tensors and configuration are spelled as transformers spells
// them, experts one by one or stacked, is the released one to the bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/check.h"
#include "base/format.h"
#include "models/checkpoint.h"
#include "models/release_names.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_writer.h"
#include "tests/golden/v41_runner.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDirectory = "tests/golden/data/deepseek_v41";

struct Stored {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using Tensors = std::map<std::string, Stored>;

Tensors ReleasedTensors() {
  const auto file = SafetensorsFile::OpenDirectory(kDirectory);
  DI_CHECK(file.ok(), "{}", file.status().message());
  Tensors tensors;
  for (const TensorView& view : (*file)->tensors()) {
    tensors[view.name] = {view.dtype, view.shape, {view.data, view.data + view.bytes}};
  }
  return tensors;
}

void Replace(std::string_view from, std::string_view to, std::string* name) {
  const size_t at = name->find(from);
  if (at != std::string::npos) name->replace(at, from.size(), to);
}

// The names of transformers' modules.
std::string ModuleName(std::string name) {
  if (name == "head.weight") return "lm_head.weight";
  if (name == "embed.weight") return "model.embed_tokens.weight";
  if (name.ends_with(".scale")) name.replace(name.size() - 5, 5, "weight_scale_inv");
  constexpr std::pair<std::string_view, std::string_view> kRenamings[] = {
      {".attn_norm.", ".input_layernorm."},
      {".ffn_norm.", ".post_attention_layernorm."},
      {".hc_attn_", ".attn_hc."},
      {".hc_ffn_", ".ffn_hc."},
      {".attn.", ".self_attn."},
      {".ffn.", ".mlp."},
      {".attn_sink", ".sinks"},
      {".wq_a.", ".q_a_proj."},
      {".q_norm.", ".q_a_norm."},
      {".wq_b.", ".q_b_proj."},
      {".wkv.", ".kv_proj."},
      {".wo_a.", ".o_a_proj."},
      {".wo_b.", ".o_b_proj."},
      {".wgate.", ".gate_proj."},
      {".compressor.norm.", ".compressor.kv_norm."},
      {".indexer.wk.", ".indexer.k_proj."},
      {".gate.bias", ".gate.e_score_correction_bias"},
      {".w1.", ".gate_proj."},
      {".w3.", ".up_proj."},
      {".w2.", ".down_proj."},
  };
  for (const auto& [from, to] : kRenamings) Replace(from, to, &name);
  return "model." + name;
}

Tensors Renamed(const Tensors& from, std::string (*name_of)(std::string)) {
  Tensors to;
  for (const auto& [name, tensor] : from) to[name_of(name)] = tensor;
  return to;
}

// The experts of a layer in one tensor, gate above up.
void StackExperts(const std::string& layer, int experts, Tensors* tensors) {
  for (const char* suffix : {"weight", "weight_scale_inv"}) {
    for (const std::vector<std::string>& matrices :
         {std::vector<std::string>{"gate_proj", "up_proj"}, {"down_proj"}}) {
      Stored stacked;
      for (int e = 0; e < experts; ++e) {
        for (const std::string& matrix : matrices) {
          const std::string name = Format("{}.mlp.experts.{}.{}.{}", layer, e, matrix, suffix);
          const Stored& one = tensors->at(name);
          stacked.dtype = one.dtype;
          stacked.shape = {experts, one.shape[0] * static_cast<int64_t>(matrices.size()),
                           one.shape[1]};
          stacked.bytes.insert(stacked.bytes.end(), one.bytes.begin(), one.bytes.end());
          tensors->erase(name);
        }
      }
      const std::string name =
          Format("{}.mlp.experts.{}{}", layer, matrices.size() == 2 ? "gate_up_proj" : "down_proj",
                 std::string_view(suffix) == "weight" ? "" : "_scale_inv");
      (*tensors)[name] = std::move(stacked);
    }
  }
}

Json ReleasedConfig() { return ReadGoldenJson(std::string(kDirectory) + "/config.json"); }

Json Without(const Json& object, std::initializer_list<std::string_view> keys) {
  Json copy = Json::Object();
  for (const auto& [name, value] : object.members()) {
    if (std::find(keys.begin(), keys.end(), name) == keys.end()) copy.Set(name, value);
  }
  return copy;
}

// As transformers saves it: rotary fields by kind of layer, the other pad name, its own defaults.
Json ModuleConfig() {
  Json config = ReleasedConfig();
  const Json& old = *config.Find("text_config");
  Json text =
      Without(old, {"rope_theta", "compress_rope_theta", "rope_scaling", "engram_pad_token_id"});
  Json rope = Json::Object(), main = Json::Object(), compress = Json::Object();
  main.Set("rope_type", Json::String("default"));
  main.Set("rope_theta", *old.Find("rope_theta"));
  main.Set("partial_rotary_factor", Json::Double(0.25));
  for (const auto& [name, value] : old.Find("rope_scaling")->members()) {
    compress.Set(name == "type" ? "rope_type" : name, value);
  }
  compress.Set("rope_theta", *old.Find("compress_rope_theta"));
  compress.Set("attention_factor", Json::Double(1.0));
  rope.Set("main", std::move(main));
  rope.Set("compress", std::move(compress));
  text.Set("rope_parameters", std::move(rope));
  text.Set("engram_pad_id", *old.Find("engram_pad_token_id"));
  text.Set("gate_temp", Json::Double(1.0));
  text.Set("attention_bias", Json::Bool(false));
  config.Set("text_config", std::move(text));
  return config;
}

// A directory that is gone with the object.
class Directory {
 public:
  Directory(const Tensors& tensors, const Json& config) {
    static int next = 0;
    path_ = fs::temp_directory_path() / Format("deepinfer_names_{}_{}", ::getpid(), next++);
    fs::create_directories(path_);
    std::ofstream(path_ / "config.json") << config.Dump();
    fs::copy_file(fs::path(kDirectory) / "engram.json", path_ / "engram.json");
    auto writer = std::move(SafetensorsWriter::Create(path())).value();
    for (const auto& [name, tensor] : tensors) {
      const Status status = writer->AddTensor(name, tensor.dtype, tensor.shape);
      DI_CHECK(status.ok(), "{}", status.message());
    }
    const auto order = writer->Plan(uint64_t{1} << 30);
    for (const SafetensorsEntry& entry : order.value()) {
      DI_CHECK(writer->WriteData(tensors.at(entry.name).bytes).ok());
    }
    DI_CHECK(writer->Finish().ok());
  }
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

struct Numbers {
  V41Runner::Output output;
  V41Runner::Draft draft;
};

Numbers RunModel(const std::string& directory) {
  const Json golden = ReadGoldenJson(std::string(kDirectory) + "/golden.json");
  std::vector<int32_t> prompt;
  for (const Json& item : golden.Find("cases")->items()) {
    if (item.Find("name")->string() == "len40") prompt = GoldenIds(*item.Find("prompt"));
  }
  DI_CHECK(prompt.size() == 40);
  V41Runner runner(directory, {.device = "cpu", .threads = 2}, 1, 64);
  Numbers run{.output = runner.Generate(0, prompt, 8, 16)};
  const int position = static_cast<int>(prompt.size()) + 7;
  run.draft = runner.DraftBlock(0, position, run.output.greedy.back(), 0);
  return run;
}

void ExpectSame(const Numbers& a, const Numbers& b) {
  EXPECT_EQ(a.output.greedy, b.output.greedy);
  ASSERT_EQ(a.output.logits.size(), b.output.logits.size());
  EXPECT_EQ(memcmp(a.output.logits.data(), b.output.logits.data(), a.output.logits.size() * 4), 0);
  EXPECT_EQ(a.draft.tokens, b.draft.tokens);
  EXPECT_EQ(a.draft.confidence, b.draft.confidence);
}

TEST(V41Names, TransformersSpellingIsTheSameModel) {
  const Tensors released = ReleasedTensors();
  const Numbers want = RunModel(kDirectory);
  {
    SCOPED_TRACE("names of the release below model.");
    const Tensors tensors = Renamed(released, [](std::string name) -> std::string {
      return name == "head.weight" ? "lm_head.weight" : "model." + name;
    });
    ExpectSame(want, RunModel(Directory(tensors, ReleasedConfig()).path()));
  }
  {
    SCOPED_TRACE("names of the modules");
    ExpectSame(want, RunModel(Directory(Renamed(released, ModuleName), ModuleConfig()).path()));
  }
  {
    SCOPED_TRACE("stacked experts");
    Tensors tensors = Renamed(released, ModuleName);
    for (int layer = 0; layer < 10; ++layer) {
      StackExperts(Format("model.layers.{}", layer), 8, &tensors);
    }
    ExpectSame(want, RunModel(Directory(tensors, ModuleConfig()).path()));
  }
}

// The configuration as the text model alone saves it.
TEST(V41Names, TheTextConfigurationMayStandAlone) {
  Json text = *ModuleConfig().Find("text_config");
  text.Set("tie_word_embeddings", Json::Bool(false));
  const Directory directory(Renamed(ReleasedTensors(), ModuleName), text);
  const Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->config().architecture, "deepseek_v41");
  ExpectSame(RunModel(kDirectory), RunModel(directory.path()));
}

TEST(V41Names, NamesOfTheReleaseStay) {
  for (const auto& [name, tensor] : ReleasedTensors()) EXPECT_EQ(ReleaseName(name), name);
  EXPECT_EQ(ReleaseName("model.layers.3.self_attn.q_a_proj.weight"), "layers.3.attn.wq_a.weight");
  EXPECT_EQ(ReleaseName("model.mtp.1.attn_hc.scale"), "mtp.1.hc_attn_scale");
  EXPECT_EQ(ReleaseName("layers.2.mlp.shared_experts.down_proj.weight_scale_inv"),
            "layers.2.ffn.shared_experts.w2.scale");
  for (const char* odd : {"", ".", "layers", "layers.", "layers.0", "mtp..", "model.", "a.b.c"}) {
    EXPECT_LE(ReleaseName(odd).size(), std::string_view(odd).size()) << odd;
  }
}

TEST(V41Names, WhatDoesNotFitIsNamed) {
  const auto error = [](const Tensors& tensors) {
    return Checkpoint::Open(Directory(tensors, ReleasedConfig()).path()).status().message();
  };
  Tensors twice = ReleasedTensors();
  twice["model.norm.weight"] = twice.at("norm.weight");
  EXPECT_NE(error(twice).find("are both norm.weight of the release"), std::string::npos)
      << error(twice);
  Tensors odd = ReleasedTensors();
  odd["layers.0.mlp.experts.gate_up_proj"] = {DType::kI8, {2, 3, 1}, std::vector<std::byte>(6)};
  EXPECT_NE(error(odd).find("gate_up_proj is [2, 3, 1]; stacked experts are"), std::string::npos)
      << error(odd);
}

}  // namespace
}  // namespace deepinfer
