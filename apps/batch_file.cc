#include "apps/batch_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

Status ReadPrompt(const Json& value, BatchLine* out) {
  if (value.is_string()) {
    out->text = value.string();
    return {};
  }
  if (!value.is_array()) {
    return Invalid("\"prompt\" must be text or a list of token ids").WithParam("prompt");
  }
  for (const Json& item : value.items()) {
    DI_ASSIGN(const int64_t id, item.AsInt());
    if (id < 0 || id > INT32_MAX) {
      return Invalid(Format("token id {} is outside 0..{}", id, INT32_MAX)).WithParam("prompt");
    }
    out->ids.push_back(static_cast<TokenId>(id));
  }
  if (out->ids.empty()) return Invalid("\"prompt\" holds no token id").WithParam("prompt");
  return {};
}

Status ReadLineFields(const Json& value, BatchLine* out) {
  if (!value.is_object()) return Invalid("the line is not a JSON object");
  if (const Json* id = value.Find("id")) out->id = *id;
  const Json* prompt = value.Find("prompt");
  const Json* messages = value.Find("messages");
  if ((prompt == nullptr) == (messages == nullptr)) {
    return Invalid("the line needs either \"prompt\" or \"messages\"");
  }
  if (const Json* params = value.Find("params")) {
    if (!params->is_object() && !params->is_null()) {
      return Invalid("\"params\" must be an object").WithParam("params");
    }
    out->params = *params;
  }
  if (prompt != nullptr) return ReadPrompt(*prompt, out);
  if (!messages->is_array() || messages->items().empty()) {
    return Invalid("\"messages\" must be a list with at least one message").WithParam("messages");
  }
  out->messages = *messages;
  return {};
}

// Whole lines at the head of `file` that carry the indices 0, 1, 2, ...; `bytes` is their length.
Result<int64_t> CountKept(std::FILE* file, const std::string& path, int64_t* bytes) {
  char* buffer = nullptr;
  size_t capacity = 0;
  int64_t lines = 0;
  *bytes = 0;
  Status status;
  for (ssize_t n; (n = getline(&buffer, &capacity, file)) > 0;) {
    const std::string_view line(buffer, static_cast<size_t>(n));
    if (line.back() != '\n') break;  // torn by a kill: written again
    const Result<Json> value = Json::Parse(line.substr(0, line.size() - 1));
    const Result<int64_t> index = value.ok() ? value->GetInt("index", -1) : Result<int64_t>(-1);
    if (!index.ok() || *index != lines) {
      status =
          Invalid(Format("{} line {} is not the result with index {}: it was not written by "
                         "this command; give another --output",
                         path, lines + 1, lines));
      break;
    }
    ++lines;
    *bytes += n;
  }
  std::free(buffer);
  DI_TRY(std::move(status));
  return lines;
}

}  // namespace

BatchLine ParseBatchLine(int64_t index, std::string_view line) {
  BatchLine out;
  out.index = index;
  const Result<Json> value = Json::Parse(line);
  out.status = value.ok() ? ReadLineFields(*value, &out) : value.status();
  return out;
}

Result<std::unique_ptr<BatchReader>> BatchReader::Open(const std::string& path) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return Errno("open", path);
  return std::unique_ptr<BatchReader>(new BatchReader(file));
}

BatchReader::~BatchReader() {
  if (file_ != stdin) std::fclose(file_);
}

Result<BatchReader::Line> BatchReader::ReadLine(std::string* line) {
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

Result<std::optional<BatchLine>> BatchReader::Next() {
  std::string line;
  while (true) {
    DI_ASSIGN(const Line kind, ReadLine(&line));
    if (kind == Line::kEnd) return std::optional<BatchLine>();
    if (kind == Line::kWhole && IsBlank(line)) continue;
    if (kind == Line::kWhole) return std::optional<BatchLine>(ParseBatchLine(index_++, line));
    BatchLine too_long;
    too_long.index = index_++;
    too_long.status = Invalid(Format("the line is longer than {} bytes", kLineBytesMax));
    return std::optional<BatchLine>(std::move(too_long));
  }
}

Status BatchReader::Skip(int64_t lines) {
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

Result<std::unique_ptr<BatchWriter>> BatchWriter::Open(const Options& options) {
  std::unique_ptr<BatchWriter> writer(new BatchWriter());
  if (options.path == "-") {
    writer->file_ = stdout;
    return writer;
  }
  const int fd = open(options.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Errno("open", options.path);
  writer->file_ = fdopen(fd, "r+b");
  if (writer->file_ == nullptr) {
    Status failed = Errno("open", options.path);
    close(fd);
    return failed;
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) return Errno("look at", options.path);
  if (options.existing == Options::Existing::kRefuse) {
    if (info.st_size > 0) {
      return Invalid(
          Format("{} exists and is not empty: add --resume to go on with it, or remove "
                 "it",
                 options.path));
    }
    return writer;
  }
  int64_t bytes = 0;
  DI_ASSIGN(writer->first_index_, CountKept(writer->file_, options.path, &bytes));
  writer->next_ = writer->first_index_;
  if (ftruncate(fd, bytes) != 0) return Errno("truncate", options.path);
  if (std::fseek(writer->file_, bytes, SEEK_SET) != 0) return Errno("seek in", options.path);
  return writer;
}

BatchWriter::~BatchWriter() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

Status BatchWriter::Put(int64_t index, std::string line) {
  const std::lock_guard lock(mutex_);
  line.push_back('\n');
  waiting_bytes_ += line.size();
  waiting_.emplace(index, std::move(line));
  bool wrote = false;
  for (auto it = waiting_.begin(); it != waiting_.end() && it->first == next_; ++next_) {
    if (std::fwrite(it->second.data(), 1, it->second.size(), file_) != it->second.size()) {
      return Errno("write", "the output");
    }
    waiting_bytes_ -= it->second.size();
    it = waiting_.erase(it);
    wrote = true;
  }
  if (wrote && std::fflush(file_) != 0) return Errno("write", "the output");
  return {};
}

size_t BatchWriter::waiting_bytes() const {
  const std::lock_guard lock(mutex_);
  return waiting_bytes_;
}

Status BatchWriter::Close() {
  const std::lock_guard lock(mutex_);
  if (std::fflush(file_) != 0) return Errno("write", "the output");
  // Pipes and devices have no disk to reach, and say so by EINVAL.
  if (file_ != stdout && fsync(fileno(file_)) != 0 && errno != EINVAL && errno != EROFS) {
    return Errno("sync", "the output");
  }
  return {};
}

}  // namespace deepinfer
