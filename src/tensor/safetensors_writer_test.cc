#include "tensor/safetensors_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/format.h"
#include "tensor/safetensors.h"

namespace deepinfer {
namespace {

class SafetensorsWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() +
                 Format("safetensors_writer_{}", testing::UnitTest::GetInstance()->random_seed()) +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  size_t FilesWith(const std::string& ending) const {
    size_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(directory_)) {
      if (file.path().string().ends_with(ending)) ++count;
    }
    return count;
  }
  std::string directory_;
};

// Byte i of tensor t.
std::byte ByteOf(size_t t, size_t i) { return static_cast<std::byte>((t * 31 + i * 7) % 251); }

TEST_F(SafetensorsWriterTest, ReadsBackFromSeveralShards) {
  const std::vector<std::pair<DType, std::vector<int64_t>>> tensors = {
      {DType::kF8_E4M3, {3, 5}}, {DType::kF32, {7}},  {DType::kF8_E8M0, {1, 1}},
      {DType::kBF16, {4, 9}},    {DType::kI8, {100}}, {DType::kF32, {0, 4}},
      {DType::kF32, {}},
  };
  auto writer = SafetensorsWriter::Create(directory_).value();
  for (size_t t = 0; t < tensors.size(); ++t) {
    ASSERT_TRUE(writer->AddTensor(Format("t{}", t), tensors[t].first, tensors[t].second).ok());
  }
  const auto order = writer->Plan(100).value();
  for (const SafetensorsEntry& entry : order) {
    std::vector<std::byte> data;
    for (size_t i = 0; i < entry.bytes; ++i) data.push_back(ByteOf(entry.source, i));
    const std::span<const std::byte> all(data);
    if (all.empty()) continue;
    ASSERT_TRUE(writer->WriteData(all.first(1)).ok());
    if (all.size() == 1) continue;
    ASSERT_TRUE(writer->WriteData(all.subspan(1)).ok());
  }
  EXPECT_EQ(FilesWith(".safetensors"), 0U);  // nothing has its name before the end
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(FilesWith(".safetensors"), 4U);
  EXPECT_EQ(FilesWith(".partial"), 0U);

  const auto file = SafetensorsFile::OpenDirectory(directory_);
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorView* view = (*file)->Find(Format("t{}", t));
    ASSERT_NE(view, nullptr) << t;
    EXPECT_EQ(view->dtype, tensors[t].first);
    EXPECT_EQ(view->shape, tensors[t].second);
    for (size_t i = 0; i < view->bytes; ++i) ASSERT_EQ(view->data[i], ByteOf(t, i)) << t;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) %
                  static_cast<size_t>(Info(view->dtype).block_bytes),
              0U);
  }
}

TEST_F(SafetensorsWriterTest, LeavesNothingBehindWhenGivenUp) {
  auto writer = SafetensorsWriter::Create(directory_).value();
  ASSERT_TRUE(writer->AddTensor("a", DType::kF32, {8}).ok());
  ASSERT_TRUE(writer->Plan(1 << 20).ok());
  EXPECT_EQ(FilesWith(".partial"), 1U);
  writer.reset();
  EXPECT_EQ(FilesWith(""), 0U);
}

TEST_F(SafetensorsWriterTest, RefusesWhatItCannotWrite) {
  auto writer = SafetensorsWriter::Create(directory_).value();
  EXPECT_FALSE(writer->Plan(1).ok());
  EXPECT_FALSE(writer->AddTensor("", DType::kF32, {1}).ok());
  EXPECT_FALSE(writer->AddTensor("__metadata__", DType::kF32, {1}).ok());
  EXPECT_FALSE(writer->AddTensor("q", DType::kQ8_0, {32}).ok());
  EXPECT_FALSE(writer->AddTensor("n", DType::kF32, {-1}).ok());
  EXPECT_FALSE(writer->AddTensor("o", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}).ok());
  ASSERT_TRUE(writer->AddTensor("a", DType::kF32, {1}).ok());
  EXPECT_FALSE(writer->AddTensor("a", DType::kF32, {1}).ok());
  writer.reset();
  std::ofstream(directory_ + "/model.safetensors") << "x";
  EXPECT_FALSE(SafetensorsWriter::Create(directory_).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(directory_ + "/model.safetensors").ok());
}

}  // namespace
}  // namespace deepinfer
