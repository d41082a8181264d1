#include "tensor/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/format.h"
#include "tensor/dequantize.h"

namespace deepinfer {
namespace {

class TempDirectory {
 public:
  TempDirectory() {
    path_ = std::filesystem::temp_directory_path() /
            Format("deepinfer_safetensors_{}_{}", ::getpid(), reinterpret_cast<uintptr_t>(this));
    std::filesystem::create_directories(path_);
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  void Write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  }

 private:
  std::filesystem::path path_;
};

std::string FileText(std::string_view header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string text(reinterpret_cast<const char*>(&size), sizeof size);
  text += header;
  for (size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
  return text;
}

std::string ParseError(std::string_view text) {
  const std::vector<char> exact(text.begin(), text.end());
  const auto file = SafetensorsFile::Parse(std::as_bytes(std::span(exact)), "t.safetensors");
  return file.ok() ? "" : file.status().message();
}

constexpr std::string_view kTwoTensors =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}   )";

TEST(Safetensors, ReadsViews) {
  const std::string text = FileText(kTwoTensors, 32);
  auto file = SafetensorsFile::Parse(std::as_bytes(std::span(text)), "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->tensors().size(), 2U);
  const TensorView* b = (*file)->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kBF16);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{4}));
  EXPECT_EQ(b->data[0], std::byte{24});
  EXPECT_EQ((*file)->Find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*file)->Find("__metadata__"), nullptr);
}

TEST(Safetensors, HoldsItsOwnBytesAlone) {
  const TempDirectory directory;
  directory.Write("t.safetensors", FileText(kTwoTensors, 32));
  const auto file = SafetensorsFile::Open(directory.path() + "/t.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  TensorView view = *(*file)->Find("a");
  EXPECT_TRUE((*file)->Holds(view));
  (*file)->Prefetch(view);  // a hint: nothing changes
  (*file)->Drop(view);
  EXPECT_EQ(DequantizeTensor(view)->size(), 6U);
  const std::vector<std::byte> foreign(64);
  view.scale = foreign.data();
  EXPECT_FALSE((*file)->Holds(view));
  view.scale = nullptr;
  view.data = foreign.data();
  EXPECT_FALSE((*file)->Holds(view));
}

TEST(Safetensors, ScalarsAndEmptyTensors) {
  EXPECT_EQ(ParseError(FileText(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                                R"("e":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]}})",
                                8)),
            "");
  const TensorView empty{"e", DType::kF32, {0, 4}, nullptr, 0};
  EXPECT_TRUE(DequantizeTensor(empty)->empty());
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string whole = FileText(kTwoTensors, 32);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(ParseError(std::string_view(whole).substr(0, size)), "") << size;
  }
}

TEST(Safetensors, EverySingleByteChangeIsSafe) {
  const std::string whole = FileText(kTwoTensors, 32);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char value : {'\0', '\xff', '9', '"', '{', '-', 'e'}) {
      std::string text = whole;
      text[at] = value;
      const auto file = SafetensorsFile::Parse(std::as_bytes(std::span(text)), "t");
      if (!file.ok()) continue;
      for (const TensorView& view : (*file)->tensors()) {
        const auto* end = reinterpret_cast<const std::byte*>(text.data() + text.size());
        EXPECT_LE(view.data + view.bytes, end);
      }
    }
  }
}

TEST(Safetensors, HeaderLengths) {
  std::string text(8, '\xff');
  EXPECT_NE(ParseError(text + std::string(64, ' ')).find("at most 100000000"), std::string::npos);
  const uint64_t beyond = 65;
  std::memcpy(text.data(), &beyond, 8);
  EXPECT_NE(ParseError(text + std::string(64, ' ')).find("has 64 left"), std::string::npos);
  EXPECT_NE(ParseError(FileText("", 0)).find("not a JSON object"), std::string::npos);
  EXPECT_NE(ParseError(FileText("[1]", 0)).find("not a JSON object"), std::string::npos);
  EXPECT_NE(ParseError(FileText("{", 0)).find("header:"), std::string::npos);
}

TEST(Safetensors, WrongEntriesNameTheTensor) {
  const auto error = [](std::string_view entry, size_t bytes) {
    return ParseError(FileText(Format("{{\"w\":{}}}", entry), bytes));
  };
  EXPECT_EQ(error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8), "");
  const struct {
    std::string_view entry;
    std::string_view says;
  } cases[] = {
      {R"(7)", "not an object"},
      {R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})", "dtype \"F64\""},
      {R"({"dtype":"Q4_0","shape":[32],"data_offsets":[0,8]})", "dtype \"Q4_0\""},
      {R"({"shape":[2],"data_offsets":[0,8]})", "dtype"},
      {R"({"dtype":3,"shape":[2],"data_offsets":[0,8]})", "dtype"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "-2"},
      {R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,8]})", "1.5"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", "overflows"},
      {R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})", "overflow"},
      {R"({"dtype":"F32","shape":[2]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,16]})", "within the 8 data bytes"},
      {R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "needs 12 bytes"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", "at most 8"},
  };
  for (const auto& c : cases) {
    const std::string message = error(c.entry, 8);
    EXPECT_NE(message.find(c.says), std::string::npos) << c.entry << ": " << message;
  }
}

TEST(Safetensors, OverlapsGapsAndDuplicates) {
  const auto entry = [](std::string_view name, int begin, int end) {
    return Format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin,
                  begin, end);
  };
  EXPECT_NE(ParseError(FileText("{" + entry("a", 0, 5) + "," + entry("b", 4, 8) + "}", 8))
                .find("a and b overlap"),
            std::string::npos);
  EXPECT_NE(
      ParseError(FileText("{" + entry("a", 0, 3) + "," + entry("b", 4, 8) + "}", 8)).find("3 to 4"),
      std::string::npos);
  EXPECT_NE(ParseError(FileText("{" + entry("a", 0, 7) + "}", 8)).find("7 to 8"),
            std::string::npos);
  EXPECT_NE(ParseError(FileText("{" + entry("a", 0, 4) + "," + entry("a", 4, 8) + "}", 8)), "");
}

std::string OneTensor(std::string_view name) {
  return FileText(Format(R"({{"{}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}})", name), 4);
}

TEST(SafetensorsDirectory, SingleAndSharded) {
  const TempDirectory directory;
  EXPECT_EQ(SafetensorsFile::OpenDirectory(directory.path()).status().code(),
            StatusCode::kNotFound);
  directory.Write("weights.safetensors", OneTensor("w"));
  auto single = SafetensorsFile::OpenDirectory(directory.path());
  ASSERT_TRUE(single.ok()) << single.status().message();
  EXPECT_NE((*single)->Find("w"), nullptr);

  directory.Write("m-1.safetensors", OneTensor("a"));
  directory.Write("m-2.safetensors", OneTensor("b"));
  directory.Write("model.safetensors.index.json",
                  R"({"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}})");
  auto sharded = SafetensorsFile::OpenDirectory(directory.path());
  ASSERT_TRUE(sharded.ok()) << sharded.status().message();
  EXPECT_EQ((*sharded)->tensors().size(), 2U);
  EXPECT_EQ((*sharded)->Find("b")->data[3], std::byte{3});
  (*sharded)->Drop(*(*sharded)->Find("a"));
  EXPECT_EQ((*sharded)->Find("w"), nullptr);
}

TEST(SafetensorsDirectory, BadIndexes) {
  const TempDirectory directory;
  directory.Write("m.safetensors", OneTensor("a"));
  const struct {
    std::string_view index;
    std::string_view says;
  } cases[] = {
      {"{", "line"},
      {"{}", "weight_map"},
      {R"({"weight_map":{}})", "weight_map"},
      {R"({"weight_map":{"a":7}})", "plain name"},
      {R"({"weight_map":{"a":"../m.safetensors"}})", "plain name"},
      {R"({"weight_map":{"a":"/etc/m.safetensors"}})", "plain name"},
      {R"({"weight_map":{"a":"m.bin"}})", "plain name"},
      {R"({"weight_map":{"a":"x.safetensors"}})", "x.safetensors"},
      {R"({"weight_map":{"a":"m.safetensors","z":"m.safetensors"}})", "tensor z"},
  };
  for (const auto& c : cases) {
    directory.Write("model.safetensors.index.json", c.index);
    const auto file = SafetensorsFile::OpenDirectory(directory.path());
    ASSERT_FALSE(file.ok()) << c.index;
    EXPECT_NE(file.status().message().find(c.says), std::string::npos) << file.status().message();
  }
}

}  // namespace
}  // namespace deepinfer
