#include "base/helper_trust.h"

#include <algorithm>

namespace deepinfer {
namespace {

// Losses are judged when they add up to this.
constexpr int64_t kJudgedNs = 200'000;
// What excuses a loss: merits of the last few times that a neighbour had the core.
constexpr int64_t kBalanceMaxNs = 5'000'000;
// Cores that share a memory do less together than each alone: reading weights for one row, two are
// a fifth faster than one.
constexpr int64_t kWorkPerGain = 5;
// A loss of one part in this many, at first; each failure in a row halves it.
constexpr int64_t kBenchPerLoss = 10;
constexpr int kFailuresMax = 3;
constexpr int64_t kBenchMinNs = 10'000'000;
constexpr int64_t kBenchMaxNs = 150'000'000;

}  // namespace

void HelperTrust::Lost(int64_t now_ns, int64_t lost_ns, int64_t worked_ns, int helpers) {
  lost_ns_ += lost_ns;
  if (lost_ns_ < kJudgedNs) return;
  // While it was waited for it was inside a chunk as well, running or not.
  const int64_t worked = std::max<int64_t>(0, worked_ns - judged_ns_ - lost_ns_);
  // Without it the others would share its work.
  const int64_t gain = worked / (kWorkPerGain * std::max(1, helpers)) - lost_ns_;
  judged_ns_ = worked_ns;
  lost_ns_ = 0;
  earned_ns_ += gain;
  balance_ns_ = std::min(balance_ns_ + gain, kBalanceMaxNs);
  if (balance_ns_ < 0) Bench(now_ns);
}

void HelperTrust::Bench(int64_t now_ns) {
  const int64_t loss = std::max(-balance_ns_, -earned_ns_);
  if (earned_ns_ >= loss) {
    failures_ = 0;
  } else if (earned_ns_ < 0) {
    failures_ = std::min(failures_ + 1, kFailuresMax);
  }
  const int64_t scaled = std::min(loss, kBenchMaxNs) * kBenchPerLoss << failures_;
  benched_ = true;
  benched_until_ns_ = now_ns + std::clamp(scaled, kBenchMinNs, kBenchMaxNs);
}

bool HelperTrust::TryReturn(int64_t now_ns, int64_t worked_ns) {
  if (!benched_ || now_ns < benched_until_ns_) return false;
  benched_ = false;
  lost_ns_ = 0;
  judged_ns_ = worked_ns;
  balance_ns_ = 0;
  earned_ns_ = 0;
  return true;
}

}  // namespace deepinfer
