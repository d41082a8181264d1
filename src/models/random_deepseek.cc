#include "models/random_deepseek.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/rng.h"
#include "models/random_deepseek_shape.h"
#include "models/tokenizer_source.h"
#include "tensor/block_formats.h"
#include "tensor/safetensors_writer.h"

namespace deepinfer {
namespace {

using Kind = RandomTensorPlan::Kind;

constexpr uint64_t kShardBytes = uint64_t{5} << 30;
constexpr uint64_t kBytesMin = uint64_t{1} << 20;
constexpr double kShareMax = 0.95;  // of experts and tables together

// Large tensors are cut from pages that repeat: encoding billions of random numbers would take
// minutes. A page's length has no factor in common with any row, so rows differ.
constexpr size_t kPageBytes = (size_t{4} << 20) - 3;
constexpr size_t kChunkBytes = size_t{1} << 20;
// Standard deviations of the codes of a page.
constexpr double kFp8CodeDeviation = 64;
constexpr double kFp4CodeDeviation = 2.926;  // of e2m1 codes drawn evenly
constexpr int kScaleBias = 127;

class Random {
 public:
  Random(uint64_t seed, uint32_t stream) : seed_(seed), stream_(stream) {}

  uint32_t Word() {
    if (used_ == 4) {
      words_ = Philox4x32(seed_, {static_cast<uint32_t>(counter_),
                                  static_cast<uint32_t>(counter_ >> 32), stream_, 1});
      ++counter_;
      used_ = 0;
    }
    return words_[used_++];
  }
  // Evenly spread around 0 with deviation 1.
  float Even() { return (static_cast<float>(UniformOpen(Word())) * 2.0F - 1.0F) * 1.7320508F; }

 private:
  uint64_t seed_;
  uint32_t stream_;
  uint64_t counter_ = 0;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

// The exponent of the power of two next to `value`.
int NearestExponent(double value) { return static_cast<int>(std::lround(std::log2(value))); }

class Filler {
 public:
  explicit Filler(uint64_t seed) : seed_(seed) {
    Random random(seed, 0);
    fp8_.resize(kPageBytes);
    for (std::byte& code : fp8_) {
      code = static_cast<std::byte>(
          FloatToE4M3(random.Even() * static_cast<float>(kFp8CodeDeviation)));
    }
    fp4_.resize(kPageBytes);
    for (std::byte& pair : fp4_) pair = static_cast<std::byte>(random.Word() >> 24);
    steps_.resize(kPageBytes);
    for (std::byte& step : steps_) step = static_cast<std::byte>(random.Word() % 3);
    even_.resize(kPageBytes / 2);
    for (uint16_t& value : even_) value = FloatToBf16(random.Even());
  }

  // Writes all of `plan`, the `number`th tensor.
  Status Write(const RandomTensorPlan& plan, size_t bytes, uint32_t number,
               SafetensorsWriter* writer) {
    Random random(seed_, number + 1);
    size_t page_at = random.Word() % (kPageBytes / 2);
    std::vector<std::byte> chunk;
    for (size_t left = bytes; left > 0; left -= chunk.size()) {
      chunk.resize(std::min(left, kChunkBytes));
      FillChunk(plan, &random, &page_at, &chunk);
      DI_TRY(writer->WriteData(chunk));
    }
    return {};
  }

 private:
  template <typename T, typename Out, typename Map>
  static void FromPage(const std::vector<T>& page, size_t* at, std::span<Out> out, const Map& map) {
    for (size_t done = 0; done < out.size();) {
      if (*at >= page.size()) *at = 0;
      const size_t count = std::min(out.size() - done, page.size() - *at);
      for (size_t i = 0; i < count; ++i) out[done + i] = map(page[*at + i]);
      done += count;
      *at += count;
    }
  }

  void FillChunk(const RandomTensorPlan& plan, Random* random, size_t* at,
                 std::vector<std::byte>* chunk) const {
    const std::span<std::byte> bytes(*chunk);
    const auto same = [](std::byte value) { return value; };
    const auto scale = [&](double code_deviation) {
      const int e = kScaleBias + NearestExponent(plan.deviation / code_deviation) - 1;
      FromPage(steps_, at, bytes,
               [e](std::byte step) { return static_cast<std::byte>(e + static_cast<int>(step)); });
    };
    switch (plan.kind) {
      case Kind::kFp8Codes:
        return FromPage(fp8_, at, bytes, same);
      case Kind::kFp4Codes:
        return FromPage(fp4_, at, bytes, same);
      case Kind::kFp8Scales:
        return scale(kFp8CodeDeviation);
      case Kind::kFp4Scales:
        return scale(kFp4CodeDeviation);
      case Kind::kBf16: {
        std::vector<uint16_t> values(chunk->size() / 2);
        const int shift = NearestExponent(plan.deviation);
        FromPage(even_, at, std::span(values),
                 [shift](uint16_t value) { return Scaled(value, shift); });
        std::memcpy(chunk->data(), values.data(), chunk->size());
        return;
      }
      case Kind::kBf16Norm:
      case Kind::kF32:
      case Kind::kF32Around:
        return FillSmall(plan, random, chunk);
    }
  }

  // A bf16 times a power of two; what would be too small is zero.
  static uint16_t Scaled(uint16_t value, int shift) {
    const int exponent = ((value >> 7) & 255) + shift;
    if (exponent <= 0) return 0;
    return static_cast<uint16_t>((value & 0x807FU) | static_cast<unsigned>(exponent) << 7);
  }

  static void FillSmall(const RandomTensorPlan& plan, Random* random,
                        std::vector<std::byte>* chunk) {
    if (plan.kind == Kind::kBf16Norm) {
      for (size_t at = 0; at + 2 <= chunk->size(); at += 2) {
        const uint16_t value =
            FloatToBf16(0.5F + static_cast<float>(UniformOpen(random->Word())));  // 0.5 to 1.5
        std::memcpy(chunk->data() + at, &value, 2);
      }
      return;
    }
    for (size_t at = 0; at + 4 <= chunk->size(); at += 4) {
      const float value =
          static_cast<float>(plan.centre) + random->Even() * static_cast<float>(plan.deviation);
      std::memcpy(chunk->data() + at, &value, 4);
    }
  }

  uint64_t seed_;
  std::vector<std::byte> fp8_, fp4_, steps_;
  std::vector<uint16_t> even_;
};

Status WriteText(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return Unavailable(Format("{} cannot be written", path)).WithParam(path);
  const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !whole) {
    return Unavailable(Format("{}: write failed", path)).WithParam(path);
  }
  return {};
}

Status CheckOptions(const RandomDeepseekOptions& options) {
  const double sum = options.expert_share + options.engram_share;
  if (!(options.expert_share >= 0) || !(options.engram_share >= 0) || !(sum <= kShareMax)) {
    return Invalid(Format("the shares of experts and Engram rows are {} and {}; each must be at "
                          "least 0 and both together at most {}",
                          options.expert_share, options.engram_share, kShareMax))
        .WithParam("expert-share");
  }
  if (options.bytes < kBytesMin) {
    return Invalid(Format("the size is {} bytes, at least {} are needed", options.bytes, kBytesMin))
        .WithParam("size");
  }
  return {};
}

// Everything beside the tensors. Sets the rows of the Engram tables.
Status WriteSideFiles(const std::string& directory, RandomDeepseekShape* shape) {
  const std::string tokenizer_json = DeepseekTokenizerJson(*shape);
  DI_ASSIGN(TokenizerSpec spec, ParseTokenizerJson(tokenizer_json));
  DI_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(std::move(spec)));
  DI_ASSIGN(const EngramSidecar engram, ComputeEngramSidecar(EngramShapeOf(*shape), *tokenizer));
  shape->engram_rows = engram.rows;
  DI_TRY(WriteText(directory + "/tokenizer.json", tokenizer_json));
  DI_TRY(WriteText(directory + "/tokenizer_config.json", DeepseekTokenizerConfigJson()));
  DI_TRY(WriteText(directory + "/engram.json", EngramSidecarJson(engram).Dump() + "\n"));
  return WriteText(directory + "/config.json", DeepseekConfigJson(*shape, engram).Dump(1) + "\n");
}

}  // namespace

Result<QuantizeSummary> WriteRandomDeepseek(const std::string& directory,
                                            const RandomDeepseekOptions& options) {
  DI_TRY(CheckOptions(options));
  RandomDeepseekShape shape =
      ChooseDeepseekShape(options.bytes, options.expert_share, options.engram_share);
  DI_ASSIGN(std::unique_ptr<SafetensorsWriter> writer, SafetensorsWriter::Create(directory));
  DI_TRY(WriteSideFiles(directory, &shape));
  const std::vector<RandomTensorPlan> plans = DeepseekTensors(shape);
  for (const RandomTensorPlan& plan : plans) {
    DI_TRY(writer->AddTensor(plan.name, plan.dtype, plan.shape));
  }
  DI_ASSIGN(const std::span<const SafetensorsEntry> entries, writer->Plan(kShardBytes));
  Filler filler(options.seed);
  QuantizeSummary summary;
  summary.tensors = static_cast<int>(plans.size());
  summary.bytes_out = writer->data_bytes();
  uint64_t written = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto number = static_cast<uint32_t>(entry.source);
    DI_TRY(filler.Write(plans[entry.source], entry.bytes, number, writer.get()));
    written += entry.bytes;
    if (options.progress.report != nullptr) {
      options.progress.report(options.progress.context, written, summary.bytes_out, entry.name);
    }
  }
  DI_TRY(writer->Finish());
  return summary;
}

Result<uint64_t> ParseByteSize(const std::string& text) {
  const auto wrong = [&] {
    return Invalid(Format("{:?} is no size; write a number and K, M, G or T, as in 4G",
                          text.substr(0, 32)))
        .WithParam("size");
  };
  size_t used = 0;
  while (used < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[used])) != 0 || text[used] == '.')) {
    ++used;
  }
  const Result<Json> number = Json::Parse(text.substr(0, used));
  if (!number.ok() || !number->is_number()) return wrong();
  DI_ASSIGN(const double value, number->AsDouble());
  std::string unit = text.substr(used);
  for (const char* ending : {"iB", "B"}) {
    if (unit.ends_with(ending)) {
      unit.resize(unit.size() - std::strlen(ending));
      break;
    }
  }
  constexpr std::string_view kUnits = "KMGT";
  double factor = 1;
  if (!unit.empty()) {
    const size_t power = kUnits.find(static_cast<char>(std::toupper(unit[0])));
    if (unit.size() != 1 || power == std::string_view::npos) return wrong();
    factor = std::ldexp(1.0, 10 * (static_cast<int>(power) + 1));
  }
  if (!(value * factor < 0x1p50)) return wrong();
  return static_cast<uint64_t>(value * factor);
}

}  // namespace deepinfer
