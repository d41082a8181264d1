// Files of lines (JSONL) that jobs read and write: a bounded reader and an ordered, resumable
// writer. Reader: one thread. Writer: any thread calls Put; lines reach the files in the order of
// indices.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct LineRecord {
  int64_t index = 0;  // counts lines that are not blank
  std::string text;
  bool too_long = false;  // longer than kLineBytesMax; the text is not kept
};

class LineReader {
 public:
  static constexpr size_t kLineBytesMax = size_t{64} << 20;

  // "-" reads standard input.
  static Result<std::unique_ptr<LineReader>> Open(const std::string& path);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  // The next line that is not blank; nullopt at the end.
  Result<std::optional<LineRecord>> Next();
  // Passes over the lines before index `lines`; error when there are fewer.
  Status Skip(int64_t lines);

 private:
  explicit LineReader(std::FILE* file) : file_(file), buffer_(size_t{1} << 16) {}
  enum class Line { kEnd, kWhole, kTooLong };
  Result<Line> ReadLine(std::string* line);
  std::FILE* file_;
  std::vector<char> buffer_;  // bytes [at_, filled_) are still to be used
  size_t at_ = 0;
  size_t filled_ = 0;
  int64_t index_ = 0;
};

class LineWriter {
 public:
  // The index that a line written earlier carries; nullopt: it is none of ours.
  using IndexOf = std::optional<int64_t> (*)(std::string_view line);
  enum class Existing { kRefuse, kResume };
  struct Options {
    // Each index has its line in one of these. A single "-" writes standard output; that cannot be
    // resumed.
    std::vector<std::string> paths;
    Existing existing = Existing::kRefuse;
    IndexOf index_of = nullptr;  // for kResume
  };
  // kResume: keeps the lines of an earlier run up to the first missing index, drops what follows: a
  // torn line, or lines whose neighbour in another file never reached the disk. kRefuse: an
  // existing file that is not empty is an error.
  static Result<std::unique_ptr<LineWriter>> Open(const Options& options);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Lines that the files already hold: the first index to run.
  int64_t first_index() const { return first_index_; }
  // Of those, how many lie in the file.
  int64_t kept(size_t file) const { return files_[file].kept; }
  // Hands over the line of `index` (without newline). Each index once.
  Status Put(int64_t index, std::string line, size_t file = 0);
  // Bytes that wait for the line of an earlier index.
  size_t waiting_bytes() const;
  // Writes what is left to the disk. Lines that wait for a missing index stay unwritten.
  Status Close();

 private:
  struct File {
    std::FILE* file = nullptr;
    int64_t kept = 0;
  };
  struct Waiting {
    size_t file = 0;
    std::string line;
  };
  LineWriter() = default;
  Status OpenFile(const std::string& path, Existing existing);
  Status Keep(const Options& options);

  mutable std::mutex mutex_;
  std::vector<File> files_;
  int64_t first_index_ = 0;
  int64_t next_ = 0;
  std::map<int64_t, Waiting> waiting_;
  size_t waiting_bytes_ = 0;
};

// Lines that are not blank, or fewer when the file cannot be read to its end.
Result<int64_t> CountLines(const std::string& path);

}  // namespace deepinfer
