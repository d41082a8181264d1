#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "mapped_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& name, std::string_view text) {
    const std::string path = dir_ + "/" + name;
    FILE* file = std::fopen(path.c_str(), "wb");
    EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
    std::fclose(file);
    return path;
  }

  std::string dir_;
};

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

TEST_F(MappedFileTest, ReadsTheBytes) {
  Result<MappedFile> file = MappedFile::Open(Write("a", "hello"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(TextOf(*file), "hello");
  MappedFile moved = std::move(file).value();
  EXPECT_EQ(TextOf(moved), "hello");
  moved = MappedFile();
  EXPECT_EQ(moved.size(), 0u);
}

TEST_F(MappedFileTest, AnEmptyFileIsAnEmptySpan) {
  Result<MappedFile> file = MappedFile::Open(Write("empty", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  file->Drop(0, 100);
}

TEST_F(MappedFileTest, ErrorsNameThePathAndTheReason) {
  const Result<MappedFile> absent = MappedFile::Open(dir_ + "/none");
  EXPECT_EQ(absent.status().code(), StatusCode::kNotFound);
  EXPECT_NE(absent.status().message().find(dir_ + "/none"), std::string::npos);
  EXPECT_EQ(MappedFile::Open(dir_).status().code(), StatusCode::kInvalid);
  EXPECT_EQ(MappedFile::Open(Write("f", "x") + "/below").status().code(), StatusCode::kNotFound);
  const std::string pipe = dir_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(pipe).status().code(), StatusCode::kInvalid);
}

TEST_F(MappedFileTest, OpensTheSameFileAgain) {
  Result<MappedFile> file = MappedFile::Open(Write("twice", "some text"));
  ASSERT_TRUE(file.ok());
  MappedFile moved = std::move(file).value();
  const Result<int> fd = moved.OpenAgain();
  ASSERT_TRUE(fd.ok());
  char text[4] = {};
  EXPECT_EQ(pread(*fd, text, 3, 5), 3);
  EXPECT_STREQ(text, "tex");
  close(*fd);
  Write("other", "another text");
  std::filesystem::rename(dir_ + "/other", dir_ + "/twice");
  EXPECT_EQ(moved.OpenAgain().status().code(), StatusCode::kUnavailable);
  std::filesystem::remove(dir_ + "/twice");
  EXPECT_EQ(moved.OpenAgain().status().code(), StatusCode::kNotFound);
}

TEST_F(MappedFileTest, DroppedPagesAreReadAgain) {
  const std::string text(100000, 'q');
  Result<MappedFile> file = MappedFile::Open(Write("big", text));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(TextOf(*file), text);
  file->Drop(5, text.size());
  EXPECT_EQ(TextOf(*file), text);
  file->Drop(99999, SIZE_MAX);  // ranges past the end are cut
  file->Drop(SIZE_MAX, 1);
  file->Prefetch(4097, SIZE_MAX);
  EXPECT_EQ(TextOf(*file), text);
}

}  // namespace
}  // namespace deepinfer
