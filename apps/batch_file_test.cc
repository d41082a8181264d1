#include "apps/batch_file.h"

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
    char name[] = "/tmp/deepinfer_batch_XXXXXX";
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

std::string Line(int64_t index) { return Format("{{\"index\":{},\"text\":\"x\"}}", index); }

TEST(ParseBatchLine, AcceptsTheThreeFormsAndNamesWhatIsWrong) {
  EXPECT_EQ(*ParseBatchLine(0, R"({"prompt":"hi"})").text, "hi");
  EXPECT_EQ(ParseBatchLine(0, R"({"prompt":[1,2]})").ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(ParseBatchLine(0, R"({"messages":[{"role":"user"}],"id":7})").id.string(), "7");
  for (const char* bad : {"", "{", "[]", "{}", R"({"prompt":1})", R"({"prompt":[]})",
                          R"({"prompt":[-1]})", R"({"prompt":[1.5]})", R"({"messages":[]})",
                          R"({"prompt":"a","messages":[{}]})", R"({"prompt":"a","params":[]})"}) {
    EXPECT_FALSE(ParseBatchLine(0, bad).status.ok()) << bad;
  }
}

TEST(BatchReader, SkipsBlankLinesAndReadsALastLineWithoutNewline) {
  TempFile file;
  file.Write("{\"prompt\":\"a\"}\n\n  \n{\"prompt\":\"b\"}");
  auto reader = BatchReader::Open(file.path());
  ASSERT_TRUE(reader.ok());
  for (const char* text : {"a", "b"}) {
    auto line = (*reader)->Next();
    ASSERT_TRUE(line.ok() && line->has_value());
    EXPECT_EQ(*(*line)->text, text);
  }
  auto end = (*reader)->Next();
  EXPECT_TRUE(end.ok() && !end->has_value());
}

// A line that cannot be used is one bad line, whatever its bytes.
TEST(BatchReader, GoesOnAfterZeroBytesAndGiants) {
  TempFile file;
  const std::string zeros(3, '\0');
  const std::string giant(BatchReader::kLineBytesMax + 1, ' ');
  file.Write(zeros + "\n" + giant + "\n{\"prompt\":\"a\"}\n{\"prompt\":\"" + zeros + "\"}\n" +
             giant);
  const bool wanted[] = {false, false, true, false, false};
  auto reader = BatchReader::Open(file.path());
  ASSERT_TRUE(reader.ok());
  for (int i = 0; i < 5; ++i) {
    auto line = (*reader)->Next();
    ASSERT_TRUE(line.ok() && line->has_value()) << i;
    EXPECT_EQ((*line)->index, i);
    EXPECT_EQ((*line)->status.ok(), wanted[i]) << i << (*line)->status.message();
  }
  EXPECT_FALSE((*reader)->Next()->has_value());
  auto skipping = BatchReader::Open(file.path());
  ASSERT_TRUE((*skipping)->Skip(2).ok());
  EXPECT_EQ(*(**(*skipping)->Next()).text, "a");
}

TEST(BatchWriter, SaysThatTheDiskIsFull) {
  auto writer = BatchWriter::Open({.path = "/dev/full"});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const Status status = (*writer)->Put(0, Line(0));
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("space"), std::string::npos) << status.message();
}

TEST(BatchWriter, TakesWhatIsNoPlainFile) {
  auto writer = BatchWriter::Open({.path = "/dev/null"});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_TRUE((*writer)->Put(0, Line(0)).ok());
  const Status closed = (*writer)->Close();
  EXPECT_TRUE(closed.ok()) << closed.message();
}

TEST(BatchWriter, CountsWhatWaitsForAnEarlierLine) {
  TempFile file;
  auto writer = BatchWriter::Open({.path = file.path()});
  ASSERT_TRUE((*writer)->Put(1, "abc").ok());
  EXPECT_EQ((*writer)->waiting_bytes(), 4U);
  ASSERT_TRUE((*writer)->Put(0, "d").ok());
  EXPECT_EQ((*writer)->waiting_bytes(), 0U);
}

TEST(BatchWriter, WritesInInputOrder) {
  TempFile file;
  auto writer = BatchWriter::Open({.path = file.path()});
  ASSERT_TRUE(writer.ok());
  for (int64_t index : {2, 0, 1}) ASSERT_TRUE((*writer)->Put(index, Line(index)).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(file.Read(), Line(0) + "\n" + Line(1) + "\n" + Line(2) + "\n");
}

TEST(BatchWriter, ResumeDropsATornLineAndGoesOn) {
  TempFile file;
  file.Write(Line(0) + "\n" + Line(1) + "\n{\"index\":2,\"te");
  EXPECT_FALSE(BatchWriter::Open({.path = file.path()}).ok());
  auto writer =
      BatchWriter::Open({.path = file.path(), .existing = BatchWriter::Options::Existing::kResume});
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->first_index(), 2);
  ASSERT_TRUE((*writer)->Put(2, Line(2)).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(file.Read(), Line(0) + "\n" + Line(1) + "\n" + Line(2) + "\n");
}

TEST(BatchWriter, RefusesAFileOfSomebodyElse) {
  TempFile file;
  file.Write("precious\n");
  auto writer =
      BatchWriter::Open({.path = file.path(), .existing = BatchWriter::Options::Existing::kResume});
  EXPECT_FALSE(writer.ok());
  EXPECT_EQ(file.Read(), "precious\n");
}

TEST(BatchReader, SkipNamesFilesThatDoNotBelongTogether) {
  TempFile file;
  file.Write("{\"prompt\":\"a\"}\n");
  auto reader = BatchReader::Open(file.path());
  EXPECT_FALSE((*reader)->Skip(2).ok());
}

}  // namespace
}  // namespace deepinfer
