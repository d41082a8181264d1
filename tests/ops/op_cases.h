// The case table of the operators whose rows are independent: each case runs a stage over chosen
// rows of a fixed input and returns their outputs. Used by the conformance, modes and invariance
// tests for any backend. One thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace deepinfer {

struct OpCase {
  std::string name;
  int rows = 0;
  double tolerance = 0.0;  // against the reference, over the root mean square of its output
  // Binds weights once, then returns the outputs of `rows`, concatenated, as often as called.
  using RunFn = std::function<std::vector<float>(const std::vector<int32_t>& rows)>;
  std::function<RunFn(Backend* backend)> prepare;
};

std::vector<OpCase> OpCases();

}  // namespace deepinfer
