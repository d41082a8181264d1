// The JSONL files of `generate --input --output`: a bounded reader and an ordered, resumable
// writer. Reader: one thread. Writer: any thread calls Put; lines reach the file in input order.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// One input line: {"id"?, "prompt": text or [ids] | "messages": [...], "params"?: {...}}.
struct BatchLine {
  int64_t index = 0;
  Status status;  // why the line cannot run; the other fields are then unset
  Json id;        // echoed as it came; null when absent
  std::optional<std::string> text;
  std::vector<TokenId> ids;
  Json messages;  // null or an array
  Json params;    // null or an object
};

class BatchReader {
 public:
  static constexpr size_t kLineBytesMax = size_t{64} << 20;

  // "-" reads standard input.
  static Result<std::unique_ptr<BatchReader>> Open(const std::string& path);
  ~BatchReader();
  // The next line that is not blank; nullopt at the end. A bad line is a BatchLine with a status,
  // a file that cannot be read is an error.
  Result<std::optional<BatchLine>> Next();
  // Passes over the next `lines` lines that are not blank; error when there are fewer.
  Status Skip(int64_t lines);

 private:
  explicit BatchReader(std::FILE* file) : file_(file), buffer_(size_t{1} << 16) {}
  enum class Line { kEnd, kWhole, kTooLong };
  Result<Line> ReadLine(std::string* line);
  std::FILE* file_;
  std::vector<char> buffer_;  // bytes [at_, filled_) are still to be used
  size_t at_ = 0;
  size_t filled_ = 0;
  int64_t index_ = 0;
};

// Parses one line; never fails otherwise than in BatchLine::status.
BatchLine ParseBatchLine(int64_t index, std::string_view line);

class BatchWriter {
 public:
  struct Options {
    std::string path;  // "-" writes standard output; cannot be resumed
    enum class Existing { kRefuse, kResume } existing = Existing::kRefuse;
  };
  // kResume: keeps the whole lines of an earlier run (each with its own index, in order), drops a
  // torn last line. kRefuse: an existing file that is not empty is an error.
  static Result<std::unique_ptr<BatchWriter>> Open(const Options& options);
  ~BatchWriter();
  // Lines that the file already holds: the first index to run.
  int64_t first_index() const { return first_index_; }
  // Hands over the line of `index` (without newline). Each index once.
  Status Put(int64_t index, std::string line);
  // Bytes that wait for the line of an earlier index.
  size_t waiting_bytes() const;
  // Writes what is left to the disk. Lines that wait for a missing index stay unwritten.
  Status Close();

 private:
  BatchWriter() = default;
  mutable std::mutex mutex_;
  std::FILE* file_ = nullptr;
  int64_t first_index_ = 0;
  int64_t next_ = 0;
  std::map<int64_t, std::string> waiting_;
  size_t waiting_bytes_ = 0;
};

}  // namespace deepinfer
