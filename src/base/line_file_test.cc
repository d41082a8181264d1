#include "base/line_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/format.h"

namespace deepinfer {
namespace {

class TempFile {
 public:
  TempFile() {
    char name[] = "/tmp/deepinfer_lines_XXXXXX";
    const int fd = mkstemp(name);
    if (fd >= 0) close(fd);
    path_ = name;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::string Read() const {
    std::ifstream in(path_, std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }

 private:
  std::string path_;
};

std::string Line(int64_t index) { return Format("{} x", index); }

// "NUMBER REST"
std::optional<int64_t> IndexOf(std::string_view line) {
  if (line.empty() || line[0] < '0' || line[0] > '9') return std::nullopt;
  return line[0] - '0';
}

LineWriter::Options Plain(const TempFile& file) { return {.paths = {file.path()}}; }
LineWriter::Options Resumed(std::vector<std::string> paths) {
  return {
      .paths = std::move(paths), .existing = LineWriter::Existing::kResume, .index_of = IndexOf};
}

TEST(LineReader, SkipsBlankLinesAndReadsALastLineWithoutNewline) {
  TempFile file;
  file.Write("a\n\n  \nb");
  auto reader = LineReader::Open(file.path());
  ASSERT_TRUE(reader.ok());
  for (const char* text : {"a", "b"}) {
    auto line = (*reader)->Next();
    ASSERT_TRUE(line.ok() && line->has_value());
    EXPECT_EQ((*line)->text.substr(0, 1), text);
  }
  auto end = (*reader)->Next();
  EXPECT_TRUE(end.ok() && !end->has_value());
}

TEST(LineReader, GoesOnAfterZeroBytesAndGiants) {
  TempFile file;
  const std::string zeros(3, '\0');
  const std::string giant(LineReader::kLineBytesMax + 1, ' ');
  file.Write(zeros + "\n" + giant + "\na\n" + giant);
  const bool too_long[] = {false, true, false, true};
  auto reader = LineReader::Open(file.path());
  ASSERT_TRUE(reader.ok());
  for (int i = 0; i < 4; ++i) {
    auto line = (*reader)->Next();
    ASSERT_TRUE(line.ok() && line->has_value()) << i;
    EXPECT_EQ((*line)->index, i);
    EXPECT_EQ((*line)->too_long, too_long[i]) << i;
  }
  EXPECT_FALSE((*reader)->Next()->has_value());
  EXPECT_EQ(*CountLines(file.path()), 4);
  auto skipping = LineReader::Open(file.path());
  ASSERT_TRUE((*skipping)->Skip(2).ok());
  EXPECT_EQ((**(*skipping)->Next()).text, "a\n");
}

TEST(LineWriter, SaysThatTheDiskIsFull) {
  auto writer = LineWriter::Open({.paths = {"/dev/full"}});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const Status status = (*writer)->Put(0, Line(0));
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("space"), std::string::npos) << status.message();
}

TEST(LineWriter, TakesWhatIsNoPlainFile) {
  auto writer = LineWriter::Open({.paths = {"/dev/null"}});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_TRUE((*writer)->Put(0, Line(0)).ok());
  const Status closed = (*writer)->Close();
  EXPECT_TRUE(closed.ok()) << closed.message();
}

TEST(LineWriter, CountsWhatWaitsForAnEarlierLine) {
  TempFile file;
  auto writer = LineWriter::Open(Plain(file));
  ASSERT_TRUE((*writer)->Put(1, "abc").ok());
  EXPECT_EQ((*writer)->waiting_bytes(), 4U);
  ASSERT_TRUE((*writer)->Put(0, "d").ok());
  EXPECT_EQ((*writer)->waiting_bytes(), 0U);
}

TEST(LineWriter, WritesInInputOrder) {
  TempFile file;
  auto writer = LineWriter::Open(Plain(file));
  ASSERT_TRUE(writer.ok());
  for (int64_t index : {2, 0, 1}) ASSERT_TRUE((*writer)->Put(index, Line(index)).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(file.Read(), Line(0) + "\n" + Line(1) + "\n" + Line(2) + "\n");
}

TEST(LineWriter, ResumeDropsATornLineAndGoesOn) {
  TempFile file;
  file.Write(Line(0) + "\n" + Line(1) + "\n2 te");
  EXPECT_FALSE(LineWriter::Open(Plain(file)).ok());
  auto writer = LineWriter::Open(Resumed({file.path()}));
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->first_index(), 2);
  ASSERT_TRUE((*writer)->Put(2, Line(2)).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(file.Read(), Line(0) + "\n" + Line(1) + "\n" + Line(2) + "\n");
}

TEST(LineWriter, RefusesAFileOfSomebodyElse) {
  TempFile file;
  file.Write("precious\n");
  auto writer = LineWriter::Open(Resumed({file.path()}));
  EXPECT_FALSE(writer.ok());
  EXPECT_EQ(file.Read(), "precious\n");
}

TEST(LineReader, SkipNamesFilesThatDoNotBelongTogether) {
  TempFile file;
  file.Write("a\n");
  auto reader = LineReader::Open(file.path());
  EXPECT_FALSE((*reader)->Skip(2).ok());
}

TEST(LineWriter, ResumesTwoFilesUpToTheFirstMissingIndex) {
  TempFile good, bad;
  // The line 3 of `bad` never reached the disk, so 4 is written again.
  good.Write("0 x\n2 x\n4 x\n");
  bad.Write("1 x\n3 ");
  auto writer = LineWriter::Open(Resumed({good.path(), bad.path()}));
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_EQ((*writer)->first_index(), 3);
  EXPECT_EQ((*writer)->kept(0), 2);
  EXPECT_EQ((*writer)->kept(1), 1);
  ASSERT_TRUE((*writer)->Put(4, Line(4), 0).ok());
  ASSERT_TRUE((*writer)->Put(3, Line(3), 1).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(good.Read(), "0 x\n2 x\n4 x\n");
  EXPECT_EQ(bad.Read(), "1 x\n3 x\n");
}

}  // namespace
}  // namespace deepinfer
