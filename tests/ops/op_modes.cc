#include "tests/ops/op_modes.h"

#include <utility>

#include "base/format.h"

namespace deepinfer {
namespace {

std::vector<OpMode> ModesOf(std::initializer_list<const char*> isas) {
  std::vector<OpMode> modes;
  for (const char* isa : isas) {
    modes.push_back({isa, ComputeDtype::kAuto});
    modes.push_back({isa, ComputeDtype::kFloat32});
  }
  return modes;
}

}  // namespace

std::unique_ptr<Backend> MakeBackend(const OpMode& mode, int threads) {
  Result<std::unique_ptr<Backend>> backend = CreateBackend(
      {.device = "cpu", .threads = threads, .dtype = mode.dtype, .cpu_isa = mode.isa});
  return backend.ok() ? std::move(backend).value() : nullptr;
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
