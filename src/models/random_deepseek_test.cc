#include "models/random_deepseek.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/format.h"
#include "base/mapped_file.h"
#include "models/engram_sidecar.h"
#include "models/loaded_model.h"
#include "models/random_deepseek_shape.h"
#include "tensor/block_formats.h"
#include "tensor/safetensors.h"

namespace deepinfer {
namespace {

constexpr uint64_t kTiny = uint64_t{24} << 20;

class RandomDeepseekTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& directory : made_) std::filesystem::remove_all(directory);
  }
  std::string Make(uint64_t seed) {
    const std::string directory =
        testing::TempDir() +
        Format("random_deepseek_{}_{}", testing::UnitTest::GetInstance()->random_seed(),
               made_.size()) +
        testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory);
    made_.push_back(directory);
    RandomDeepseekOptions options;
    options.bytes = kTiny;
    options.seed = seed;
    const Result<QuantizeSummary> summary = WriteRandomDeepseek(directory, options);
    EXPECT_TRUE(summary.ok()) << summary.status().message();
    return directory;
  }
  std::vector<std::string> made_;
};

std::string BytesOf(const TensorView& view) {
  return {reinterpret_cast<const char*>(view.data), view.bytes};
}

TEST_F(RandomDeepseekTest, HoldsEveryTensorInItsShape) {
  const std::string directory = Make(1);
  const auto file = SafetensorsFile::OpenDirectory(directory);
  ASSERT_TRUE(file.ok()) << file.status().message();
  RandomDeepseekShape shape = ChooseDeepseekShape(kTiny, 0.55, 0.35);
  const MappedFile sidecar = MappedFile::Open(directory + "/engram.json").value();
  const Json engram =
      Json::Parse({reinterpret_cast<const char*>(sidecar.bytes().data()), sidecar.bytes().size()})
          .value();
  for (size_t i = 0; i < 2; ++i) {
    shape.engram_rows[i] = *engram.Find("rows")->items()[i].AsInt();
  }
  size_t count = 0;
  for (const RandomTensorPlan& plan : DeepseekTensors(shape)) {
    const TensorView* view = (*file)->Find(plan.name);
    ASSERT_NE(view, nullptr) << plan.name;
    EXPECT_EQ(view->shape, plan.shape) << plan.name;
    EXPECT_EQ(view->dtype, plan.dtype) << plan.name;
    ++count;
  }
  EXPECT_EQ((*file)->tensors().size(), count);
  EXPECT_EQ(engram.Find("token_map")->items().size(), static_cast<size_t>(shape.vocab));
}

TEST_F(RandomDeepseekTest, ValuesAreFiniteAndSpread) {
  const std::string directory = Make(1);
  const auto file = SafetensorsFile::OpenDirectory(directory).value();
  for (const TensorView& view : file->tensors()) {
    for (size_t i = 0; i < view.bytes && view.dtype == DType::kF8_E4M3; ++i) {
      ASSERT_NE(static_cast<unsigned>(view.data[i]) & 0x7FU, 0x7FU) << view.name;
    }
    for (size_t i = 0; i < view.bytes && view.dtype == DType::kF8_E8M0; ++i) {
      ASSERT_NE(static_cast<unsigned>(view.data[i]), 255U) << view.name;
    }
    for (size_t i = 0; i < view.bytes && view.dtype == DType::kBF16; i += 2) {
      uint16_t value = 0;
      std::memcpy(&value, view.data + i, 2);
      ASSERT_LT(value & 0x7F80U, 0x7F80U) << view.name;
    }
  }
  // The deviation of a weight is near 1 over the root of its inputs; no two rows are equal.
  const TensorView& codes = *file->Find("layers.0.attn.wq_b.weight");
  const TensorView& scales = *file->Find("layers.0.attn.wq_b.scale");
  const auto columns = static_cast<size_t>(codes.dim(1));
  const size_t blocks = (columns + 31) / 32;
  double squares = 0;
  for (size_t i = 0; i < codes.bytes; ++i) {
    const auto scale = static_cast<int>(scales.data[i / columns / 32 * blocks + i % columns / 32]);
    const double value = std::ldexp(E4M3ToFloat(static_cast<uint8_t>(codes.data[i])), scale - 127);
    squares += value * value;
  }
  const double deviation = std::sqrt(squares / static_cast<double>(codes.bytes));
  EXPECT_GT(deviation * std::sqrt(static_cast<double>(columns)), 0.5);
  EXPECT_LT(deviation * std::sqrt(static_cast<double>(columns)), 2.0);
  EXPECT_NE(std::memcmp(codes.data, codes.data + columns, columns), 0);
}

TEST_F(RandomDeepseekTest, TheSeedDecidesEveryByte) {
  const auto first = SafetensorsFile::OpenDirectory(Make(3)).value();
  const auto again = SafetensorsFile::OpenDirectory(Make(3)).value();
  const auto other = SafetensorsFile::OpenDirectory(Make(4)).value();
  for (const TensorView& view : first->tensors()) {
    ASSERT_EQ(BytesOf(view), BytesOf(*again->Find(view.name))) << view.name;
  }
  for (const char* name : {"layers.0.attn.wq_b.weight", "layers.3.ffn.experts.1.w2.weight",
                           "layers.1.engram.embed.weight", "head.weight", "layers.2.hc_attn_fn"}) {
    EXPECT_NE(BytesOf(*first->Find(name)), BytesOf(*other->Find(name))) << name;
  }
}

TEST_F(RandomDeepseekTest, LoadsAsAModelThatChats) {
  LoadOptions options;
  options.path = Make(1);
  options.backend.threads = 2;
  const Result<std::unique_ptr<LoadedModel>> loaded = OpenModel(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_NE((*loaded)->prompt_profile, nullptr);
  EXPECT_EQ((*loaded)->prompt_profile->name, "deepseek_v41");
  EXPECT_EQ((*loaded)->model->info().vocab, (*loaded)->tokenizer->vocab_size());
}

TEST_F(RandomDeepseekTest, SidecarIsMadeAgainFromTheTokenizer) {
  const std::string directory = Make(1);
  const auto text = [&](const char* name) {
    const MappedFile file = MappedFile::Open(directory + "/" + name).value();
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  };
  const std::string sidecar = text("engram.json"), config = text("config.json");
  std::filesystem::remove(directory + "/engram.json");
  ASSERT_TRUE(WriteEngramSidecar(directory).ok());
  EXPECT_EQ(text("engram.json"), sidecar);
  // Another number of keys, or of rows: the tokenizer is of another model.
  for (const char* field : {"engram_compressed_vocab_size", "engram_num_embeddings"}) {
    std::string changed = config;
    const size_t digit = changed.find_first_of("123456789", changed.find(field));
    changed[digit] = changed[digit] == '9' ? '8' : static_cast<char>(changed[digit] + 1);
    std::ofstream(directory + "/config.json") << changed;
    const Result<std::string> refused = WriteEngramSidecar(directory);
    ASSERT_FALSE(refused.ok()) << field;
    EXPECT_EQ(refused.status().param(), field) << refused.status().message();
  }
}

TEST(RandomDeepseekShape, ProportionsAndSizes) {
  // At full size, the released model.
  const RandomDeepseekShape full = ChooseDeepseekShape(uint64_t{475} << 30, 0.58, 0.395);
  EXPECT_EQ(full.hidden, 5120);
  EXPECT_EQ(full.vocab, 129'280);
  EXPECT_EQ(full.heads, 64);
  EXPECT_EQ(full.q_lora, 1280);
  EXPECT_EQ(full.o_groups, 8);
  EXPECT_EQ(full.expert_inner, 2304);
  EXPECT_EQ(full.index_heads, 32);
  EXPECT_EQ(full.kv_sources, (std::vector<int>{2, 8, 14, 20}));
  EXPECT_EQ(full.index_sources, (std::vector<int>{2, 8, 14, 20, 24, 28, 32, 36}));
  EXPECT_EQ(full.engram_layers, (std::vector<int>{1, 14}));
  EXPECT_NEAR(full.experts, 384, 12);
  // Smaller ones meet the bytes asked for.
  for (const uint64_t gib : {1, 4, 12, 40}) {
    const uint64_t wanted = gib << 30;
    RandomDeepseekShape shape = ChooseDeepseekShape(wanted, 0.55, 0.35);
    const int64_t primes = 3 * int64_t{shape.engram_heads};
    shape.engram_rows.assign(2, shape.engram_table * primes);
    double bytes = 0;
    for (const RandomTensorPlan& plan : DeepseekTensors(shape)) {
      double count = Info(plan.dtype).block_bytes;
      for (const int64_t extent : plan.shape) count *= static_cast<double>(extent);
      bytes += count;
    }
    EXPECT_NEAR(bytes / static_cast<double>(wanted), 1.0, 0.05) << gib;
  }
}

TEST(RandomDeepseekOptions, SizesAndShares) {
  EXPECT_EQ(ParseByteSize("4G").value(), uint64_t{4} << 30);
  EXPECT_EQ(ParseByteSize("1.5MiB").value(), 3U << 19);
  EXPECT_EQ(ParseByteSize("2kB").value(), 2048U);
  EXPECT_EQ(ParseByteSize("77").value(), 77U);
  for (const char* wrong : {"", "G", "-4G", "4X", "4GG", "1e99", "9999999T", "4 G", "0x4"}) {
    EXPECT_FALSE(ParseByteSize(wrong).ok()) << wrong;
  }
  RandomDeepseekOptions options;
  options.expert_share = 0.7;
  options.engram_share = 0.3;
  EXPECT_FALSE(WriteRandomDeepseek("never", options).ok());
  options.engram_share = NAN;
  EXPECT_FALSE(WriteRandomDeepseek("never", options).ok());
  options = {};
  options.bytes = 5;
  EXPECT_FALSE(WriteRandomDeepseek("never", options).ok());
}

}  // namespace
}  // namespace deepinfer
