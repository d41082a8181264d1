#include "apps/stream_sink.h"

#include <cerrno>
#include <cstring>

#include "apps/bench_stats.h"
#include "base/format.h"

namespace deepinfer {

std::string StreamResult::SpeedLine() const {
  const double decode = total_s - first_token_s;
  std::string line = Format("{} prompt tokens ({} cached), first token after {:.0f} ms; {} tokens",
                            usage.prompt_tokens, usage.cached_tokens, first_token_s * 1e3,
                            usage.completion_tokens);
  if (usage.completion_tokens > 1 && decode > 0) {
    line +=
        Format(" at {:.1f} tokens/s", static_cast<double>(usage.completion_tokens - 1) / decode);
  }
  return line;
}

StreamSink::StreamSink() : begin_(NowSeconds()) {}

void StreamSink::OnOutput(OutputDelta delta) {
  const std::lock_guard lock(mutex_);
  if (result_.first_token_s == 0 && !delta.token_ids.empty()) {
    result_.first_token_s = NowSeconds() - begin_;
  }
  samples_[delta.sample] += delta.text;
  if (delta.finish != FinishReason::kNone) {
    finished_[delta.sample] = true;
    result_.finish = delta.finish;
    result_.usage.prompt_tokens = delta.usage.prompt_tokens;
    result_.usage.cached_tokens = delta.usage.cached_tokens;
    result_.usage.completion_tokens += delta.usage.completion_tokens;
  }
  if (delta.finish == FinishReason::kError) {
    result_.status = Status(static_cast<StatusCode>(delta.error_code), delta.error);
  }
  if (delta.last) {
    result_.total_s = NowSeconds() - begin_;
    last_ = true;
  }
  changed_.notify_one();
}

void StreamSink::AwaitLast() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return last_; });
}

StreamResult StreamSink::Print(std::FILE* out) {
  std::unique_lock lock(mutex_);
  int sample = 0;
  size_t printed = 0;
  while (true) {
    changed_.wait(lock,
                  [&] { return last_ || finished_[sample] || samples_[sample].size() > printed; });
    const std::string piece = samples_[sample].substr(printed);
    printed += piece.size();
    const bool end_of_sample = last_ || finished_[sample];
    const bool end = last_ && samples_.upper_bound(sample) == samples_.end();
    lock.unlock();
    std::fwrite(piece.data(), 1, piece.size(), out);
    if (end_of_sample) std::fputc('\n', out);
    const bool written = std::fflush(out) == 0 && std::ferror(out) == 0;
    const int error = errno;
    lock.lock();
    if (!written) {
      // Nobody reads any more: the caller ends the request, which this object must outlive.
      StreamResult lost;
      lost.status = Invalid(Format("cannot write the answer: {}", std::strerror(error)));
      return lost;
    }
    if (end) break;
    if (end_of_sample && samples_[sample].size() == printed) {
      ++sample;
      printed = 0;
    }
  }
  for (const auto& [index, text] : samples_) result_.text += text;
  return result_;
}

}  // namespace deepinfer
