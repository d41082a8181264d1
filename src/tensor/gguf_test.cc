#include "tensor/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/format.h"
#include "tensor/gguf_writer.h"

namespace deepinfer {
namespace {

// A directory of this test process, removed at the end.
class TempDirectory {
 public:
  TempDirectory() {
    path_ = std::filesystem::temp_directory_path() /
            Format("deepinfer_gguf_{}_{}", ::getpid(), reinterpret_cast<uintptr_t>(this));
    std::filesystem::create_directories(path_);
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Writes any header, right or wrong.
class Bytes {
 public:
  template <typename T>
  Bytes& Put(T value) {
    const auto* data = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), data, data + sizeof value);
    return *this;
  }
  Bytes& Text(std::string_view text) {
    Put<uint64_t>(text.size());
    return Raw(text);
  }
  Bytes& Raw(std::string_view text) {
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), data, data + text.size());
    return *this;
  }
  Bytes& Header(uint64_t tensors, uint64_t entries) {
    return Raw("GGUF").Put<uint32_t>(3).Put(tensors).Put(entries);
  }
  Bytes& Tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    Text(name).Put(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) Put(dim);
    return Put(type).Put(offset);
  }
  Bytes& Align() {
    while (bytes_.size() % 32 != 0) bytes_.push_back(std::byte{0});
    return *this;
  }
  Bytes& Zeros(size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  const std::vector<std::byte>& get() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

std::string ParseError(const Bytes& bytes) {
  const auto file = GgufFile::Parse(bytes.get(), "test.gguf");
  return file.ok() ? "" : file.status().message();
}

Bytes SmallFile() {
  Bytes bytes;
  bytes.Header(2, 5);
  bytes.Text("general.architecture").Put<uint32_t>(8).Text("llama");
  bytes.Text("llama.block_count").Put<uint32_t>(4).Put<uint32_t>(3);
  bytes.Text("eps").Put<uint32_t>(6).Put(0.5F);
  bytes.Text("tokens").Put<uint32_t>(9).Put<uint32_t>(8).Put<uint64_t>(3);
  bytes.Text("a").Text("").Text("bcd");
  bytes.Text("types").Put<uint32_t>(9).Put<uint32_t>(5).Put<uint64_t>(2);
  bytes.Put<int32_t>(-1).Put<int32_t>(7);
  bytes.Tensor("w", {4, 2}, 0, 0).Tensor("q", {32}, 8, 32).Align();
  for (int i = 0; i < 8; ++i) bytes.Put(static_cast<float>(i));
  return bytes.Zeros(34);
}

TEST(Gguf, ReadsMetadataAndTensors) {
  const Bytes bytes = SmallFile();
  auto file = GgufFile::Parse(bytes.get(), "test.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufMetadata& metadata = (*file)->metadata();
  EXPECT_EQ(*metadata.GetString("general.architecture", ""), "llama");
  EXPECT_EQ(*metadata.GetInt("llama.block_count", 0), 3);
  EXPECT_EQ(*metadata.GetInt("absent", -9), -9);
  EXPECT_EQ(*metadata.GetDouble("eps", 0.0), 0.5);
  EXPECT_EQ(*metadata.GetStrings("tokens"), (std::vector<std::string_view>{"a", "", "bcd"}));
  EXPECT_EQ(*metadata.GetInts("types"), (std::vector<int32_t>{-1, 7}));
  EXPECT_EQ(*metadata.GetFloats("types"), (std::vector<float>{-1.0F, 7.0F}));
  const TensorView* w = (*file)->Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (std::vector<int64_t>{2, 4}));
  float value;
  std::memcpy(&value, w->data + 20, 4);
  EXPECT_EQ(value, 5.0F);
  EXPECT_EQ((*file)->Find("q")->bytes, 34U);
  EXPECT_EQ((*file)->Find("z"), nullptr);
}

TEST(Gguf, WrongTypesNameKeyAndTypes) {
  const Bytes bytes = SmallFile();
  auto file = GgufFile::Parse(bytes.get(), "test.gguf");
  ASSERT_TRUE(file.ok());
  const auto wrong = (*file)->metadata().GetInt("general.architecture", 0);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().message(),
            "metadata key general.architecture is of type string; an integer is needed");
  EXPECT_FALSE((*file)->metadata().GetStrings("types").ok());
  EXPECT_FALSE((*file)->metadata().GetString("eps", "").ok());
  EXPECT_FALSE((*file)->metadata().GetBool("eps", false).ok());
  EXPECT_FALSE((*file)->metadata().GetInts("eps").ok());
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::vector<std::byte> whole = SmallFile().get();
  for (size_t size = 0; size < whole.size(); ++size) {
    // A copy of exactly this size, so that an address checker sees any read behind the end.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(GgufFile::Parse(cut, "cut.gguf").ok()) << size;
  }
}

TEST(Gguf, NoSingleWordBreaksIt) {
  const std::vector<std::byte> whole = SmallFile().get();
  for (const uint64_t evil :
       {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{0x1D1D1D1D1D1D1D1D},
        uint64_t{0xFFFFFFFF}, uint64_t{1} << 32, (uint64_t{1} << 62) + 1}) {
    for (size_t at = 0; at + 8 <= whole.size(); ++at) {
      std::vector<std::byte> bytes = whole;
      std::memcpy(bytes.data() + at, &evil, sizeof evil);
      const auto file = GgufFile::Parse(bytes, "evil.gguf");
      if (!file.ok()) continue;  // what is accepted must still be in bounds
      for (const TensorView& view : (*file)->tensors()) {
        EXPECT_GE(view.data, bytes.data());
        EXPECT_LE(view.data + view.bytes, bytes.data() + bytes.size());
      }
    }
  }
}

TEST(Gguf, CountsThatOverflowAreRefused) {
  // Published attacks: counts whose product with a record size wraps 64 bits.
  EXPECT_NE(ParseError(Bytes().Header(0x1D1D1D1D1D1D1D1D, 0)).find("cannot hold"),
            std::string::npos);
  EXPECT_NE(ParseError(Bytes().Header(0, 0xFFFFFFFF)).find("cannot hold"), std::string::npos);
  EXPECT_NE(ParseError(Bytes().Header(0, std::numeric_limits<uint64_t>::max())).find("cannot hold"),
            std::string::npos);
  // A string length that wraps when one byte is added for a terminator.
  Bytes text;
  text.Header(0, 1).Put(std::numeric_limits<uint64_t>::max()).Zeros(64);
  EXPECT_NE(ParseError(text).find("claims"), std::string::npos);
  // Array counts: numbers and strings.
  for (const uint32_t element : {0U, 8U, 12U}) {
    Bytes array;
    array.Header(0, 1).Text("k").Put<uint32_t>(9).Put(element);
    array.Put(uint64_t{0x2000000000000001}).Zeros(64);
    EXPECT_NE(ParseError(array).find("fit"), std::string::npos) << element;
  }
  Bytes nested;
  nested.Header(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(9).Put<uint64_t>(1).Zeros(64);
  EXPECT_NE(ParseError(nested).find("arrays of arrays"), std::string::npos);
  Bytes type;
  type.Header(0, 1).Text("k").Put<uint32_t>(13).Zeros(64);
  EXPECT_NE(ParseError(type).find("value type 13"), std::string::npos);
}

TEST(Gguf, ImpossibleTensorsAreRefused) {
  const auto error = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    Bytes bytes;
    bytes.Header(1, 0).Tensor("t", std::move(dims), type, offset).Align().Zeros(256);
    return ParseError(bytes);
  };
  EXPECT_EQ(error({64}, 0, 0), "");
  EXPECT_NE(error({64}, 0, 32).find("needed"), std::string::npos);  // behind the end
  EXPECT_NE(error({32}, 0, 7).find("alignment"), std::string::npos);
  EXPECT_NE(error({4}, 0, ~uint64_t{31}).find("needed"), std::string::npos);
  EXPECT_NE(error({0}, 0, 0).find("zero"), std::string::npos);
  EXPECT_NE(error({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0).find("overflow"),
            std::string::npos);
  EXPECT_NE(error({uint64_t{1} << 31, uint64_t{1} << 31}, 0, 0).find("overflow"),
            std::string::npos);  // bytes overflow
  EXPECT_NE(error({~uint64_t{0}}, 24, 0).find("overflow"), std::string::npos);
  EXPECT_NE(error({}, 0, 0).find("dimensions"), std::string::npos);
  EXPECT_NE(error({1, 1, 1, 1, 1}, 0, 0).find("dimensions"), std::string::npos);
  EXPECT_NE(error({31}, 8, 0).find("multiple"), std::string::npos);
  EXPECT_NE(error({16, 2}, 8, 0).find("multiple"), std::string::npos);  // rows, not totals
  EXPECT_NE(error({256}, 10, 0).find("Q2_K"), std::string::npos);
  EXPECT_NE(error({32}, 999, 0).find("type 999"), std::string::npos);
  Bytes overlap;
  overlap.Header(2, 0).Tensor("a", {16}, 0, 0).Tensor("b", {8}, 0, 32).Align().Zeros(64);
  EXPECT_NE(ParseError(overlap).find("tensors a and b overlap"), std::string::npos);
  Bytes twice;
  twice.Header(2, 0).Tensor("a", {8}, 0, 0).Tensor("a", {8}, 0, 32).Align().Zeros(64);
  EXPECT_NE(ParseError(twice).find("tensor a occurs twice"), std::string::npos);
}

TEST(Gguf, HeaderErrors) {
  EXPECT_NE(ParseError(Bytes().Raw("GGML").Zeros(60)).find("not a GGUF"), std::string::npos);
  EXPECT_NE(ParseError(Bytes().Raw("GGUF").Put<uint32_t>(1).Zeros(60)).find("version 1"),
            std::string::npos);
  EXPECT_NE(ParseError(Bytes().Raw("GGUF").Put<uint32_t>(0x03000000).Zeros(60)).find("big-endian"),
            std::string::npos);
  for (const uint32_t alignment : {0U, 24U, 1U << 21}) {
    Bytes bytes;
    bytes.Header(0, 1).Text("general.alignment").Put<uint32_t>(4).Put(alignment).Zeros(64);
    EXPECT_NE(ParseError(bytes).find("power of two"), std::string::npos) << alignment;
  }
  Bytes twice;
  twice.Header(0, 2).Text("k").Put<uint32_t>(7).Put<uint8_t>(1);
  twice.Text("k").Put<uint32_t>(7).Put<uint8_t>(1).Zeros(64);
  EXPECT_NE(ParseError(twice).find("key k occurs twice"), std::string::npos);
}

TEST(GgufWriter, WhatIsWrittenIsRead) {
  const TempDirectory directory;
  const std::string path = directory.File("model.gguf");
  auto writer = GgufWriter::Create(path);
  ASSERT_TRUE(writer.ok());
  (*writer)->SetString("general.architecture", "first");
  (*writer)->SetU32("n", 7);
  (*writer)->SetF32("f", 0.25F);
  (*writer)->SetBool("b", true);
  (*writer)->SetString("general.architecture", "second");
  const std::string_view strings[] = {"x", "", "yz"};
  (*writer)->SetStrings("s", strings);
  const int32_t ints[] = {3, -4};
  (*writer)->SetI32s("i", ints);
  const int64_t shape_a[] = {3, 5};
  const int64_t shape_b[] = {2, 32};
  ASSERT_TRUE((*writer)->AddTensor("a", DType::kF32, shape_a).ok());
  ASSERT_TRUE((*writer)->AddTensor("b", DType::kQ8_0, shape_b).ok());
  EXPECT_FALSE((*writer)->AddTensor("c", DType::kQ8_0, shape_a).ok());
  EXPECT_FALSE((*writer)->AddTensor(std::string(64, 'n'), DType::kF32, shape_a).ok());
  EXPECT_EQ((*writer)->data_bytes(), 60U + 68U);
  ASSERT_TRUE((*writer)->WriteHeader().ok());
  std::vector<std::byte> a(60, std::byte{1}), b(68, std::byte{2});
  ASSERT_TRUE((*writer)->WriteData(std::span(a).first(8)).ok());
  ASSERT_TRUE((*writer)->WriteData(std::span(a).subspan(8)).ok());
  ASSERT_TRUE((*writer)->WriteData(b).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE((*writer)->Finish().ok());

  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufMetadata& metadata = (*file)->metadata();
  EXPECT_EQ(*metadata.GetString("general.architecture", ""), "second");
  EXPECT_EQ(*metadata.GetInt("n", 0), 7);
  EXPECT_EQ(*metadata.GetDouble("f", 0), 0.25);
  EXPECT_TRUE(*metadata.GetBool("b", false));
  EXPECT_EQ(metadata.GetStrings("s")->at(2), "yz");
  EXPECT_EQ(*metadata.GetInts("i"), (std::vector<int32_t>{3, -4}));
  EXPECT_EQ((*file)->Find("a")->shape, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ((*file)->Find("a")->data[59], std::byte{1});
  EXPECT_EQ((*file)->Find("b")->data[67], std::byte{2});
  EXPECT_EQ((*file)->file_bytes(), std::filesystem::file_size(path));
}

TEST(GgufWriter, AnAbandonedFileLeavesNothing) {
  const TempDirectory directory;
  const std::string path = directory.File("model.gguf");
  {
    auto writer = GgufWriter::Create(path);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->WriteHeader().ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

// Writes part `part` (from 1) of `parts` under the usual name, with one tensor.
void WritePart(const TempDirectory& directory, int part, int parts, int claimed_part,
               const std::string& tensor) {
  auto writer = GgufWriter::Create(directory.File(Format("m-{:05}-of-{:05}.gguf", part, parts)));
  ASSERT_TRUE(writer.ok());
  if (part == 1) (*writer)->SetString("general.architecture", "llama");
  (*writer)->SetU32("split.no", static_cast<uint32_t>(claimed_part - 1));
  (*writer)->SetU32("split.count", static_cast<uint32_t>(parts));
  (*writer)->SetU32("split.tensors.count", static_cast<uint32_t>(parts));
  const int64_t shape[] = {8};
  ASSERT_TRUE((*writer)->AddTensor(tensor, DType::kF32, shape).ok());
  ASSERT_TRUE((*writer)->WriteHeader().ok());
  ASSERT_TRUE((*writer)->WriteData(std::vector<std::byte>(32, std::byte(part))).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
}

TEST(GgufSplit, PartsAreOneModel) {
  const TempDirectory directory;
  WritePart(directory, 1, 3, 1, "a");
  WritePart(directory, 2, 3, 2, "b");
  WritePart(directory, 3, 3, 3, "c");
  for (const char* name : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    auto file = GgufFile::Open(directory.File(name));
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ((*file)->tensors().size(), 3U);
    EXPECT_EQ((*file)->Find("c")->data[0], std::byte{3});
    EXPECT_EQ(*(*file)->metadata().GetString("general.architecture", ""), "llama");
    (*file)->Drop(*(*file)->Find("b"));
    EXPECT_EQ((*file)->Find("b")->data[0], std::byte{2});
  }
}

TEST(GgufSplit, WrongPartsAreRefused) {
  const TempDirectory directory;
  WritePart(directory, 1, 2, 1, "a");
  EXPECT_EQ(GgufFile::Open(directory.File("m-00001-of-00002.gguf")).status().code(),
            StatusCode::kNotFound);
  WritePart(directory, 2, 2, 1, "b");
  const auto wrong = GgufFile::Open(directory.File("m-00001-of-00002.gguf"));
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("part 1 of 2, its name part 2 of 2"), std::string::npos)
      << wrong.status().message();
  WritePart(directory, 2, 2, 2, "a");
  const auto twice = GgufFile::Open(directory.File("m-00001-of-00002.gguf"));
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.status().message().find("twice"), std::string::npos);
}

TEST(GgufSplit, Names) {
  EXPECT_EQ(ParseGgufSplitName("d/m-00002-of-00010.gguf").prefix, "d/m");
  EXPECT_EQ(ParseGgufSplitName("d/m-00002-of-00010.gguf").part, 2);
  EXPECT_EQ(ParseGgufSplitName("d/m-00002-of-00010.gguf").parts, 10);
  for (const char* name : {"m.gguf", "m-00011-of-00010.gguf", "m-00000-of-00010.gguf",
                           "m-0000x-of-00010.gguf", "m-00001-of-00010.ggux"}) {
    EXPECT_EQ(ParseGgufSplitName(name).parts, 0) << name;
  }
}

}  // namespace
}  // namespace deepinfer
