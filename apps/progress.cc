#include "apps/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/bench_stats.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kBarWidth = 24;

std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  return s >= 3600 ? Format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : Format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

Progress::Progress(std::string unit, int64_t total)
    : unit_(std::move(unit)),
      total_(total),
      shown_(isatty(STDERR_FILENO) == 1),
      begin_(NowSeconds()) {}

Progress::~Progress() {
  if (drawn_) std::fputc('\n', stderr);
}

void Progress::Update(int64_t done, int64_t tokens) {
  if (first_done_ < 0) first_done_ = done;
  const double now = NowSeconds();
  if (!shown_ || (now - last_draw_ < kRedrawSeconds && done != total_)) return;
  last_draw_ = now;
  Draw(done, tokens, now);
}

void Progress::Draw(int64_t done, int64_t tokens, double now) {
  const double seconds = std::max(now - begin_, 1e-3);
  std::string line;
  if (total_ > 0) {
    const auto filled = static_cast<size_t>(std::clamp(
        static_cast<double>(done) / static_cast<double>(total_) * kBarWidth, 0.0, 1.0 * kBarWidth));
    line = Format("[{}{}] {}/{} {}", std::string(filled, '#'), std::string(kBarWidth - filled, '.'),
                  done, total_, unit_);
  } else {
    line = Format("{} {}", done, unit_);
  }
  if (tokens > 0) line += Format("  {:.0f} tokens/s", static_cast<double>(tokens) / seconds);
  if (total_ > done && done > first_done_) {
    const double rate = static_cast<double>(done - first_done_) / seconds;
    line += "  " + Duration(static_cast<double>(total_ - done) / rate) + " left";
  }
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace deepinfer
