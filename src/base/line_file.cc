#include "base/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/format.h"

namespace deepinfer {
namespace {

Status Errno(const std::string& what, const std::string& path) {
  return Invalid(Format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Walks over the whole lines of a file that an earlier run wrote.
class Head {
 public:
  Head(std::FILE* file, LineWriter::IndexOf index_of) : file_(file), index_of_(index_of) { Read(); }
  ~Head() { std::free(buffer_); }
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  bool at_end() const { return at_end_; }
  std::optional<int64_t> index() const { return index_; }
  int64_t bytes() const { return bytes_; }  // of the lines passed so far
  int64_t lines() const { return lines_; }
  void Pass() {
    ++lines_;
    bytes_ += length_;
    Read();
  }

 private:
  void Read() {
    const ssize_t n = getline(&buffer_, &capacity_, file_);
    length_ = n;
    at_end_ = n <= 0 || buffer_[n - 1] != '\n';  // torn by a kill: written again
    index_.reset();
    if (!at_end_) index_ = index_of_(std::string_view(buffer_, static_cast<size_t>(n - 1)));
  }

  std::FILE* file_;
  LineWriter::IndexOf index_of_;
  char* buffer_ = nullptr;
  size_t capacity_ = 0;
  int64_t length_ = 0;
  int64_t bytes_ = 0;
  int64_t lines_ = 0;
  bool at_end_ = false;
  std::optional<int64_t> index_;
};

}  // namespace

Result<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return Errno("open", path);
  return std::unique_ptr<LineReader>(new LineReader(file));
}

LineReader::~LineReader() {
  if (file_ != stdin) std::fclose(file_);
}

Result<LineReader::Line> LineReader::ReadLine(std::string* line) {
  line->clear();
  Line kind = Line::kEnd;
  while (true) {
    if (at_ == filled_) {
      at_ = 0;
      filled_ = std::fread(buffer_.data(), 1, buffer_.size(), file_);
      if (filled_ == 0) break;
    }
    const char* begin = buffer_.data() + at_;
    const void* newline = std::memchr(begin, '\n', filled_ - at_);
    const size_t count = newline == nullptr
                             ? filled_ - at_
                             : static_cast<size_t>(static_cast<const char*>(newline) - begin) + 1;
    at_ += count;
    if (kind == Line::kEnd) kind = Line::kWhole;
    // The rest of a giant is passed over: the lines after it are as good as any.
    if (line->size() + count > kLineBytesMax) kind = Line::kTooLong;
    if (kind == Line::kWhole) line->append(begin, count);
    if (newline != nullptr) return kind;
  }
  if (std::ferror(file_) != 0) return Errno("read", "the input");
  return kind;
}

Result<std::optional<LineRecord>> LineReader::Next() {
  LineRecord record;
  while (true) {
    DI_ASSIGN(const Line kind, ReadLine(&record.text));
    if (kind == Line::kEnd) return std::optional<LineRecord>();
    if (kind == Line::kWhole && IsBlank(record.text)) continue;
    record.index = index_++;
    record.too_long = kind == Line::kTooLong;
    if (record.too_long) record.text = std::string();
    return std::optional<LineRecord>(std::move(record));
  }
}

Status LineReader::Skip(int64_t lines) {
  std::string line;
  while (index_ < lines) {
    DI_ASSIGN(const Line kind, ReadLine(&line));
    if (kind == Line::kEnd) {
      return Invalid(
          Format("the output holds {} results, the input only {} lines: they do not "
                 "belong together",
                 lines, index_));
    }
    if (kind == Line::kTooLong || !IsBlank(line)) ++index_;
  }
  return {};
}

Status LineWriter::OpenFile(const std::string& path, Existing existing) {
  File& entry = files_.emplace_back();
  if (path == "-") {
    entry.file = stdout;
    return {};
  }
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Errno("open", path);
  entry.file = fdopen(fd, "r+b");
  if (entry.file == nullptr) {
    Status failed = Errno("open", path);
    close(fd);
    return failed;
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) return Errno("look at", path);
  if (existing == Existing::kRefuse && info.st_size > 0) {
    return Invalid(
        Format("{} exists and is not empty: add --resume to go on with it, or remove it", path));
  }
  return {};
}

// Merges the files by index up to the first that is missing.
Status LineWriter::Keep(const Options& options) {
  std::vector<std::unique_ptr<Head>> heads;
  for (const File& entry : files_) {
    heads.push_back(std::make_unique<Head>(entry.file, options.index_of));
  }
  for (bool found = true; found;) {
    found = false;
    for (const auto& head : heads) {
      if (head->at_end() || head->index() != next_) continue;
      head->Pass();
      ++next_;
      found = true;
    }
  }
  first_index_ = next_;
  for (size_t i = 0; i < heads.size(); ++i) {
    const Head& head = *heads[i];
    const bool gap = heads.size() > 1 && head.index().has_value() && *head.index() > next_;
    if (!head.at_end() && !gap) {
      return Invalid(
          Format("{} line {} is not the result with index {}: it was not written by this command; "
                 "give another output",
                 options.paths[i], head.lines() + 1, next_));
    }
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    File& entry = files_[i];
    entry.kept = heads[i]->lines();
    if (ftruncate(fileno(entry.file), heads[i]->bytes()) != 0) {
      return Errno("truncate", options.paths[i]);
    }
    if (std::fseek(entry.file, heads[i]->bytes(), SEEK_SET) != 0) {
      return Errno("seek in", options.paths[i]);
    }
  }
  return {};
}

Result<std::unique_ptr<LineWriter>> LineWriter::Open(const Options& options) {
  std::unique_ptr<LineWriter> writer(new LineWriter());
  for (const std::string& path : options.paths) {
    DI_TRY(writer->OpenFile(path, options.existing));
  }
  if (options.existing == Existing::kResume) DI_TRY(writer->Keep(options));
  return writer;
}

LineWriter::~LineWriter() {
  for (const File& entry : files_) {
    if (entry.file != nullptr && entry.file != stdout) std::fclose(entry.file);
  }
}

Status LineWriter::Put(int64_t index, std::string line, size_t file) {
  const std::lock_guard lock(mutex_);
  line.push_back('\n');
  waiting_bytes_ += line.size();
  waiting_.emplace(index, Waiting{file, std::move(line)});
  std::vector<bool> wrote(files_.size());
  for (auto it = waiting_.begin(); it != waiting_.end() && it->first == next_; ++next_) {
    const std::string& text = it->second.line;
    if (std::fwrite(text.data(), 1, text.size(), files_[it->second.file].file) != text.size()) {
      return Errno("write", "the output");
    }
    wrote[it->second.file] = true;
    waiting_bytes_ -= text.size();
    it = waiting_.erase(it);
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    if (wrote[i] && std::fflush(files_[i].file) != 0) return Errno("write", "the output");
  }
  return {};
}

size_t LineWriter::waiting_bytes() const {
  const std::lock_guard lock(mutex_);
  return waiting_bytes_;
}

Status LineWriter::Close() {
  const std::lock_guard lock(mutex_);
  for (const File& entry : files_) {
    if (std::fflush(entry.file) != 0) return Errno("write", "the output");
    // Pipes and devices have no disk to reach, and say so by EINVAL.
    if (entry.file != stdout && fsync(fileno(entry.file)) != 0 && errno != EINVAL &&
        errno != EROFS) {
      return Errno("sync", "the output");
    }
  }
  return {};
}

Result<int64_t> CountLines(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return Errno("open", path);
  std::vector<char> buffer(size_t{1} << 20);
  int64_t lines = 0;
  size_t length = 0;
  bool blank = true;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), file)) > 0;) {
    for (size_t i = 0; i < n; ++i) {
      const char c = buffer[i];
      blank = blank && (c == ' ' || c == '\t' || c == '\r' || c == '\n') &&
              ++length <= LineReader::kLineBytesMax;
      if (c != '\n') continue;
      lines += blank ? 0 : 1;
      blank = true;
      length = 0;
    }
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return Errno("read", path);
  return lines + (blank ? 0 : 1);
}

}  // namespace deepinfer
