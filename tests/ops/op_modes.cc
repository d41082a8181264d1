#include "tests/ops/op_modes.h"

#include <cmath>
#include <utility>

#include "base/env.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr char kCuda[] = "cuda";

// BACKEND=cuda: the device in place of the instruction sets of this processor.
std::vector<OpMode> ModesOf(std::vector<const char*> isas) {
  if (GetEnv("BACKEND") == kCuda) isas.assign(1, kCuda);
  std::vector<OpMode> modes;
  for (const char* isa : isas) {
    modes.push_back({isa, ComputeDtype::kAuto});
    modes.push_back({isa, ComputeDtype::kFloat32});
  }
  return modes;
}

}  // namespace

BackendOptions OptionsOf(const OpMode& mode, int threads) {
  const bool cuda = std::string_view(mode.isa) == kCuda;
  return {.device = cuda ? kCuda : "cpu",
          .threads = threads,
          .dtype = mode.dtype,
          .cpu_isa = cuda ? "" : mode.isa,
          .memory = cuda ? BackendOptions::Memory::kHost : BackendOptions::Memory::kDevice};
}

std::unique_ptr<Backend> MakeBackend(const OpMode& mode, int threads) {
  Result<std::unique_ptr<Backend>> backend = CreateBackend(OptionsOf(mode, threads));
  return backend.ok() ? std::move(backend).value() : nullptr;
}

testing::AssertionResult Close(std::span<const float> got, std::span<const double> want,
                               double tolerance) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure() << got.size() << " values, expected " << want.size();
  }
  double worst = 0.0, square = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = std::fabs(double{got[i]} - want[i]);
    if (!(off <= worst)) worst = off;  // NaN too
    square += want[i] * want[i];
  }
  const double size =
      std::max(1e-30, std::sqrt(square / static_cast<double>(std::max<size_t>(1, want.size()))));
  if (worst <= tolerance * size) return testing::AssertionSuccess();
  size_t bad = 0;
  while (std::fabs(double{got[bad]} - want[bad]) <= tolerance * size) ++bad;
  return testing::AssertionFailure() << Format(
             "off by {} of the root mean square, {} allowed; first at {} of {}: got {}, "
             "expected {}",
             worst / size, tolerance, bad, got.size(), got[bad], want[bad]);
}

std::vector<OpMode> AllModes() { return ModesOf({"scalar", "avx2", "avx512", "amx"}); }
std::vector<OpMode> VectorModes() { return ModesOf({"scalar", "avx2", "avx512"}); }

std::string ModeName(const testing::TestParamInfo<OpMode>& param) {
  return Format("{}_{}", param.param.isa,
                param.param.dtype == ComputeDtype::kAuto ? "auto" : "float32");
}

void OpModeTest::SetUp() {
  if (MakeBackend(GetParam(), 1) == nullptr) {
    GTEST_SKIP() << "this machine lacks " << GetParam().isa;
  }
}

std::vector<NamedCut> OtherCuts(int redo) {
  std::vector<NamedCut> cuts = {
      {"batch", 3, {}},
      {"token by token", 3, {.chunk = 1, .together = 1}},
      {"chunks of 7, dead tokens", 3, {.chunk = 7, .dead_per_row = 2}},
      {"chunks of 64", 1, {.chunk = 64, .together = 3}},
  };
  if (redo > 0) {
    cuts.push_back({"drafts taken back", 1, {.chunk = redo + 1, .together = 3, .redo = redo}});
  }
  return cuts;
}

}  // namespace deepinfer
