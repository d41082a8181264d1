// What the suites of this folder share: the ways in which each runs (instruction set x arithmetic),
// backends for them, and sequences cut into steps. Plain functions, one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "tests/harness/host_rows.h"

namespace deepinfer {

struct OpMode {
  const char* isa;
  ComputeDtype dtype;
};

BackendOptions OptionsOf(const OpMode& mode, int threads);
// nullptr: this machine lacks the instruction set, or the device.
std::unique_ptr<Backend> MakeBackend(const OpMode& mode, int threads);

// The largest difference is within `tolerance` of the root mean square of `want`; says where it is
// not.
testing::AssertionResult Close(std::span<const float> got, std::span<const double> want,
                               double tolerance);

// All, and those of operators that have no matrix-tile variant of their own.
std::vector<OpMode> AllModes();
std::vector<OpMode> VectorModes();
// "avx2_float32": the last argument of INSTANTIATE_TEST_SUITE_P.
std::string ModeName(const testing::TestParamInfo<OpMode>& param);

// What Run(backend, case) gives for every case with the plain loops; once for each arithmetic.
template <auto Run, typename Cases>
const auto& Reference(ComputeDtype dtype, const Cases& cases) {
  using Output = decltype(Run(static_cast<Backend*>(nullptr), *cases.begin()));
  static std::map<ComputeDtype, std::vector<Output>> made;
  const auto [at, is_new] = made.try_emplace(dtype);
  if (!is_new) return at->second;
  const auto backend = MakeBackend({"scalar", dtype}, 2);
  for (const auto& one : cases) at->second.push_back(Run(backend.get(), one));
  return at->second;
}

// A suite that runs once in every mode that the machine has.
class OpModeTest : public testing::TestWithParam<OpMode> {
 protected:
  void SetUp() override;
  static bool Scalar() { return std::string_view(GetParam().isa) == "scalar"; }
  // Stages that a device computes with rounded inputs.
  static bool Rounded() { return std::string_view(GetParam().isa) == "cuda" && !Float32(); }
  static bool Float32() { return GetParam().dtype == ComputeDtype::kFloat32; }
};

// How sequences are cut into steps.
struct StepCut {
  int chunk = 1000;      // tokens of a sequence in one step
  int together = 100;    // sequences in one step
  int dead_per_row = 0;  // tokens after each of them that compute nothing
  int redo = 0;          // tokens of each step but the last that are taken back and run again
};

// Calls step(queries) for one step after the other, until every sequence has its length.
template <typename Step>
void RunInSteps(std::span<const int> lengths, const StepCut& cut, const Step& step) {
  const auto count = static_cast<int>(lengths.size());
  for (int first = 0; first < count; first += cut.together) {
    for (int start = 0;; start += cut.chunk - cut.redo) {
      std::vector<HostRows::Query> queries;
      for (int s = first; s < std::min(count, first + cut.together); ++s) {
        const int left = lengths[static_cast<size_t>(s)] - start;
        if (left <= 0) continue;
        queries.push_back(
            {.sequence = s,
             .start = start,
             .tokens = std::vector<int32_t>(static_cast<size_t>(std::min(cut.chunk, left)), 1)});
      }
      if (queries.empty()) break;
      step(queries);
    }
  }
}

// The cuts that must change nothing, against {.together = 1} on one thread. `redo`: drafts that the
// cache can take back; 0: none.
struct NamedCut {
  const char* name;
  int threads;
  StepCut cut;
};
std::vector<NamedCut> OtherCuts(int redo);

}  // namespace deepinfer
