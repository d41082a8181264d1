#include "apps/bench_stats.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/rng.h"

namespace deepinfer {
namespace {

double Quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (place - std::floor(place)) * (sorted[high] - sorted[low]);
}

}  // namespace

Summary Summarize(std::vector<double> values) {
  Summary out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (double v : values) sum += v;
  out.mean = sum / static_cast<double>(values.size());
  out.median = Quantile(values, 0.5);
  out.p90 = Quantile(values, 0.9);
  out.p99 = Quantile(values, 0.99);
  return out;
}

Json ToJson(const Summary& summary) {
  Json out = Json::Object();
  out.Set("mean", Json::Double(summary.mean));
  out.Set("median", Json::Double(summary.median));
  out.Set("p90", Json::Double(summary.p90));
  out.Set("p99", Json::Double(summary.p99));
  return out;
}

std::vector<TokenId> SyntheticPrompt(uint64_t seed, int64_t index, int count,
                                     const EngineLimits& limits) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto words =
        Philox4x32(seed, {static_cast<uint32_t>(index), static_cast<uint32_t>(i), 0, 1});
    const auto drawn = static_cast<TokenId>(words[0] % static_cast<uint32_t>(limits.vocab));
    ids[i] = drawn == limits.image_id ? (drawn + 1) % limits.vocab : drawn;
  }
  return ids;
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class TimingBoard::Sink final : public OutputSink {
 public:
  Sink(TimingBoard* board, size_t index) : board_(board), index_(index) {}
  void OnOutput(OutputDelta delta) override {
    RequestTimes& times = board_->times_[index_];
    const double now = NowSeconds();
    if (!delta.token_ids.empty()) {
      if (times.tokens == 0) {
        times.first = now;
      } else {
        times.gaps.push_back(now - times.last);
        times.gap_tokens.push_back(static_cast<int64_t>(delta.token_ids.size()));
      }
      times.last = now;
      times.tokens += static_cast<int64_t>(delta.token_ids.size());
    }
    if (delta.finish == FinishReason::kError || delta.finish == FinishReason::kCancelled) {
      times.failed = true;
      times.error = delta.error;
    }
    if (delta.last) board_->Finish();
  }

 private:
  TimingBoard* board_;
  size_t index_;
};

TimingBoard::TimingBoard(size_t requests) : times_(requests) {
  sinks_.reserve(requests);
  for (size_t i = 0; i < requests; ++i) sinks_.emplace_back(this, i);
}

TimingBoard::~TimingBoard() { WaitAll(); }

void TimingBoard::Submit(Engine* engine, size_t i, Request request) {
  {
    const std::lock_guard lock(mutex_);
    ++open_;
  }
  times_[i].submitted = NowSeconds();
  const Result<RequestId> id = engine->Submit(std::move(request), &sinks_[i]);
  if (!id.ok()) {
    times_[i].failed = true;
    times_[i].error = id.status().message();
    Finish();
  }
}

void TimingBoard::Finish() {
  const std::lock_guard lock(mutex_);
  --open_;
  changed_.notify_all();
}

void TimingBoard::WaitBelow(size_t limit) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return open_ < limit; });
}

double TimingBoard::AllStarted() const {
  double latest = 0;
  for (const RequestTimes& t : times_) latest = std::max(latest, t.first);
  return latest;
}

}  // namespace deepinfer
