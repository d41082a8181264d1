// For tests of this folder: a temporary directory and tiny Hugging Face checkpoints in it.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "models/checkpoint.h"
#include "tensor/block_formats.h"

namespace deepinfer {

class TempDirectory {
 public:
  TempDirectory() {
    static int next = 0;
    path_ = std::filesystem::temp_directory_path() /
            Format("deepinfer_models_{}_{}", ::getpid(), next++);
    std::filesystem::create_directories(path_);
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  std::string path() const { return path_.string(); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }
  void Write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  }

 private:
  std::filesystem::path path_;
};

// A tensor of a safetensors file to be written, BF16.
struct TinyTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

inline std::string SafetensorsText(const std::vector<TinyTensor>& tensors) {
  Json header = Json::Object();
  std::string data;
  for (const TinyTensor& tensor : tensors) {
    Json& entry = header.Set(tensor.name, Json::Object());
    entry.Set("dtype", Json::String("BF16"));
    Json& shape = entry.Set("shape", Json::Array());
    for (const int64_t extent : tensor.shape) shape.Push(Json::Int(extent));
    const auto begin = static_cast<int64_t>(data.size());
    for (const float value : tensor.values) {
      const uint16_t bits = FloatToBf16(value);
      data.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    }
    Json& offsets = entry.Set("data_offsets", Json::Array());
    offsets.Push(Json::Int(begin));
    offsets.Push(Json::Int(static_cast<int64_t>(data.size())));
  }
  const std::string text = header.Dump();
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data;
}

// Every tensor that `config` asks for, with values that differ from element to element.
inline std::vector<TinyTensor> TinyTensors(const ModelConfig& config) {
  std::vector<TinyTensor> tensors;
  uint32_t state = 1;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    TinyTensor tensor{std::move(name), std::move(shape), {}};
    for (int64_t i = 0; i < count; ++i) {
      state = state * 1664525U + 1013904223U;
      tensor.values.push_back(static_cast<float>(state >> 8) * 0x1p-24F - 0.5F);
    }
    tensors.push_back(std::move(tensor));
  };
  for (int r = 0; r < kNumTensorRoles; ++r) {
    const auto role = static_cast<TensorRole>(r);
    for (int layer = 0; layer < (IsLayerRole(role) ? config.layers : 1); ++layer) {
      const std::vector<int64_t> shape = ExpectedShape(config, role, layer);
      if (shape.empty()) continue;
      const int experts = IsExpertRole(role) ? config.moe.experts : 1;
      for (int e = 0; e < experts; ++e) {
        add(TensorName(CheckpointFormat::kSafetensors, role, layer, e), shape);
      }
    }
  }
  return tensors;
}

// A config.json of two layers; `extra` replaces and adds members.
inline Json TinyConfig(std::string_view hf_class, std::string_view extra = "{}") {
  Json config = Json::Object();
  config.Set("architectures", Json::Array()).Push(Json::String(std::string(hf_class)));
  const std::pair<const char*, int64_t> numbers[] = {{"num_hidden_layers", 2},
                                                     {"hidden_size", 64},
                                                     {"intermediate_size", 96},
                                                     {"num_attention_heads", 4},
                                                     {"num_key_value_heads", 2},
                                                     {"head_dim", 32},
                                                     {"vocab_size", 300},
                                                     {"max_position_embeddings", 128},
                                                     {"num_experts", 4},
                                                     {"num_experts_per_tok", 2},
                                                     {"moe_intermediate_size", 32},
                                                     {"eos_token_id", 1}};
  for (const auto& [key, value] : numbers) config.Set(key, Json::Int(value));
  const Result<Json> parsed = Json::Parse(extra);
  for (const auto& [key, value] : parsed->members()) config.Set(key, value);
  return config;
}

// Byte-level BPE over the 256 bytes and two merges, as tokenizer.json. "<s>" is 0, "</s>" is 1.
inline std::string TinyTokenizerJson() {
  Json vocab = Json::Object();
  vocab.Set("<s>", Json::Int(0));
  vocab.Set("</s>", Json::Int(1));
  int64_t id = 2;
  const auto add_code_point = [&vocab, &id](uint32_t code) {
    std::string piece;
    if (code < 0x80) {
      piece = static_cast<char>(code);
    } else {
      piece = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
    }
    vocab.Set(piece, Json::Int(id++));
  };
  uint32_t shifted = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    add_code_point(shown ? byte : shifted++);
  }
  vocab.Set("he", Json::Int(id++));
  vocab.Set("hel", Json::Int(id++));
  return Format(
      R"({{"added_tokens":[{{"id":0,"content":"<s>","special":true}},)"
      R"({{"id":1,"content":"</s>","special":true}}],"normalizer":null,)"
      R"("pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}},)"
      R"("decoder":{{"type":"ByteLevel"}},)"
      R"("model":{{"type":"BPE","vocab":{},"merges":[["h","e"],["he","l"]]}}}})",
      vocab.Dump());
}

inline void WriteTinyCheckpoint(const TempDirectory& directory, const Json& config,
                                const std::vector<TinyTensor>& tensors) {
  directory.Write("config.json", config.Dump());
  directory.Write("model.safetensors", SafetensorsText(tensors));
  directory.Write("tokenizer.json", TinyTokenizerJson());
  directory.Write(
      "tokenizer_config.json",
      R"({"bos_token":"<s>","eos_token":{"content":"</s>"},"chat_template":"{{ x }}"})");
}

}  // namespace deepinfer
