// Every operator whose rows are independent, on every ISA of this machine: agreement with the
// plain-loop reference, and rows that come out alike in any company and on any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/format.h"
#include "tests/harness/memory_tensors.h"
#include "tests/ops/op_cases.h"
#include "tests/ops/op_modes.h"

namespace deepinfer {
namespace {

std::vector<int32_t> AllRows(int count) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

using Ops = OpModeTest;

std::vector<float> RunWhole(Backend* backend, const OpCase& op) {
  return op.prepare(backend)(AllRows(op.rows));
}

// A card's own types (bfloat16, FP8) are not the processor's: there the stage is held to float32,
// by the length of the error.
constexpr double kCardTolerance = 5e-3;

TEST_P(Ops, AgreesWithTheReference) {
  if (Scalar()) GTEST_SKIP() << "the reference";
  const auto backend = MakeBackend(GetParam(), 2);
  const bool card = Rounded();
  size_t next = 0;
  for (const OpCase& op : OpCases()) {
    const std::vector<float>& want =
        Reference<RunWhole>(card ? ComputeDtype::kFloat32 : GetParam().dtype, OpCases())[next++];
    const std::vector<float> got = RunWhole(backend.get(), op);
    ASSERT_EQ(want.size(), got.size()) << op.name;
    double square = 0.0;
    double worst = 0.0;
    double error = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(std::isfinite(got[i])) << op.name << " element " << i;
      const double off = std::abs(double{want[i]} - double{got[i]});
      square += double{want[i]} * double{want[i]};
      error += off * off;
      worst = std::max(worst, off);
    }
    const double scale = std::sqrt(square / static_cast<double>(want.size()));
    EXPECT_GT(scale, 0.0) << op.name;
    if (card) {
      EXPECT_LE(std::sqrt(error / square), kCardTolerance) << op.name;
    } else {
      EXPECT_LE(worst, op.tolerance * scale) << op.name;
    }
  }
}

// Rows of `out` that belong to `rows`.
std::vector<float> Pick(const std::vector<float>& out, int all, const std::vector<int32_t>& rows) {
  const size_t cols = out.size() / static_cast<size_t>(all);
  std::vector<float> picked;
  for (int32_t row : rows) {
    const auto begin = out.begin() + static_cast<int64_t>(static_cast<size_t>(row) * cols);
    picked.insert(picked.end(), begin, begin + static_cast<int64_t>(cols));
  }
  return picked;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(Ops, RowsDoNotDependOnTheirCompany) {
  const auto one = MakeBackend(GetParam(), 1);
  const auto three = MakeBackend(GetParam(), 3);
  for (const OpCase& op : OpCases()) {
    const std::vector<int32_t> all = AllRows(op.rows);
    const auto run_one = op.prepare(one.get());
    const auto run_three = op.prepare(three.get());
    const std::vector<float> whole = run_one(all);
    EXPECT_TRUE(SameBits(whole, run_three(all))) << op.name << " on three threads";
    std::vector<std::vector<int32_t>> subsets;
    for (int first : {0, op.rows / 2, op.rows - 1}) subsets.push_back({first});
    // The plain loops know no blocks of rows.
    const std::vector<int> sizes =
        Scalar() ? std::vector<int>{3, 33} : std::vector<int>{2, 3, 5, 7, 12, 13, 33, 49, 64};
    for (const int size : sizes) {
      if (size >= op.rows) continue;
      std::vector<int32_t> rows(all.end() - size, all.end());
      subsets.push_back(rows);
      std::reverse(rows.begin(), rows.end());
      subsets.push_back(rows);
    }
    for (const std::vector<int32_t>& rows : subsets) {
      const std::vector<float> want = Pick(whole, op.rows, rows);
      EXPECT_TRUE(SameBits(want, run_one(rows))) << op.name << ", " << rows.size() << " rows";
      EXPECT_TRUE(SameBits(want, run_three(rows)))
          << op.name << ", " << rows.size() << " rows on three threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Ops, testing::ValuesIn(AllModes()), ModeName);

TEST(OpsBind, BadRowsAndOptionsAreErrors) {
  EXPECT_FALSE(CreateBackend({.device = "toaster"}).ok());
  EXPECT_FALSE(CreateBackend({.threads = -1}).ok());
  EXPECT_FALSE(CreateBackend({.threads = 100000}).ok());
  EXPECT_FALSE(CreateBackend({.cpu_isa = "sse9"}).ok());
  const auto backend = MakeBackend({"scalar", ComputeDtype::kAuto}, 1);
  MemoryTensors tensors;
  const TensorView& a = tensors.Add("a", DType::kF32, {2, 4}, RandomFloats(1, 8));
  const TensorView& b = tensors.Add("b", DType::kF32, {4, 2}, RandomFloats(1, 8));
  const std::vector<TensorView> unlike = {a, b};
  EXPECT_FALSE(backend->BindExperts(tensors, unlike).ok());
  EXPECT_FALSE(backend->BindExperts(tensors, {}).ok());
  std::vector<float> values = RandomFloats(1, 8);
  const TensorView& line = tensors.Add("line", DType::kF32, {8}, values);
  EXPECT_FALSE(backend->Bind(tensors, line, WeightRole::kLinear).ok());
  TensorView nan = a;
  const std::vector<float> bad(8, std::nanf(""));
  nan.data = reinterpret_cast<const std::byte*>(bad.data());
  EXPECT_FALSE(backend->Bind(tensors, nan, WeightRole::kLinear).ok());
  EXPECT_FALSE(backend->Bind(tensors, nan, WeightRole::kVector).ok());
}

TEST(OpsBind, UnknownTokensGiveNanRows) {
  const auto backend = MakeBackend({"scalar", ComputeDtype::kAuto}, 1);
  MemoryTensors tensors;
  const TensorView& view = tensors.Add("e", DType::kF32, {3, 4}, RandomFloats(1, 12));
  const auto weight = backend->Bind(tensors, view, WeightRole::kEmbedding);
  ASSERT_TRUE(weight.ok());
  const int32_t tokens[] = {-1, 2, 3};
  std::vector<float> out(12);
  backend->Embed(**weight, tokens, 3, out.data());
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[3]));
  EXPECT_TRUE(std::isfinite(out[4]) && std::isfinite(out[7]));
  EXPECT_TRUE(std::isnan(out[8]) && std::isnan(out[11]));
}

}  // namespace
}  // namespace deepinfer
