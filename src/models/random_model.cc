#include "models/random_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/rng.h"
#include "models/quantize_metadata.h"
#include "models/quantize_types.h"
#include "tensor/block_formats.h"
#include "tensor/gguf_writer.h"

namespace deepinfer {
namespace {

struct Preset {
  std::string_view name;
  ModelFamily family;
  int layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context;
  bool tied;
  int experts, top_k, expert_intermediate;
};

constexpr std::array<Preset, 4> kPresets = {{
    {"smol", ModelFamily::kLlama, 30, 576, 1536, 9, 3, 64, 49152, 8192, true, 0, 0, 0},
    {"qwen", ModelFamily::kQwen3, 28, 1024, 3072, 16, 8, 128, 151936, 40960, true, 0, 0, 0},
    {"moe", ModelFamily::kQwen3Moe, 12, 512, 512, 8, 2, 64, 32768, 8192, false, 64, 6, 512},
    {"tiny", ModelFamily::kQwen3Moe, 2, 256, 256, 4, 2, 64, 512, 512, false, 4, 2, 256},
}};

constexpr float kDeviation = 0.02F;  // of every weight, as trained models begin

ModelConfig ConfigOf(const Preset& preset) {
  ModelConfig c;
  c.family = preset.family;
  c.architecture = preset.family == ModelFamily::kLlama   ? "llama"
                   : preset.family == ModelFamily::kQwen3 ? "qwen3"
                                                          : "qwen3_moe";
  c.name = Format("random {}", preset.name);
  c.layers = preset.layers;
  c.hidden = preset.hidden;
  c.intermediate = preset.intermediate;
  c.heads = preset.heads;
  c.kv_heads = preset.kv_heads;
  c.head_dim = preset.head_dim;
  c.vocab = preset.vocab;
  c.context_max = preset.context;
  c.tied_head = preset.tied;
  c.qk_norm = preset.family != ModelFamily::kLlama;
  c.rope.dim = preset.head_dim;
  c.rope.theta = 1e6;
  c.moe.experts = preset.experts;
  c.moe.top_k = preset.top_k;
  c.moe.intermediate = preset.expert_intermediate;
  if (preset.experts > 0) c.moe.sparse_layer.assign(static_cast<size_t>(preset.layers), 1);
  return c;
}

// Byte-level BPE: the 256 bytes, then words of two, three, ... letters, each made from the word
// without its last letter and that letter.
TokenizerSpec SyntheticTokenizer(int vocab) {
  TokenizerSpec spec;
  spec.vocab = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    AddedToken added;
    added.id = static_cast<TokenId>(id);
    added.content = spec.vocab[id];
    added.special = true;
    spec.added.push_back(std::move(added));
  }
  uint32_t shifted = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const uint32_t code = shown ? byte : shifted++;
    if (code < 0x80) {
      spec.vocab.emplace_back(1, static_cast<char>(code));
    } else {
      spec.vocab.push_back(
          {static_cast<char>(0xC0U | (code >> 6)), static_cast<char>(0x80U | (code & 63U))});
    }
  }
  std::vector<std::string> shorter;
  for (char c = 'a'; c <= 'z'; ++c) shorter.emplace_back(1, c);
  const auto size = static_cast<size_t>(vocab);
  while (spec.vocab.size() < size) {
    std::vector<std::string> longer;
    for (size_t i = 0; i < shorter.size() && spec.vocab.size() < size; ++i) {
      for (char c = 'a'; c <= 'z' && spec.vocab.size() < size; ++c) {
        longer.push_back(shorter[i] + c);
        spec.vocab.push_back(longer.back());
        spec.merges.emplace_back(shorter[i], std::string(1, c));
      }
    }
    shorter = std::move(longer);
  }
  PreTokenizerStep byte_level;
  byte_level.kind = PreTokenizerStep::Kind::kByteLevel;
  spec.pre_tokenizers.push_back(std::move(byte_level));
  spec.bos_id = 0;
  spec.eos_id = 2;
  spec.pad_id = 0;
  return spec;
}

constexpr std::string_view kChatTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

// Random stored bytes whose decoded values are spread evenly around zero with kDeviation. Blocks
// are filled as they are stored: encoding hundreds of millions of floats would take minutes.
class BlockFiller {
 public:
  BlockFiller(uint64_t seed, uint32_t tensor) : seed_(seed), tensor_(tensor) {}

  void Fill(DType dtype, size_t bytes, std::byte* out) {
    const auto block_bytes = static_cast<size_t>(Info(dtype).block_bytes);
    if (Info(dtype).block_elements == 1) return FillPlain(dtype, bytes / block_bytes, out);
    FillRandom(out, bytes);
    for (size_t at = 0; at < bytes; at += block_bytes) SetScales(dtype, out + at);
  }

 private:
  uint32_t Word() {
    if (used_ == 4) {
      words_ = Philox4x32(seed_, {static_cast<uint32_t>(counter_),
                                  static_cast<uint32_t>(counter_ >> 32), tensor_, 0});
      ++counter_;
      used_ = 0;
    }
    return words_[used_++];
  }

  void FillRandom(std::byte* out, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 4) {
      const uint32_t word = Word();
      std::memcpy(out + at, &word, std::min<size_t>(4, bytes - at));
    }
  }

  void FillPlain(DType dtype, size_t count, std::byte* out) {
    constexpr float kHalfWidth = kDeviation * 1.7320508F;  // of an even spread
    for (size_t i = 0; i < count; ++i) {
      const float value = (static_cast<float>(UniformOpen(Word())) * 2.0F - 1.0F) * kHalfWidth;
      if (dtype == DType::kF32) {
        std::memcpy(out + 4 * i, &value, 4);
        continue;
      }
      const uint16_t bits = dtype == DType::kF16 ? FloatToHalf(value) : FloatToBf16(value);
      std::memcpy(out + 2 * i, &bits, 2);
    }
  }

  // Codes have one more negative value than positive ones: the sign of the scale changes from
  // block to block so that the mean stays zero.
  float Signed(float scale) { return (Word() & 1U) != 0 ? scale : -scale; }

  template <typename Block, typename Set>
  static void Edit(std::byte* at, const Set& set) {
    Block block;
    std::memcpy(&block, at, sizeof block);
    set(&block);
    std::memcpy(at, &block, sizeof block);
  }

  // An even spread over 2^bits codes has the deviation 2^bits / sqrt(12).
  static constexpr float ScaleFor(float codes) { return kDeviation * 3.4641016F / codes; }

  template <typename Block>
  void SetSigned(std::byte* at, float codes) {
    Edit<Block>(at, [&](Block* b) { b->d = FloatToHalf(Signed(ScaleFor(codes))); });
  }

  template <typename Block>
  static void SetAffine(std::byte* at, float codes) {
    Edit<Block>(at, [&](Block* b) {
      b->d = FloatToHalf(ScaleFor(codes));
      b->m = FloatToHalf(-ScaleFor(codes) * (codes - 1.0F) / 2.0F);
    });
  }

  // Scale and min of a sub-block are the same number, so dmin alone centres every sub-block.
  template <typename Block>
  void SetSuper(std::byte* at, float codes) {
    constexpr float kMeanScale = 48.0F;  // of 33..63
    Edit<Block>(at, [&](Block* b) {
      const float d = ScaleFor(codes) / kMeanScale;
      b->d = FloatToHalf(d);
      b->dmin = FloatToHalf(d * (codes - 1.0F) / 2.0F);
      std::memset(b->scales, 0, sizeof b->scales);
      for (int sub = 0; sub < 8; ++sub) {
        const auto scale = static_cast<uint8_t>(33 + Word() % 31);
        WriteScaleMin(b->scales, sub, {scale, scale});
      }
    });
  }

  void SetScales(DType dtype, std::byte* at) {
    switch (dtype) {
      case DType::kQ8_0:
        return SetSigned<BlockQ8_0>(at, 256.0F);
      case DType::kQ4_0:
        return SetSigned<BlockQ4_0>(at, 16.0F);
      case DType::kQ5_0:
        return SetSigned<BlockQ5_0>(at, 32.0F);
      case DType::kQ4_1:
        return SetAffine<BlockQ4_1>(at, 16.0F);
      case DType::kQ5_1:
        return SetAffine<BlockQ5_1>(at, 32.0F);
      case DType::kQ4_K:
        return SetSuper<BlockQ4_K>(at, 16.0F);
      case DType::kQ5_K:
        return SetSuper<BlockQ5_K>(at, 32.0F);
      case DType::kQ6_K:
        return Edit<BlockQ6_K>(at, [&](BlockQ6_K* b) {
          constexpr float kMeanScale = 80.0F;  // of 64..95, either sign
          b->d = FloatToHalf(ScaleFor(64.0F) / kMeanScale);
          for (int8_t& scale : b->scales) {
            const int magnitude = 64 + static_cast<int>(Word() % 32);
            scale = static_cast<int8_t>((Word() & 1U) != 0 ? magnitude : -magnitude);
          }
        });
      case DType::kMXFP4:
        // E2M1 codes at random deviate by 2.9; 2^-7 brings them to 0.023.
        return Edit<BlockMXFP4>(at, [](BlockMXFP4* b) { b->e = 120; });
      default:
        return;  // plain types never come here
    }
  }

  uint64_t seed_;
  uint32_t tensor_;
  uint64_t counter_ = 0;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

struct RandomTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  bool is_norm = false;
};

std::vector<RandomTensor> TensorsOf(const ModelConfig& config, const QuantizationType& type) {
  std::vector<RandomTensor> tensors;
  for (int r = 0; r < kNumTensorRoles; ++r) {
    const auto role = static_cast<TensorRole>(r);
    for (int layer = 0; layer < (IsLayerRole(role) ? config.layers : 1); ++layer) {
      RandomTensor tensor;
      tensor.shape = ExpectedShape(config, role, layer);
      if (tensor.shape.empty()) continue;
      tensor.is_norm = tensor.shape.size() == 1;
      tensor.name = TensorName(CheckpointFormat::kGguf, role, layer);
      tensor.dtype = StoredType(type, config, role, layer, tensor.shape.back());
      if (IsExpertRole(role)) tensor.shape.insert(tensor.shape.begin(), config.moe.experts);
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

Result<QuantizeSummary> WriteTensors(const std::vector<RandomTensor>& tensors,
                                     const RandomModelOptions& options, GgufWriter* writer) {
  QuantizeSummary summary;
  summary.tensors = static_cast<int>(tensors.size());
  summary.bytes_out = writer->data_bytes();
  uint64_t written = 0;
  std::vector<std::byte> buffer;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const RandomTensor& tensor = tensors[t];
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    size_t left = *ByteSize(tensor.dtype, elements);
    BlockFiller filler(options.seed, static_cast<uint32_t>(t));
    const auto block_bytes = static_cast<size_t>(Info(tensor.dtype).block_bytes);
    const size_t chunk_max = (size_t{8} << 20) / block_bytes * block_bytes;
    while (left > 0) {
      buffer.resize(std::min(left, chunk_max));
      if (tensor.is_norm) {
        const std::vector<float> ones(buffer.size() / sizeof(float), 1.0F);
        std::memcpy(buffer.data(), ones.data(), buffer.size());
      } else {
        filler.Fill(tensor.dtype, buffer.size(), buffer.data());
      }
      DI_TRY(writer->WriteData(buffer));
      left -= buffer.size();
      written += buffer.size();
      if (options.progress.report != nullptr) {
        options.progress.report(options.progress.context, written, summary.bytes_out, tensor.name);
      }
    }
  }
  return summary;
}

}  // namespace

std::string RandomModelPresets() {
  std::string names;
  for (const Preset& preset : kPresets) {
    names += Format("{}{}", names.empty() ? "" : ", ", preset.name);
  }
  return names;
}

Result<QuantizeSummary> WriteRandomModel(const std::string& output,
                                         const RandomModelOptions& options) {
  const Preset* preset = nullptr;
  for (const Preset& row : kPresets) {
    if (row.name == options.preset) preset = &row;
  }
  if (preset == nullptr) {
    return Invalid(Format("unknown preset \"{}\"; known presets: {}", options.preset,
                          RandomModelPresets()))
        .WithParam("preset");
  }
  DI_ASSIGN(const QuantizationType type, ParseQuantizationType(options.type));
  const ModelConfig config = ConfigOf(*preset);
  DI_ASSIGN(std::unique_ptr<GgufWriter> writer, GgufWriter::Create(output));
  WriteConfigMetadata(config, type, writer.get());
  DI_TRY(WriteTokenizerMetadata(SyntheticTokenizer(config.vocab), config.vocab,
                                std::string(kChatTemplate), writer.get()));
  const std::vector<RandomTensor> tensors = TensorsOf(config, type);
  for (const RandomTensor& tensor : tensors) {
    DI_TRY(writer->AddTensor(tensor.name, tensor.dtype, tensor.shape));
  }
  DI_TRY(writer->WriteHeader());
  DI_ASSIGN(const QuantizeSummary summary, WriteTensors(tensors, options, writer.get()));
  DI_TRY(writer->Finish());
  return summary;
}

}  // namespace deepinfer
