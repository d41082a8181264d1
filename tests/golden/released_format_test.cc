// The relatives of DeepSeek in the layouts of their releases: the same numbers under other names
// and in other types give the same logits to the bit; what does not fit is named.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/format.h"
#include "base/json.h"
#include "models/deepseek_v3/config.h"
#include "models/deepseek_v4/config.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"
#include "tensor/safetensors.h"
#include "tests/golden/golden_model.h"
#include "tests/harness/host_rows.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 32;
constexpr size_t kCases = 4;  // the shorter ones

struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::string Golden(const char* family) { return Format("tests/golden/data/{}", family); }

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json ReadConfig(const char* family) {
  Result<Json> json = Json::Parse(ReadText(Golden(family) + "/config.json"));
  DI_CHECK(json.ok(), "{}", json.status().message());
  return std::move(json).value();
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<RawTensor> ReadTensors(const char* family) {
  auto file = SafetensorsFile::Open(Golden(family) + "/model.safetensors");
  DI_CHECK(file.ok(), "{}", file.status().message());
  std::vector<RawTensor> tensors;
  for (const TensorView& view : (*file)->tensors()) {
    tensors.push_back({view.name,
                       std::string(Info(view.dtype).name),
                       view.shape,
                       {reinterpret_cast<const char*>(view.data), view.bytes}});
  }
  return tensors;
}

// A checkpoint of a golden family with other tensors and configuration.
class Variant {
 public:
  Variant(const Json& config, const std::vector<RawTensor>& tensors) {
    static int next = 0;
    path_ = fs::temp_directory_path() / Format("deepinfer_released_{}_{}", ::getpid(), next++);
    fs::create_directories(path_);
    Write("config.json", config.Dump());
    Json header = Json::Object();
    std::string data;
    for (const RawTensor& tensor : tensors) {
      Json& entry = header.Set(tensor.name, Json::Object());
      entry.Set("dtype", Json::String(tensor.dtype));
      Json& shape = entry.Set("shape", Json::Array());
      for (const int64_t extent : tensor.shape) shape.Push(Json::Int(extent));
      Json& offsets = entry.Set("data_offsets", Json::Array());
      offsets.Push(Json::Int(static_cast<int64_t>(data.size())));
      data += tensor.bytes;
      offsets.Push(Json::Int(static_cast<int64_t>(data.size())));
    }
    const std::string text = header.Dump();
    const uint64_t size = text.size();
    Write("model.safetensors",
          std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data);
  }
  ~Variant() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Variant(const Variant&) = delete;
  Variant& operator=(const Variant&) = delete;

  Result<std::unique_ptr<GoldenModel>> Open(ComputeDtype dtype) const {
    return GoldenModel::Open(path_.string(), {.device = "cpu", .threads = 2, .dtype = dtype});
  }

 private:
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  fs::path path_;
};

void ExpectSameLogits(GoldenModel* a, GoldenModel* b, const char* family) {
  std::vector<GoldenCase> cases = ReadGolden(Golden(family));
  cases.resize(kCases);
  for (GoldenCase& golden : cases) golden.greedy.resize(2);
  const std::vector<CaseOutput> want = a->Run(cases, {.batch = true});
  const std::vector<CaseOutput> got = b->Run(cases, {.batch = true});
  for (size_t i = 0; i < cases.size(); ++i) {
    ASSERT_EQ(want[i].logits.size(), got[i].logits.size());
    EXPECT_TRUE(std::all_of(got[i].logits.begin(), got[i].logits.end(),
                            [](float x) { return std::isfinite(x); }));
    EXPECT_EQ(
        memcmp(want[i].logits.data(), got[i].logits.data(), want[i].logits.size() * sizeof(float)),
        0)
        << "prompt of " << cases[i].prompt.size();
  }
}

enum class ScaleKind { kAny, kPowersOfTwo };

// Matrices of the layers to e4m3 codes with float32 scales of square blocks; `plain` gets the
// values that they stand for.
void QuantizeLayers(ScaleKind kind, std::vector<RawTensor>* codes, std::vector<RawTensor>* plain) {
  const std::vector<RawTensor> tensors = ReadTensors("deepseek_v3");
  for (const RawTensor& tensor : tensors) {
    if (!tensor.name.ends_with("_proj.weight") &&
        !tensor.name.ends_with("kv_a_proj_with_mqa.weight")) {
      codes->push_back(tensor);
      plain->push_back(tensor);
      continue;
    }
    const int64_t rows = tensor.shape[0];
    const int64_t cols = tensor.shape[1];
    std::vector<float> values(static_cast<size_t>(rows * cols));
    DequantizeRow(DType::kBF16, reinterpret_cast<const std::byte*>(tensor.bytes.data()),
                  rows * cols, values.data());
    const int64_t across = (cols + kBlock - 1) / kBlock;
    const int64_t down = (rows + kBlock - 1) / kBlock;
    std::vector<float> scales(static_cast<size_t>(down * across));
    for (int64_t i = 0; i < down * across; ++i) {
      const auto step = static_cast<float>(i % 5);
      scales[static_cast<size_t>(i)] =
          kind == ScaleKind::kAny ? 0.0011F + 0.0001F * step : std::exp2(-10.0F + step);
    }
    std::vector<uint8_t> stored(values.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto at = static_cast<size_t>(r * cols + c);
        const float scale = scales[static_cast<size_t>(r / kBlock * across + c / kBlock)];
        stored[at] = FloatToE4M3(values[at] / scale);
        values[at] = E4M3ToFloat(stored[at]) * scale;
      }
    }
    codes->push_back({tensor.name, "F8_E4M3", tensor.shape, BytesOf(stored)});
    codes->push_back({tensor.name + "_scale_inv", "F32", {down, across}, BytesOf(scales)});
    plain->push_back({tensor.name, "F32", tensor.shape, BytesOf(values)});
  }
}

TEST(ReleasedFormat, DeepseekV3WithBlockScalesEqualsItsDecodedTwin) {
  for (const ScaleKind kind : {ScaleKind::kAny, ScaleKind::kPowersOfTwo}) {
    std::vector<RawTensor> codes;
    std::vector<RawTensor> plain;
    QuantizeLayers(kind, &codes, &plain);
    // A draft layer beyond the last one, which is not run.
    codes.push_back({"model.layers.4.enorm.weight", "F32", {1}, BytesOf(std::vector<float>{1})});
    Json config = ReadConfig("deepseek_v3");
    const Variant released(config, codes);
    const Variant twin(config, plain);
    auto a = released.Open(ComputeDtype::kFloat32);
    auto b = twin.Open(ComputeDtype::kFloat32);
    ASSERT_TRUE(a.ok()) << a.status().message();
    ASSERT_TRUE(b.ok()) << b.status().message();
    ExpectSameLogits(b->get(), a->get(), "deepseek_v3");
  }
}

TEST(ReleasedFormat, DeepseekV3NamesWhatDoesNotFit) {
  std::vector<RawTensor> codes;
  std::vector<RawTensor> plain;
  QuantizeLayers(ScaleKind::kAny, &codes, &plain);
  const Json config = ReadConfig("deepseek_v3");
  const auto without = [&](std::string_view name) {
    std::vector<RawTensor> tensors = codes;
    std::erase_if(tensors, [&](const RawTensor& tensor) { return tensor.name == name; });
    DI_CHECK(tensors.size() + 1 == codes.size());
    return Variant(config, tensors).Open(ComputeDtype::kFloat32).status().message();
  };
  for (const char* name : {"model.layers.1.mlp.gate.e_score_correction_bias",
                           "model.layers.2.mlp.experts.3.up_proj.weight",
                           "model.layers.3.self_attn.kv_b_proj.weight", "lm_head.weight"}) {
    EXPECT_NE(without(name).find(Format("{} ", name)), std::string::npos) << without(name);
  }
  EXPECT_NE(without("model.layers.0.self_attn.o_proj.weight_scale_inv")
                .find("model.layers.0.self_attn.o_proj.scale is missing"),
            std::string::npos);

  std::vector<RawTensor> extra = codes;
  extra.push_back({"model.layers.9.odd", "F32", {1}, BytesOf(std::vector<float>{1})});
  std::string message = Variant(config, extra).Open(ComputeDtype::kFloat32).status().message();
  EXPECT_NE(message.find("model.layers.9.odd"), std::string::npos) << message;

  for (RawTensor& tensor : codes) {
    if (tensor.name != "model.layers.1.self_attn.q_b_proj.weight_scale_inv") continue;
    const float nan = std::nanf("");
    memcpy(tensor.bytes.data() + 4, &nan, sizeof nan);
  }
  message = Variant(config, codes).Open(ComputeDtype::kFloat32).status().message();
  EXPECT_NE(message.find("model.layers.1.self_attn.q_b_proj.weight_scale_inv"), std::string::npos)
      << message;
}

TEST(ReleasedFormat, DeepseekV4UnderTheNamesOfTheRelease) {
  std::vector<RawTensor> tensors = ReadTensors("deepseek_v4");
  for (RawTensor& tensor : tensors) {
    std::string& name = tensor.name;
    if (name.starts_with("model.")) name = name.substr(6);
    if (name.starts_with("embed_tokens.")) name = "embed.weight";
    if (name.starts_with("hc_head.hc_")) name = "hc_head_" + name.substr(11);
    const size_t at = name.find(".attn.norm.weight");
    if (at != std::string::npos) name = name.substr(0, at) + ".attn.kv_norm.weight";
  }
  tensors.push_back({"mtp.0.enorm.weight", "F32", {1}, BytesOf(std::vector<float>{1})});
  const Variant released(ReadConfig("deepseek_v4"), tensors);
  auto a = released.Open(ComputeDtype::kFloat32);
  ASSERT_TRUE(a.ok()) << a.status().message();
  auto b = GoldenModel::Open(Golden("deepseek_v4"),
                             {.device = "cpu", .threads = 2, .dtype = ComputeDtype::kFloat32});
  ASSERT_TRUE(b.ok()) << b.status().message();
  ExpectSameLogits(b->get(), a->get(), "deepseek_v4");
}

TEST(ReleasedFormat, DeepseekV4RefusesExpertsThatAreNotThere) {
  std::vector<RawTensor> tensors = ReadTensors("deepseek_v4");
  for (RawTensor& tensor : tensors) {
    if (tensor.name != "model.layers.1.ffn.gate.tid2eid") continue;
    const int64_t wrong = 16;
    memcpy(tensor.bytes.data() + 8 * 7, &wrong, sizeof wrong);
  }
  const std::string message =
      Variant(ReadConfig("deepseek_v4"), tensors).Open(ComputeDtype::kFloat32).status().message();
  EXPECT_NE(message.find("model.layers.1.ffn.gate.tid2eid has expert 16"), std::string::npos)
      << message;
}

// A small DeepSeek V4 as the release stores one: FP8 and FP4 with exponents, no transformers names.
class ReleasedV4 {
 public:
  enum class Draft { kNone, kRandom };
  explicit ReleasedV4(const Json& config, Draft draft = Draft::kNone) {
    Plain("embed.weight", {64, 64}, 1.0F);
    for (int layer = 0; layer < 3; ++layer) AddLayer(Format("layers.{}.", layer), layer);
    AddHead("");
    Plain("head.weight", {64, 64}, 0.3F);
    Plain("mtp.0.enorm.weight", {64}, 1.0F);
    if (draft == Draft::kRandom) {
      Plain("mtp.0.hnorm.weight", {64}, 1.0F);
      Fp8("mtp.0.e_proj", 64, 64);
      Fp8("mtp.0.h_proj", 64, 64);
      AddLayer("mtp.0.", kDraftLayer);
      AddHead("mtp.0.");
    }
    variant_ = std::make_unique<Variant>(config, tensors_);
  }
  // One layer, and a draft layer of the same weights that copies the embedding of the next token
  // into every stream: it says what the model would of the text without its first token.
  static ReleasedV4 Echo() {
    Json config = Config();
    config.Set("num_hidden_layers", Json::Int(1));
    config.Set("num_hash_layers", Json::Int(0));
    config.Set("quantization_config", Json());
    ReleasedV4 echo;
    std::vector<float> signs;
    for (int i = 0; i < 64 * 64; ++i) signs.push_back(echo.Next() > 0.0F ? 1.0F : -1.0F);
    echo.tensors_.push_back({"embed.weight", "F32", {64, 64}, BytesOf(signs)});
    for (const char* at : {"layers.0.", "mtp.0."}) {
      echo.state_ = 7;
      echo.AddLayer(at, kDraftLayer);
      echo.AddHead(std::string_view(at) == "mtp.0." ? at : "");
    }
    echo.Plain("head.weight", {64, 64}, 0.3F);
    std::vector<float> identity(64 * 64, 0.0F);
    for (size_t i = 0; i < 64; ++i) identity[i * 65] = 1.0F;
    const std::vector<float> zeros(64 * 64, 0.0F);
    const std::vector<float> ones(64, 1.0F);
    echo.tensors_.push_back({"mtp.0.e_proj.weight", "F32", {64, 64}, BytesOf(identity)});
    echo.tensors_.push_back({"mtp.0.h_proj.weight", "F32", {64, 64}, BytesOf(zeros)});
    echo.tensors_.push_back({"mtp.0.enorm.weight", "F32", {64}, BytesOf(ones)});
    echo.tensors_.push_back({"mtp.0.hnorm.weight", "F32", {64}, BytesOf(ones)});
    echo.variant_ = std::make_unique<Variant>(config, echo.tensors_);
    return echo;
  }
  static Json Config() {
    Result<Json> json = Json::Parse(
        R"({"architectures":["DeepseekV4ForCausalLM"],"num_hidden_layers":3,"hidden_size":64,
            "vocab_size":64,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":128,
            "qk_rope_head_dim":64,"q_lora_rank":32,"o_groups":2,"o_lora_rank":128,
            "sliding_window":8,"compress_ratios":[0,4,128,0],"index_n_heads":2,
            "index_head_dim":64,"index_topk":5,"n_routed_experts":4,"n_shared_experts":1,
            "num_experts_per_tok":2,"moe_intermediate_size":32,"num_hash_layers":1,
            "routed_scaling_factor":1.5,"max_position_embeddings":4096,
            "rope_scaling":{"type":"yarn","factor":16,"original_max_position_embeddings":64},
            "num_nextn_predict_layers":1,
            "quantization_config":{"quant_method":"fp8"},"eos_token_id":1})");
    DI_CHECK(json.ok(), "{}", json.status().message());
    return std::move(json).value();
  }
  std::unique_ptr<GoldenModel> Open(ComputeDtype dtype) const {
    auto model = variant_->Open(dtype);
    DI_CHECK(model.ok(), "{}", model.status().message());
    return std::move(model).value();
  }

 private:
  static constexpr int kDraftLayer = 9;  // sees its window alone, chooses experts by score

  ReleasedV4() = default;
  float Next() {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<float>(state_ >> 8) * 0x1p-23F - 1.0F;
  }
  void Plain(const std::string& name, const std::vector<int64_t>& shape, float scale) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(Next() * scale);
    tensors_.push_back({name, "F32", shape, BytesOf(values)});
  }
  void Fp8(const std::string& base, int64_t rows, int64_t cols) {
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < rows * cols; ++i) codes.push_back(FloatToE4M3(Next()));
    const int64_t down = (rows + 127) / 128;
    const int64_t across = (cols + 127) / 128;
    std::vector<uint8_t> scales;
    for (int64_t i = 0; i < down * across; ++i) {
      scales.push_back(static_cast<uint8_t>(124 + i % 2));
    }
    tensors_.push_back({base + ".weight", "F8_E4M3", {rows, cols}, BytesOf(codes)});
    tensors_.push_back({base + ".scale", "F8_E8M0", {down, across}, BytesOf(scales)});
  }
  void Fp4(const std::string& base, int64_t rows, int64_t cols) {
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < rows * cols / 2; ++i) {
      codes.push_back(static_cast<uint8_t>((Next() + 1.0F) * 127.0F));
    }
    std::vector<uint8_t> scales;
    for (int64_t i = 0; i < rows * cols / 32; ++i) {
      scales.push_back(static_cast<uint8_t>(123 + i % 3));
    }
    tensors_.push_back({base + ".weight", "I8", {rows, cols / 2}, BytesOf(codes)});
    tensors_.push_back({base + ".scale", "F8_E8M0", {rows, cols / 32}, BytesOf(scales)});
  }
  void Hyper(const std::string& at, int64_t coefficients, int64_t scales) {
    Plain(at + "fn", {coefficients, 256}, 0.1F);
    Plain(at + "base", {coefficients}, 1.0F);
    Plain(at + "scale", {scales}, 1.0F);
  }
  void AddHead(const std::string& at) {
    Hyper(at + "hc_head_", 4, 1);
    Plain(at + "norm.weight", {64}, 1.0F);
  }
  void Compressor(const std::string& at, int64_t ratio, int64_t width, int64_t dim) {
    Plain(at + "wkv.weight", {width, 64}, 0.3F);
    Plain(at + "wgate.weight", {width, 64}, 0.3F);
    Plain(at + "ape", {ratio, width}, 1.0F);
    Plain(at + "norm.weight", {dim}, 1.0F);
  }
  void AddLayer(const std::string& at, int layer) {
    Hyper(at + "hc_attn_", 24, 3);
    Hyper(at + "hc_ffn_", 24, 3);
    Plain(at + "attn_norm.weight", {64}, 1.0F);
    Plain(at + "ffn_norm.weight", {64}, 1.0F);
    Fp8(at + "attn.wq_a", 32, 64);
    Plain(at + "attn.q_norm.weight", {32}, 1.0F);
    Fp8(at + "attn.wq_b", 256, 32);
    Fp8(at + "attn.wkv", 128, 64);
    Plain(at + "attn.kv_norm.weight", {128}, 1.0F);
    Fp8(at + "attn.wo_a", 256, 128);
    Fp8(at + "attn.wo_b", 64, 256);
    Plain(at + "attn.attn_sink", {2}, 1.0F);
    if (layer == 1) {
      Compressor(at + "attn.compressor.", 4, 256, 128);
      Compressor(at + "attn.indexer.compressor.", 4, 128, 64);
      Fp8(at + "attn.indexer.wq_b", 128, 32);
      Plain(at + "attn.indexer.weights_proj.weight", {2, 64}, 0.3F);
    } else if (layer == 2) {
      Compressor(at + "attn.compressor.", 128, 128, 128);
    }
    Plain(at + "ffn.gate.weight", {4, 64}, 0.3F);
    if (layer == 0) {
      std::vector<int32_t> ids;
      for (int i = 0; i < 64 * 2; ++i) ids.push_back((i * 3 + i / 2) % 4);
      tensors_.push_back({at + "ffn.gate.tid2eid", "I32", {64, 2}, BytesOf(ids)});
    } else {
      Plain(at + "ffn.gate.bias", {4}, 0.3F);
    }
    for (int e = 0; e < 4; ++e) {
      const std::string expert = Format("{}ffn.experts.{}.", at, e);
      Fp4(expert + "w1", 32, 64);
      Fp4(expert + "w3", 32, 64);
      Fp4(expert + "w2", 64, 32);
    }
    Fp8(at + "ffn.shared_experts.w1", 32, 64);
    Fp8(at + "ffn.shared_experts.w3", 32, 64);
    Fp8(at + "ffn.shared_experts.w2", 64, 32);
  }

  uint32_t state_ = 1;
  std::vector<RawTensor> tensors_;
  std::unique_ptr<Variant> variant_;
};

// 140 tokens: an entry of 128, more entries of four than are chosen.
std::vector<GoldenCase> LongCases() {
  std::vector<GoldenCase> cases(2);
  for (int i = 0; i < 140; ++i) cases[0].prompt.push_back(i * 7 % 64);
  for (int i = 0; i < 33; ++i) cases[1].prompt.push_back(i * 5 % 64);
  for (GoldenCase& golden : cases) golden.greedy.resize(3);
  return cases;
}

TEST(ReleasedFormat, DeepseekV4RoundsAsTrainedWhateverTheChunks) {
  const ReleasedV4 released(ReleasedV4::Config());
  const std::vector<GoldenCase> cases = LongCases();
  for (const ComputeDtype dtype : {ComputeDtype::kFloat32, ComputeDtype::kAuto}) {
    const auto model = released.Open(dtype);
    const std::vector<CaseOutput> whole = model->Run(cases, {});
    for (const RunMode& mode : {RunMode{.chunk = 1}, RunMode{.chunk = 7, .batch = true}}) {
      const std::vector<CaseOutput> other = model->Run(cases, mode);
      for (size_t i = 0; i < cases.size(); ++i) {
        ASSERT_EQ(whole[i].logits.size(), other[i].logits.size());
        EXPECT_EQ(memcmp(whole[i].logits.data(), other[i].logits.data(),
                         whole[i].logits.size() * sizeof(float)),
                  0);
        EXPECT_TRUE(std::isfinite(whole[i].logits.back()));
      }
    }
  }
}

// The same weights without quantization_config are the same model without rounding: close, not
// equal.
TEST(ReleasedFormat, DeepseekV4RoundsOnlyWhereTheConfigurationSaysSo) {
  Json plain = ReleasedV4::Config();
  plain.Set("quantization_config", Json());
  const std::vector<GoldenCase> cases = LongCases();
  const auto rounded = ReleasedV4(ReleasedV4::Config()).Open(ComputeDtype::kFloat32);
  const auto exact = ReleasedV4(plain).Open(ComputeDtype::kFloat32);
  const std::vector<float> a = rounded->Run(cases, {})[1].logits;
  const std::vector<float> b = exact->Run(cases, {})[1].logits;
  ASSERT_EQ(a.size(), b.size());
  double difference = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    size += double{b[i]} * double{b[i]};
  }
  EXPECT_GT(difference, 1e-8 * size);
  EXPECT_LT(difference, 0.05 * size);
}

// Text that is run in pieces, each after a run with wrong tokens behind it that is taken back, and
// the draft that follows.
std::vector<float> DraftLogits(GoldenModel* golden, const std::vector<int32_t>& text,
                               int32_t anchor, int chunk, int rejected) {
  Model& model = golden->model();
  model.EnableDrafting();
  HostRows rows(&golden->backend(), model.cache_layout(), 2, 160);
  const auto length = static_cast<int>(text.size());
  StepInput step;
  for (int start = 0; start < length; start += chunk) {
    const auto begin = text.begin() + start;
    const int count = std::min(chunk, length - start);
    std::vector<int32_t> tokens(begin, begin + count);
    if (rejected > 0) {  // run wrong tokens first
      std::vector<int32_t> wrong = tokens;
      for (int i = 0; i < rejected; ++i) wrong.push_back(i + 1);
      const HostRows::Query query{.sequence = 1, .start = start, .tokens = wrong};
      model.Forward(rows.Step({&query, 1}));
    }
    const HostRows::Query query{.sequence = 1, .start = start, .tokens = tokens};
    step = rows.Step({&query, 1});
    model.Forward(step);
  }
  std::vector<float> logits(static_cast<size_t>(golden->vocab()));
  const int32_t slot = 1;
  DraftInput input{.rows = 1, .anchor = &anchor, .position = &length, .slot = &slot};
  input.cache_slots = step.cache_slots;
  input.layout = step.layout;
  input.choose = [](void* context, int, int, float* of_row) {
    std::vector<float>& to = *static_cast<std::vector<float>*>(context);
    std::copy(of_row, of_row + to.size(), to.begin());
    return int32_t{3};
  };
  input.context = &logits;
  int32_t token = -1;
  float confidence = 1.0F;
  model.DraftBlock(input, {.token = &token, .confidence = &confidence});
  EXPECT_EQ(token, 3);
  return logits;
}

std::vector<int32_t> SomeText(int length) {
  std::vector<int32_t> text;
  for (int i = 0; i < length; ++i) text.push_back((i * 11 + i / 3) % 64);
  return text;
}

TEST(ReleasedFormat, DeepseekV4DraftsWhateverTheChunks) {
  const ReleasedV4 released(ReleasedV4::Config(), ReleasedV4::Draft::kRandom);
  const auto model = released.Open(ComputeDtype::kAuto);
  ASSERT_EQ(model->model().draft_info().block, 1);
  for (const int length : {1, 2, 40}) {
    const std::vector<int32_t> text = SomeText(length);
    const std::vector<float> whole = DraftLogits(model.get(), text, 5, 1000, 0);
    for (const auto& [chunk, rejected] : {std::pair{1, 0}, {7, 0}, {1, 3}, {5, 11}}) {
      const std::vector<float> other = DraftLogits(model.get(), text, 5, chunk, rejected);
      EXPECT_EQ(memcmp(whole.data(), other.data(), whole.size() * sizeof(float)), 0)
          << length << " tokens in chunks of " << chunk << ", " << rejected << " taken back";
    }
  }
}

TEST(ReleasedFormat, DeepseekV4DraftLayerIsABlockOverTheNextToken) {
  const ReleasedV4 echo = ReleasedV4::Echo();
  const auto model = echo.Open(ComputeDtype::kFloat32);
  const std::vector<int32_t> text = SomeText(30);
  const int32_t anchor = 5;
  const std::vector<float> got = DraftLogits(model.get(), text, anchor, 4, 0);
  std::vector<GoldenCase> cases(1);
  cases[0].prompt.assign(text.begin() + 1, text.end());
  cases[0].prompt.push_back(anchor);
  cases[0].greedy.resize(1);
  const std::vector<float> all = model->Run(cases, {})[0].logits;
  ASSERT_EQ(all.size() % got.size(), 0U);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], all[all.size() - got.size() + i], 2e-4) << "id " << i;
  }
}

TEST(ReleasedFormat, DeepseekV4WithoutDraftTensorsSaysSo) {
  const ReleasedV4 released(ReleasedV4::Config());
  const auto model = released.Open(ComputeDtype::kAuto);
  EXPECT_EQ(model->model().draft_info().block, 0);
  EXPECT_NE(model->model().draft_info().note.find("mtp.0"), std::string::npos);
}

TEST(DeepseekConfig, BothSpellingsOfV4) {
  const Result<Json> json = Json::Parse(
      R"({"num_hidden_layers":4,"hidden_size":4096,"vocab_size":129280,"num_attention_heads":64,
          "num_key_value_heads":1,"head_dim":512,"qk_rope_head_dim":64,"q_lora_rank":1024,
          "o_groups":8,"o_lora_rank":1024,"sliding_window":128,
          "compress_ratios":[0,4,128,4,0],"compress_rope_theta":160000,"rope_theta":10000,
          "rope_scaling":{"type":"yarn","factor":16,"beta_fast":32,"beta_slow":1,
                          "original_max_position_embeddings":65536},
          "index_n_heads":64,"index_head_dim":128,"index_topk":512,"n_routed_experts":256,
          "n_shared_experts":1,"num_experts_per_tok":6,"moe_intermediate_size":2048,
          "num_hash_layers":3,"scoring_func":"sqrtsoftplus","topk_method":"noaux_tc",
          "norm_topk_prob":true,"routed_scaling_factor":1.5,"swiglu_limit":10.0,"hc_mult":4,
          "hc_sinkhorn_iters":20,"hc_eps":1e-6,"rms_norm_eps":1e-6,"num_nextn_predict_layers":1,
          "quantization_config":{"quant_method":"fp8"}})");
  ASSERT_TRUE(json.ok());
  const Result<DeepseekV4Config> released = ReadDeepseekV4Config(*json);
  ASSERT_TRUE(released.ok()) << released.status().message();
  EXPECT_EQ(released->rounding, DeepseekV4Config::Rounding::kAsTrained);
  EXPECT_EQ(released->layer[1].past, DeepseekV4Config::Past::kChosen);
  EXPECT_EQ(released->layer[2].past, DeepseekV4Config::Past::kEveryEntry);
  EXPECT_EQ(released->layer[2].ratio, 128);
  EXPECT_TRUE(released->layer[2].hashed);
  EXPECT_FALSE(released->layer[3].hashed);
  // The correction range of YaRN on 64 rotated elements runs from pair 15 to pair 25.
  const std::vector<float>& freq = released->compress_rope.inv_freq;
  const auto plain = [](int i) { return std::pow(160000.0, -2.0 * i / 64.0); };
  EXPECT_FLOAT_EQ(freq[15], static_cast<float>(plain(15)));
  EXPECT_FLOAT_EQ(freq[20], static_cast<float>(plain(20) / 16 * 0.5 + plain(20) * 0.5));
  EXPECT_FLOAT_EQ(freq[25], static_cast<float>(plain(25) / 16));
  EXPECT_FLOAT_EQ(released->main_rope.inv_freq[1], std::pow(10000.0F, -2.0F / 64.0F));

  const Result<DeepseekV4Config> golden = ReadDeepseekV4Config(ReadConfig("deepseek_v4"));
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  EXPECT_EQ(golden->rounding, DeepseekV4Config::Rounding::kNone);
  EXPECT_EQ(golden->layer[2].ratio, 32);
  EXPECT_TRUE(golden->layer[1].hashed);
  EXPECT_FALSE(golden->layer[2].hashed);
}

TEST(DeepseekConfig, ContradictionsAreNamed) {
  const auto v3 = [](const char* key, Json value) {
    Json config = ReadConfig("deepseek_v3");
    config.Set(key, std::move(value));
    return ReadDeepseekV3Config(config).status();
  };
  EXPECT_EQ(v3("n_group", Json::Int(3)).param(), "n_group");
  EXPECT_EQ(v3("topk_group", Json::Int(9)).param(), "topk_group");
  EXPECT_EQ(v3("num_experts_per_tok", Json::Int(9)).param(), "topk_group");
  EXPECT_EQ(v3("qk_rope_head_dim", Json::Int(7)).param(), "qk_rope_head_dim");
  EXPECT_EQ(v3("scoring_func", Json::String("softmax")).param(), "scoring_func");
  EXPECT_EQ(v3("kv_lora_rank", Json::Int(0)).param(), "kv_lora_rank");
  const auto v4 = [](const char* key, Json value) {
    Json config = ReadConfig("deepseek_v4");
    config.Set(key, std::move(value));
    return ReadDeepseekV4Config(config).status();
  };
  EXPECT_EQ(v4("o_groups", Json::Int(3)).param(), "o_groups");
  EXPECT_EQ(v4("num_hidden_layers", Json::Int(6)).param(), "layer_types");
  EXPECT_EQ(v4("num_key_value_heads", Json::Int(2)).param(), "num_key_value_heads");
  EXPECT_EQ(v4("hc_mult", Json::Int(99)).param(), "hc_mult");
  EXPECT_EQ(v4("scoring_func", Json::String("sigmoid")).param(), "scoring_func");
  EXPECT_EQ(v4("quantization_config", Json::Object()).param(), "head_dim");
  Json rates = Json::Object();
  rates.Set("compressed_sparse_attention", Json::Int(12));
  EXPECT_EQ(v4("compress_rates", std::move(rates)).param(), "compress_rates");
}

// YaRN with mscale_all_dim enlarges the scale of the scores by its square.
TEST(DeepseekConfig, MagnitudeOfV3) {
  Json config = ReadConfig("deepseek_v3");
  const Result<Json> scaling = Json::Parse(
      R"({"rope_type":"yarn","factor":40,"original_max_position_embeddings":4096,"mscale":1.0,
          "mscale_all_dim":1.0,"beta_fast":32,"beta_slow":1,"rope_theta":10000})");
  config.Set("rope_parameters", *scaling);
  const Result<DeepseekV3Config> read = ReadDeepseekV3Config(config);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const double magnitude = 0.1 * std::log(40.0) + 1.0;
  EXPECT_FLOAT_EQ(read->softmax_scale, static_cast<float>(magnitude * magnitude / std::sqrt(24.0)));
  EXPECT_FLOAT_EQ(read->rope.attention_factor, 1.0F);
}

}  // namespace
}  // namespace deepinfer
