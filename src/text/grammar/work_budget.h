// Steps that a compilation may still take: what bounds its time on hostile input.
// Used by one thread.
#pragma once

#include <cstdint>

#include "deepinfer/status.h"

namespace deepinfer {

class WorkBudget {
 public:
  explicit WorkBudget(int64_t steps) : left_(steps) {}

  // False once everything is spent.
  bool Spend(int64_t steps) {
    left_ -= steps;
    return left_ >= 0;
  }
  bool spent() const { return left_ < 0; }
  static Status Error() {
    return Invalid("the grammar takes too long to compile: make it smaller or less ambiguous");
  }

 private:
  int64_t left_;
};

}  // namespace deepinfer
