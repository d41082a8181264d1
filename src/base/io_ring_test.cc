#include "base/io_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string>

namespace deepinfer {
namespace {

constexpr size_t kFileBytes = 300'000;

// Both ways of reading must agree about everything; the ring alone may be missing here.
class FileReads : public testing::TestWithParam<bool> {
 protected:
  FileReads() : path_(testing::TempDir() + "deepinfer_io_ring_" + std::to_string(getpid())) {
    content_.resize(kFileBytes);
    std::mt19937 random(1);
    for (char& c : content_) c = static_cast<char>(random());
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_GE(fd_, 0);
    EXPECT_EQ(write(fd_, content_.data(), content_.size()), static_cast<ssize_t>(content_.size()));
  }
  ~FileReads() override {
    close(fd_);
    unlink(path_.c_str());
  }

  bool Open(unsigned depth) {
    if (!GetParam()) return true;
    Result<std::unique_ptr<IoRing>> ring = IoRing::Create(depth);
    if (!ring.ok()) return false;
    ring_ = std::move(ring).value();
    return true;
  }
  void Read(std::span<FileRead> reads) {
    if (ring_ != nullptr) return ring_->Read(reads);
    ReadWithPread(reads);
  }

  const std::string path_;
  std::string content_;
  int fd_ = -1;
  std::unique_ptr<IoRing> ring_;
};

TEST_P(FileReads, BringWhatIsAskedFor) {
  for (unsigned depth : {1U, 8U, 256U}) {
    if (!Open(depth)) GTEST_SKIP() << "no io_uring here";
    std::mt19937 random(2);
    for (int count : {0, 1, 7, 1000}) {
      std::vector<FileRead> reads(static_cast<size_t>(count));
      std::vector<uint64_t> offsets;
      std::vector<std::string> got;
      for (FileRead& read : reads) {
        const size_t bytes = random() % 3000;
        const uint64_t offset = random() % (kFileBytes - bytes);
        offsets.push_back(offset);
        got.emplace_back(bytes, '\0');
        read = {.fd = fd_, .offset = offset, .bytes = static_cast<uint32_t>(bytes)};
      }
      for (size_t i = 0; i < reads.size(); ++i) {
        reads[i].to = reinterpret_cast<std::byte*>(got[i].data());
      }
      Read(reads);
      for (size_t i = 0; i < reads.size(); ++i) {
        ASSERT_EQ(reads[i].error, 0);
        ASSERT_EQ(reads[i].bytes, 0U);
        ASSERT_EQ(got[i], content_.substr(offsets[i], got[i].size()));
      }
    }
  }
}

TEST_P(FileReads, EachFailsAlone) {
  if (!Open(4)) GTEST_SKIP() << "no io_uring here";
  std::byte to[6][100];
  FileRead reads[6] = {
      {.fd = fd_, .offset = 5, .to = to[0], .bytes = 100},
      {.fd = fd_, .offset = kFileBytes - 40, .to = to[1], .bytes = 100},  // 40 are there
      {.fd = fd_, .offset = kFileBytes + 9, .to = to[2], .bytes = 100},
      {.fd = -1, .offset = 0, .to = to[3], .bytes = 100},
      {.fd = fd_, .offset = 9, .to = nullptr, .bytes = 100},
      {.fd = fd_, .offset = 7, .to = to[5], .bytes = 100},
  };
  Read(reads);
  EXPECT_EQ(reads[0].error, 0);
  EXPECT_EQ(reads[1].error, FileRead::kFileEnds);
  EXPECT_EQ(FileReadError(reads[1]), "the file ends 60 bytes too early");
  EXPECT_EQ(reads[2].error, FileRead::kFileEnds);
  EXPECT_EQ(reads[3].error, EBADF);
  EXPECT_FALSE(FileReadError(reads[3]).empty());
  EXPECT_EQ(reads[4].error, EFAULT);
  EXPECT_EQ(reads[5].error, 0);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(to[5]), 100), content_.substr(7, 100));
}

TEST_P(FileReads, AFileThatIsCutIsAnErrorNotASignal) {
  if (!Open(4)) GTEST_SKIP() << "no io_uring here";
  ASSERT_EQ(ftruncate(fd_, 1000), 0);
  std::byte to[2][64];
  FileRead reads[2] = {{.fd = fd_, .offset = 900, .to = to[0], .bytes = 64},
                       {.fd = fd_, .offset = 200'000, .to = to[1], .bytes = 64}};
  Read(reads);
  EXPECT_EQ(reads[0].error, 0);
  EXPECT_EQ(reads[1].error, FileRead::kFileEnds);
}

INSTANTIATE_TEST_SUITE_P(Both, FileReads, testing::Bool(), [](const auto& at) {
  return at.param ? std::string("IoUring") : std::string("Pread");
});

}  // namespace
}  // namespace deepinfer
