// Whether a helper of a compute pool takes part: judged by what it brings. The time it worked
// beside the caller counts for it; the time lost because one of the two had no core counts against
// it. When the balance turns negative it sits out for a multiple of what it cost, longer each time
// in a row. So the cost is bounded whatever a busy neighbour does, and a helper that pays is kept.
// Plain state of one thread; times are given, never read.
#pragma once

#include <cstdint>

namespace deepinfer {

class HelperTrust {
 public:
  // A job ended `lost_ns` later than its chunks take. `worked_ns` is all the time the helper ever
  // spent in chunks beside the caller, this loss included; `helpers` take part.
  void Lost(int64_t now_ns, int64_t lost_ns, int64_t worked_ns, int helpers);
  // Ends the time on the bench when it is over; true if it ended now. `worked_ns` as above.
  bool TryReturn(int64_t now_ns, int64_t worked_ns);

  bool benched() const { return benched_; }
  int64_t benched_until_ns() const { return benched_until_ns_; }

 private:
  void Bench(int64_t now_ns);

  bool benched_ = false;
  int failures_ = 0;        // stays in a row that did not pay
  int64_t lost_ns_ = 0;     // not judged yet
  int64_t judged_ns_ = 0;   // of worked_ns
  int64_t balance_ns_ = 0;  // capped: old merits excuse little
  int64_t earned_ns_ = 0;   // since it takes part
  int64_t benched_until_ns_ = 0;
};

}  // namespace deepinfer
