// Tiny checkpoints of every family against reference outputs in float32, and the same tokens to the
// bit in chunks and batches, in float32 and in the default dtype, on every ISA of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/format.h"
#include "tests/golden/golden_model.h"

namespace deepinfer {
namespace {

constexpr const char* kFamilies[] = {"llama",     "llama3rope",  "qwen2",       "qwen3",
                                     "qwen3_moe", "deepseek_v3", "deepseek_v4", "deepseek_v4_swa"};
constexpr double kLogprobTolerance = 2e-4;
constexpr double kMarginMin = 1e-3;  // below it another correct implementation may differ

std::string Directory(const char* family) { return Format("tests/golden/data/{}", family); }

std::vector<double> LogProbs(const float* logits, int vocab) {
  const double max = *std::max_element(logits, logits + vocab);
  double sum = 0.0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(double{logits[i]} - max);
  std::vector<double> result;
  for (int i = 0; i < vocab; ++i) result.push_back(double{logits[i]} - max - std::log(sum));
  return result;
}

void ExpectGolden(const GoldenCase& want, const CaseOutput& got, int vocab) {
  for (size_t i = 1; i < want.prompt.size(); ++i) {
    const auto logprobs = LogProbs(got.logits.data() + (i - 1) * static_cast<size_t>(vocab), vocab);
    EXPECT_NEAR(logprobs[static_cast<size_t>(want.prompt[i])], want.prompt_logprobs[i],
                kLogprobTolerance)
        << "prompt token " << i << " of " << want.prompt.size();
  }
  const auto last =
      LogProbs(got.logits.data() + (want.prompt.size() - 1) * static_cast<size_t>(vocab), vocab);
  for (const auto& [id, logprob] : want.last_top) {
    EXPECT_NEAR(last[static_cast<size_t>(id)], logprob, kLogprobTolerance) << "id " << id;
  }
  if (want.min_margin > kMarginMin) {
    EXPECT_EQ(got.greedy, want.greedy) << "after " << want.prompt.size() << " tokens";
  }
}

struct Mode {
  const char* isa;
  ComputeDtype dtype;
};

std::unique_ptr<GoldenModel> OpenModel(const char* family, const Mode& mode,
                                       TieOrder ties = TieOrder::kProduct) {
  // The machine decides about the ISA; whatever else fails is a failure of the test.
  const BackendOptions options{
      .device = "cpu", .threads = 2, .dtype = mode.dtype, .cpu_isa = mode.isa};
  if (!CreateBackend(options).ok()) return nullptr;
  Result<std::unique_ptr<GoldenModel>> model = GoldenModel::Open(Directory(family), options, ties);
  DI_CHECK(model.ok(), "{}", model.status().message());
  return std::move(model).value();
}

class Golden : public testing::TestWithParam<Mode> {};

TEST_P(Golden, AgreesWithTheReferenceInFloat32) {
  if (GetParam().dtype != ComputeDtype::kFloat32) GTEST_SKIP() << "goldens hold in float32";
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    const auto model = OpenModel(family, GetParam(), TieOrder::kReference);
    if (model == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam().isa;
    const std::vector<GoldenCase> cases = ReadGolden(Directory(family));
    ASSERT_FALSE(cases.empty());
    const std::vector<CaseOutput> outputs = model->Run(cases, {});
    for (size_t i = 0; i < cases.size(); ++i) ExpectGolden(cases[i], outputs[i], model->vocab());
  }
}

TEST_P(Golden, ChunksAndBatchesAreEqualToTheBit) {
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    const auto model = OpenModel(family, GetParam());
    if (model == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam().isa;
    const std::vector<GoldenCase> cases = ReadGolden(Directory(family));
    const std::vector<CaseOutput> whole = model->Run(cases, {});
    for (const RunMode& mode : {RunMode{.chunk = 1}, RunMode{.chunk = 7}, RunMode{.chunk = 64},
                                RunMode{.batch = true}, RunMode{.chunk = 7, .batch = true}}) {
      const std::vector<CaseOutput> other = model->Run(cases, mode);
      for (size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(whole[i].greedy, other[i].greedy);
        ASSERT_EQ(whole[i].logits.size(), other[i].logits.size());
        EXPECT_EQ(memcmp(whole[i].logits.data(), other[i].logits.data(),
                         whole[i].logits.size() * sizeof(float)),
                  0)
            << "chunk " << mode.chunk << (mode.batch ? ", batch" : "") << ", prompt of "
            << cases[i].prompt.size();
      }
    }
  }
}

// The default dtype is an approximation of the same model: close, and not a copy of float32.
TEST_P(Golden, DefaultDtypeStaysClose) {
  if (GetParam().dtype != ComputeDtype::kAuto) GTEST_SKIP() << "compares the default dtype";
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    const auto model = OpenModel(family, GetParam());
    if (model == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam().isa;
    const auto exact = OpenModel(family, {GetParam().isa, ComputeDtype::kFloat32});
    std::vector<GoldenCase> cases = ReadGolden(Directory(family));
    for (GoldenCase& golden : cases) golden.greedy.resize(1);
    const std::vector<CaseOutput> got = model->Run(cases, {.batch = true});
    const std::vector<CaseOutput> want = exact->Run(cases, {.batch = true});
    double divergence = 0.0;
    size_t tokens = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      for (size_t t = 0; t < cases[i].prompt.size(); ++t, ++tokens) {
        const size_t at = t * static_cast<size_t>(model->vocab());
        const auto p = LogProbs(want[i].logits.data() + at, model->vocab());
        const auto q = LogProbs(got[i].logits.data() + at, model->vocab());
        for (size_t v = 0; v < p.size(); ++v) divergence += std::exp(p[v]) * (p[v] - q[v]);
      }
    }
    // Rounding makes a few tokens of these choose other experts or entries.
    const bool chooses = std::string_view(family).starts_with("deepseek");
    EXPECT_LE(divergence / static_cast<double>(tokens), chooses ? 0.05 : 0.01) << family;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, Golden,
    testing::Values(Mode{"scalar", ComputeDtype::kAuto}, Mode{"scalar", ComputeDtype::kFloat32},
                    Mode{"avx2", ComputeDtype::kAuto}, Mode{"avx2", ComputeDtype::kFloat32},
                    Mode{"avx512", ComputeDtype::kAuto}, Mode{"avx512", ComputeDtype::kFloat32},
                    Mode{"amx", ComputeDtype::kAuto}, Mode{"amx", ComputeDtype::kFloat32}),
    [](const testing::TestParamInfo<Mode>& param) {
      return Format("{}_{}", param.param.isa,
                    param.param.dtype == ComputeDtype::kAuto ? "auto" : "float32");
    });

}  // namespace
}  // namespace deepinfer
