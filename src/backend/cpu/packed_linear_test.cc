#include "backend/cpu/packed_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/pack_panel.h"
#include "base/format.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"
#include "tensor/scaled_tensor.h"

namespace deepinfer::cpu {
namespace {

constexpr DType kTypes[] = {DType::kF32,     DType::kF16,    DType::kBF16, DType::kQ8_0,
                            DType::kQ4_0,    DType::kQ4_1,   DType::kQ5_0, DType::kQ5_1,
                            DType::kQ4_K,    DType::kQ5_K,   DType::kQ6_K, DType::kMXFP4,
                            DType::kF8Block, DType::kF4Pairs};

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (DetectIsa(IsaName(isa)).ok()) isas.push_back(isa);
  }
  return isas;
}

struct Weights {
  std::vector<std::byte> bytes, scales;
  TensorView view;
};

void PutHalf(std::byte* at, float value) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(at, &half, 2);
}

// Random bits with scales of a usual size; every bit pattern of the quants occurs.
// Codes of every value and scales of a usual size: FP8 in blocks of 32 x 32, FP4 by row.
Weights RandomScaled(DType dtype, int64_t rows, int64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  Weights w;
  const bool pairs = dtype == DType::kF4Pairs;
  const int64_t scale_rows = pairs ? rows : (rows + 31) / 32;
  w.bytes.resize(static_cast<size_t>(pairs ? rows * cols / 2 : rows * cols));
  w.scales.resize(static_cast<size_t>(scale_rows * ((cols + 31) / 32)));
  for (std::byte& b : w.bytes) {
    b = static_cast<std::byte>(random());
    if (!pairs && (b & std::byte{0x7f}) == std::byte{0x7f}) b = std::byte{3};
  }
  for (std::byte& b : w.scales) b = static_cast<std::byte>(118 + random() % 8);
  const TensorView codes = {"random",
                            pairs ? DType::kI8 : DType::kF8_E4M3,
                            {rows, pairs ? cols / 2 : cols},
                            w.bytes.data(),
                            w.bytes.size()};
  const TensorView scale = {"random.scale",
                            DType::kF8_E8M0,
                            {scale_rows, (cols + 31) / 32},
                            w.scales.data(),
                            w.scales.size()};
  w.view = WithScale(codes, scale).value();
  return w;
}

Weights RandomWeights(DType dtype, std::vector<int64_t> shape, unsigned seed) {
  if (HasScaleTensor(dtype)) return RandomScaled(dtype, shape[0], shape[1], seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  Weights w;
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  w.bytes.resize(ByteSize(dtype, count).value());
  for (std::byte& b : w.bytes) b = static_cast<std::byte>(random());
  const DTypeInfo& info = Info(dtype);
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  for (size_t at = 0; at < w.bytes.size(); at += block_bytes) {
    std::byte* block = w.bytes.data() + at;
    const float value = uniform(random);
    const uint16_t bf16 = FloatToBf16(value);
    switch (dtype) {
      case DType::kF32:
        std::memcpy(block, &value, 4);
        break;
      case DType::kF16:
        PutHalf(block, value);
        break;
      case DType::kBF16:
        std::memcpy(block, &bf16, 2);
        break;
      case DType::kQ6_K:
        PutHalf(block + 208, value * 1e-4F);
        break;
      case DType::kMXFP4:
        block[0] = static_cast<std::byte>(118 + random() % 8);
        break;
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K:
        PutHalf(block, value * 0.01F);
        PutHalf(block + 2, uniform(random) * 0.05F);
        break;
      default:
        PutHalf(block, value * 0.01F);
        break;
    }
  }
  w.view = {Format("random.{}", info.name), dtype, std::move(shape), w.bytes.data(),
            w.bytes.size()};
  return w;
}

std::vector<float> RandomFloats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> x(count);
  for (float& v : x) v = normal(random);
  return x;
}

std::unique_ptr<PackedMatrix> MustPack(Isa isa, const TensorView& view, bool float32 = false,
                                       ComputePool* pool = nullptr, PackedArena* arena = nullptr) {
  auto packed = PackedMatrix::Pack(isa, view, float32, pool, arena);
  EXPECT_TRUE(packed.ok()) << packed.status().message();
  return std::move(packed).value();
}

void SetRows(Isa isa, const std::vector<float>& x, int64_t cols, ActRows* rows) {
  const int64_t count = static_cast<int64_t>(x.size()) / cols;
  rows->Reserve(count);
  for (int64_t i = 0; i < count; ++i) rows->SetRow(isa, i, x.data() + i * cols);
}

// The whole product in one call.
std::vector<float> Product(const PackedMatrix& w, const ActRows& x, int64_t m,
                           const int32_t* input_rows = nullptr, int64_t expert = 0) {
  std::vector<float> y(static_cast<size_t>(m * w.rows()), NAN);
  w.Multiply(x, input_rows, m, expert, 0, w.rows(), y.data(), w.rows());
  return y;
}

struct Case {
  DType dtype;
  int64_t rows, cols;
};

// Odd row counts, odd block counts, more columns than one pass of K, and tiny ones.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DType dtype : kTypes) {
    const int64_t block = Info(dtype).block_elements;
    if (dtype == DType::kF4Pairs) {
      for (auto [rows, cols] : {std::pair{5, 32}, {33, 96}, {144, 1248}, {40, 2304}}) {
        cases.push_back({dtype, rows, cols});
      }
    } else if (block == 256) {
      for (auto [rows, cols] : {std::pair{33, 256}, {80, 1280}, {1, 2304}}) {
        cases.push_back({dtype, rows, cols});
      }
    } else if (block == 32) {
      for (auto [rows, cols] : {std::pair{5, 32}, {33, 96}, {144, 1248}}) {
        cases.push_back({dtype, rows, cols});
      }
    } else {
      for (auto [rows, cols] : {std::pair{3, 5}, {31, 64}, {100, 600}, {65, 1101}}) {
        cases.push_back({dtype, rows, cols});
      }
    }
  }
  for (auto [rows, cols] : {std::pair{70, 2304}, {33, 5120}, {1, 512}}) {
    cases.push_back({DType::kF8Block, rows, cols});  // widths of DeepSeek-V4.1
  }
  cases.push_back({DType::kBF16, 33, 8300});  // longer than the longest pass of K
  return cases;
}

std::string CaseName(Isa isa, const Case& c) {
  return Format("{} {} {}x{}", IsaName(isa), Info(c.dtype).name, c.rows, c.cols);
}

TEST(PackedLinear, DecodedRowsAreTheStoredValues) {
  for (const Case& c : Cases()) {
    const Weights w = RandomWeights(c.dtype, {c.rows, c.cols}, 1);
    const auto want = DequantizeTensor(w.view);
    ASSERT_TRUE(want.ok()) << want.status().message();
    for (bool float32 : {false, true}) {
      const auto packed = MustPack(Isa::kScalar, w.view, float32);
      std::vector<float> row(static_cast<size_t>(c.cols));
      for (int64_t r = 0; r < c.rows; ++r) {
        packed->DecodeRow(r, row.data());
        for (int64_t k = 0; k < c.cols; ++k) {
          ASSERT_EQ(row[static_cast<size_t>(k)], want.value()[static_cast<size_t>(r * c.cols + k)])
              << CaseName(Isa::kScalar, c) << " row " << r << " column " << k;
        }
      }
    }
  }
}

// Against a double dot product of decoded weights; the bound is that of the activation format.
TEST(PackedLinear, ProductsMatchDoubleReference) {
  constexpr int64_t kRows = 3;
  for (Isa isa : AvailableIsas()) {
    for (const Case& c : Cases()) {
      const Weights w = RandomWeights(c.dtype, {c.rows, c.cols}, 2);
      const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * c.cols), 3);
      const std::vector<float> decoded = DequantizeTensor(w.view).value();
      for (bool float32 : {false, true}) {
        const auto packed = MustPack(isa, w.view, float32);
        ActRows acts(c.cols, packed->act_format());
        SetRows(isa, x, c.cols, &acts);
        const std::vector<float> y = Product(*packed, acts, kRows);
        const double unit = packed->act_format() == kActF32    ? 1e-6
                            : packed->act_format() == kActBF16 ? 0.004
                                                               : 0.012;
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t n = 0; n < c.rows; ++n) {
            double dot = 0, norm_w = 0, norm_x = 0;
            for (int64_t k = 0; k < c.cols; ++k) {
              const double a = decoded[static_cast<size_t>(n * c.cols + k)];
              const double b = x[static_cast<size_t>(i * c.cols + k)];
              dot += a * b;
              norm_w += a * a;
              norm_x += b * b;
            }
            ASSERT_NEAR(y[static_cast<size_t>(i * c.rows + n)], dot,
                        unit * std::sqrt(norm_w * norm_x))
                << CaseName(isa, c) << " float32 " << float32 << " at " << i << "," << n;
          }
        }
      }
    }
  }
}

TEST(PackedLinear, IsasAgreeWithScalar) {
  constexpr int64_t kRows = 5;
  for (Isa isa : AvailableIsas()) {
    if (isa == Isa::kScalar) continue;
    for (const Case& c : Cases()) {
      const Weights w = RandomWeights(c.dtype, {c.rows, c.cols}, 4);
      const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * c.cols), 5);
      const auto a = MustPack(isa, w.view);
      const auto b = MustPack(Isa::kScalar, w.view);
      ActRows acts(c.cols, a->act_format()), scalar_acts(c.cols, a->act_format());
      SetRows(isa, x, c.cols, &acts);
      SetRows(Isa::kScalar, x, c.cols, &scalar_acts);
      const std::vector<float> y = Product(*a, acts, kRows);
      const std::vector<float> want = Product(*b, scalar_acts, kRows);
      float scale = 0.0F;
      for (float v : want) scale = std::max(scale, std::fabs(v));
      for (size_t i = 0; i < y.size(); ++i) {
        // Quantised kinds do the same float operations; the others sum in another order.
        const float bound = a->act_format() == kActQ8 ? 0.0F : 4e-6F * scale;
        ASSERT_NEAR(y[i], want[i], bound) << CaseName(isa, c) << " at " << i;
      }
    }
  }
}

// The contract: one row alone gives the bits that it gives in any company, order and split.
TEST(PackedLinear, ResultOfARowDependsOnTheRowAlone) {
  constexpr int64_t kRows = 61;
  for (Isa isa : AvailableIsas()) {
    for (const Case& c : Cases()) {
      const Weights w = RandomWeights(c.dtype, {c.rows, c.cols}, 6);
      const auto packed = MustPack(isa, w.view);
      const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * c.cols), 7);
      ActRows acts(c.cols, packed->act_format());
      SetRows(isa, x, c.cols, &acts);
      std::vector<float> alone;
      for (int32_t i = 0; i < kRows; ++i) {
        const std::vector<float> y = Product(*packed, acts, 1, &i);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      std::mt19937 random(8);
      for (int64_t m : {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 24, 25, 31, 32, 33, 48, 61}) {
        std::vector<int32_t> pick(static_cast<size_t>(m));
        for (int32_t& p : pick) p = static_cast<int32_t>(random() % kRows);
        std::vector<float> y(static_cast<size_t>(m * c.rows), NAN);
        const int64_t step = packed->tile_rows() * static_cast<int64_t>(1 + random() % 3);
        for (int64_t n = 0; n < c.rows; n += step) {
          packed->Multiply(acts, pick.data(), m, 0, n, std::min(n + step, c.rows), y.data(),
                           c.rows);
        }
        for (int64_t i = 0; i < m; ++i) {
          ASSERT_EQ(0, std::memcmp(y.data() + i * c.rows,
                                   alone.data() + pick[static_cast<size_t>(i)] * c.rows,
                                   static_cast<size_t>(c.rows) * sizeof(float)))
              << CaseName(isa, c) << " m " << m << " row " << i;
        }
      }
      const std::vector<float> all = Product(*packed, acts, kRows);
      ASSERT_EQ(0, std::memcmp(all.data(), alone.data(), all.size() * sizeof(float)))
          << CaseName(isa, c);
    }
  }
}

TEST(PackedLinear, WritesOnlyItsColumns) {
  const Weights w = RandomWeights(DType::kQ4_1, {100, 64}, 9);
  for (Isa isa : AvailableIsas()) {
    for (DType dtype : {DType::kQ4_1, DType::kBF16}) {
      const Weights weights = RandomWeights(dtype, {100, 64}, 9);
      const auto packed = MustPack(isa, weights.view);
      ActRows acts(64, packed->act_format());
      SetRows(isa, RandomFloats(64 * 30, 10), 64, &acts);
      for (int64_t m : {1, 30}) {
        std::vector<float> y(static_cast<size_t>(m) * 128, 7.0F);
        packed->Multiply(acts, nullptr, m, 0, 32, 100, y.data(), 128);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t n = 0; n < 128; ++n) {
            const bool inside = n >= 32 && n < 100;
            EXPECT_EQ(inside, y[static_cast<size_t>(i * 128 + n)] != 7.0F) << i << "," << n;
          }
        }
      }
    }
  }
}

TEST(PackedLinear, ExpertsAreSeparateMatrices) {
  for (Isa isa : AvailableIsas()) {
    for (DType dtype : {DType::kQ8_0, DType::kF16, DType::kBF16}) {
      const Weights all = RandomWeights(dtype, {3, 40, 64}, 11);
      const auto packed = MustPack(isa, all.view);
      ASSERT_EQ(3, packed->experts());
      ActRows acts(64, packed->act_format());
      SetRows(isa, RandomFloats(64 * 6, 12), 64, &acts);
      for (int64_t e = 0; e < 3; ++e) {
        TensorView one = all.view;
        one.shape = {40, 64};
        one.bytes /= 3;
        one.data += static_cast<size_t>(e) * one.bytes;
        EXPECT_EQ(Product(*MustPack(isa, one), acts, 6), Product(*packed, acts, 6, nullptr, e));
      }
    }
  }
}

// The values that a block of 32 activations stands for.
std::vector<float> QuantisedBlock(const float* x) {
  float max = 0.0F, energy = 0.0F;
  for (size_t i = 0; i < 32; ++i) {
    max = std::max(max, std::fabs(x[i]));
    energy += x[i] * x[i];
  }
  std::vector<float> value(32), left(32);
  float left_max = 0.0F;
  for (size_t i = 0; i < 32; ++i) {
    const float q = std::nearbyint(x[i] * (127.0F / max));
    value[i] = q * (max / 127.0F);
    left[i] = std::fmaf(-(max / 127.0F), q, x[i]);
    left_max = std::max(left_max, std::fabs(left[i]));
  }
  if (max * max <= kRefineShare * energy) return value;
  for (size_t i = 0; i < 32; ++i) {
    const float q = std::nearbyint(left[i] * (127.0F / left_max));
    value[i] = std::fmaf(q, left_max / 127.0F, value[i]);
  }
  return value;
}

TEST(PackedLinear, QuantisedActivationsAreTheSameOnEveryIsa) {
  // Through Q4_1 with scale 0 and min 1: a product is the sum of scale * sum over blocks; and
  // through the identity: Q8_0 rows with one element set read back single activations.
  constexpr int64_t kCols = 64;
  std::vector<BlockQ8_0> identity(static_cast<size_t>(kCols * kCols / 32));
  std::memset(identity.data(), 0, identity.size() * sizeof(BlockQ8_0));
  for (int64_t r = 0; r < kCols; ++r) {
    BlockQ8_0& block = identity[static_cast<size_t>(r * kCols / 32 + r / 32)];
    block.d = FloatToHalf(1.0F);
    block.qs[r % 32] = 1;
  }
  const TensorView view = {"identity",
                           DType::kQ8_0,
                           {kCols, kCols},
                           reinterpret_cast<const std::byte*>(identity.data()),
                           identity.size() * sizeof(BlockQ8_0)};
  std::vector<float> x = RandomFloats(kCols, 13);
  x[3] = 1000.0F;  // one outlier: what rounding leaves of its block is kept as well
  x[40] = -0.0F;
  for (Isa isa : AvailableIsas()) {
    const auto packed = MustPack(isa, view);
    ActRows acts(kCols, kActQ8);
    SetRows(isa, x, kCols, &acts);
    const std::vector<float> y = Product(*packed, acts, 1);
    for (size_t block = 0; block < 2; ++block) {
      const std::vector<float> want = QuantisedBlock(x.data() + block * 32);
      for (size_t i = 0; i < 32; ++i) {
        EXPECT_EQ(want[i], y[block * 32 + i]) << IsaName(isa) << " " << block << " " << i;
      }
    }
  }
}

TEST(PackedLinear, NonFiniteAndTinyActivations) {
  for (Isa isa : AvailableIsas()) {
    for (DType dtype : {DType::kQ8_0, DType::kQ4_1, DType::kQ6_K, DType::kBF16, DType::kF32}) {
      const Weights w = RandomWeights(dtype, {20, 256}, 14);
      const auto packed = MustPack(isa, w.view);
      for (float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        std::vector<float> x = RandomFloats(512, 15);
        x[37] = bad;
        ActRows acts(256, packed->act_format());
        SetRows(isa, x, 256, &acts);
        const std::vector<float> y = Product(*packed, acts, 2);
        for (size_t n = 0; n < 20; ++n) {
          EXPECT_FALSE(std::isfinite(y[n])) << IsaName(isa) << " " << Info(dtype).name;
          EXPECT_TRUE(std::isfinite(y[20 + n])) << IsaName(isa) << " " << Info(dtype).name;
        }
      }
      ActRows acts(256, packed->act_format());
      SetRows(isa, std::vector<float>(256, 1e-40F), 256, &acts);
      for (float v : Product(*packed, acts, 1)) EXPECT_LT(std::fabs(v), 1e-30F);
    }
  }
}

TEST(PackedLinear, Bf16RoundsToNearestEven) {
  // One row of ones: the product is the rounded activation.
  std::vector<uint16_t> one(32, 0);
  one[0] = FloatToBf16(1.0F);
  const TensorView view = {
      "one", DType::kBF16, {1, 32}, reinterpret_cast<const std::byte*>(one.data()), 64};
  for (Isa isa : AvailableIsas()) {
    const auto packed = MustPack(isa, view);
    for (float v : {1.00390625F, 1.01171875F, 1.003F, -3.14159F, 3.38e38F}) {
      std::vector<float> x(32, 0.0F);
      x[0] = v;
      ActRows acts(32, kActBF16);
      SetRows(isa, x, 32, &acts);
      EXPECT_EQ(Bf16ToFloat(FloatToBf16(v)), Product(*packed, acts, 1)[0]) << IsaName(isa) << v;
    }
  }
}

TEST(PackedLinear, PackedBytesStayCloseToTheFile) {
  for (DType dtype : kTypes) {
    const int64_t cols = 1536;
    const Weights w = RandomWeights(dtype, {576, cols}, 16);
    const auto packed = MustPack(Isa::kScalar, w.view);
    const auto stored = static_cast<double>(w.bytes.size() + w.scales.size());
    EXPECT_LE(static_cast<double>(packed->bytes()), 1.05 * stored) << Info(dtype).name;
    EXPECT_EQ(packed->bytes(), PackedMatrix::PackedBytes(w.view, false));
  }
}

TEST(PackedLinear, ArenaHoldsManyMatricesAndOutlivesItself) {
  auto arena = std::make_unique<PackedArena>();
  const Weights w = RandomWeights(DType::kQ5_0, {48, 96}, 17);
  const auto alone = MustPack(Isa::kScalar, w.view);
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  size_t bytes = 0;
  for (int i = 0; i < 200; ++i) {
    matrices.push_back(MustPack(Isa::kScalar, w.view, i % 2 == 1, nullptr, arena.get()));
    bytes += matrices.back()->bytes();
  }
  EXPECT_EQ(bytes, arena->used_bytes());
  arena.reset();
  ActRows acts(96, kActQ8);
  SetRows(Isa::kScalar, RandomFloats(96, 18), 96, &acts);
  for (int i = 0; i < 200; i += 2) {
    EXPECT_EQ(Product(*alone, acts, 1), Product(*matrices[static_cast<size_t>(i)], acts, 1));
  }
}

void ExpectPackError(const TensorView& view, std::string_view text) {
  const auto packed = PackedMatrix::Pack(Isa::kScalar, view, false, nullptr);
  ASSERT_FALSE(packed.ok()) << text;
  EXPECT_NE(std::string::npos, packed.status().message().find(text)) << packed.status().message();
  EXPECT_NE(std::string::npos, packed.status().message().find(view.name));
}

TEST(PackedLinear, PackRejectsWhatItCannotMultiply) {
  Weights w = RandomWeights(DType::kQ8_0, {4, 64}, 19);
  TensorView view = w.view;
  view.dtype = DType::kI32;
  ExpectPackError(view, "type I32 has no product");
  view = w.view;
  view.shape = {64};
  ExpectPackError(view, "2 or 3 dimensions");
  view.shape = {4, 0};
  ExpectPackError(view, "dimension 0");
  view.shape = {4, 48};
  ExpectPackError(view, "multiple of 32");
  view.shape = {400, 64};
  ExpectPackError(view, "do not hold");
  view.shape = {int64_t{1} << 28, int64_t{1} << 28, int64_t{1} << 28};
  ExpectPackError(view, "do not hold");
  view.shape = {int64_t{1} << 62, 64};
  ExpectPackError(view, "out of range");
  for (DType dtype : kTypes) {
    Weights damaged = RandomWeights(dtype, {20, 512}, 20);
    const DTypeInfo& info = Info(dtype);
    // The last block of row 18.
    std::byte* block = damaged.bytes.data() + ByteSize(dtype, 19 * 512).value() - info.block_bytes;
    const uint16_t bad = dtype == DType::kBF16 ? 0x7fc0 : 0x7c00;
    const float bad_float = std::numeric_limits<float>::infinity();
    if (HasScaleTensor(dtype)) {
      damaged.scales.back() = std::byte{255};
    } else if (dtype == DType::kF32) {
      std::memcpy(block, &bad_float, 4);
    } else if (dtype == DType::kMXFP4) {
      block[0] = std::byte{255};
    } else {
      std::memcpy(block + (dtype == DType::kQ6_K ? 208 : 0), &bad, 2);
    }
    ExpectPackError(damaged.view, "NaN or infinite");
  }
}

TEST(PackedLinear, PackRejectsNanCodes) {
  for (uint8_t code : {0x7f, 0xff}) {
    for (size_t at : {size_t{0}, size_t{20 * 500 - 1}, size_t{4321}}) {
      Weights damaged = RandomWeights(DType::kF8Block, {20, 500}, 20);
      damaged.bytes[at] = std::byte{code};
      ExpectPackError(damaged.view, "NaN or infinite");
    }
  }
}

// Scales at both ends of their range: the smallest is a subnormal float that must not vanish.
TEST(PackedLinear, ExtremeScales) {
  std::vector<std::byte> codes(32, std::byte{0x7e}), scales(1);  // 448
  for (Isa isa : AvailableIsas()) {
    for (int e : {0, 1, 2, 127, 240}) {
      scales[0] = static_cast<std::byte>(e);
      const TensorView view = WithScale({"w", DType::kF8_E4M3, {1, 32}, codes.data(), 32},
                                        {"s", DType::kF8_E8M0, {1, 1}, scales.data(), 1})
                                  .value();
      const auto packed = MustPack(isa, view);
      ActRows acts(32, kActBF16);
      SetRows(isa, std::vector<float>(32, 0.5F), 32, &acts);
      EXPECT_EQ(std::ldexp(448.0F * 16.0F, e - 127), Product(*packed, acts, 1)[0])
          << IsaName(isa) << " " << e;
    }
  }
}

// Notes what is dropped, in which order and how much at a time.
class DropLog final : public TensorFile {
 public:
  explicit DropLog(const TensorView& view) : view_(view) {}
  const TensorView* Find(std::string_view) const override { return nullptr; }
  const std::vector<TensorView>& tensors() const override { return none_; }
  void Drop(const TensorView& part) const override {
    const auto begin = static_cast<size_t>(part.data - view_.data);
    if (begin <= done_) done_ = std::max(done_, begin + part.bytes);
    largest_ = std::max(largest_, part.bytes);
    EXPECT_LE(begin + part.bytes, view_.bytes);
  }
  size_t file_bytes() const override { return view_.bytes; }
  size_t done() const { return done_; }        // dropped without a gap from the start
  size_t largest() const { return largest_; }  // bytes of one call

 private:
  TensorView view_;
  std::vector<TensorView> none_;
  mutable size_t done_ = 0;
  mutable size_t largest_ = 0;
};

TEST(PackedLinear, SourceIsDroppedPieceByPiece) {
  const Weights w = RandomWeights(DType::kQ8_0, {3, 8200, 1024}, 31);  // 27 MB, partial panels
  const DropLog log(w.view);
  ComputePool pool(2);
  const auto packed = PackedMatrix::Pack(Isa::kScalar, w.view, false, &pool, nullptr, &log);
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  EXPECT_EQ(log.done(), w.view.bytes);
  EXPECT_LE(log.largest(), w.view.bytes / 2);
  std::vector<float> row(1024), stored(1024);
  for (const int64_t at : {int64_t{0}, int64_t{4099}, int64_t{8199}}) {
    (*packed)->DecodeRow(at, row.data());
    DequantizeRow(DType::kQ8_0, w.view.data + at * (1024 / 32 * 34), 1024, stored.data());
    EXPECT_EQ(row, stored) << "row " << at;
  }
}

TEST(PackedLinear, ChunkRowsCoverAnyMatrix) {
  for (auto [rows, cols] : {std::pair{576, 1536}, {49152, 576}, {192, 576}, {1, 32}}) {
    const Weights w = RandomWeights(DType::kQ4_0, {rows, cols}, 21);
    const auto packed = MustPack(Isa::kScalar, w.view);
    for (int64_t m : {1, 8, 32, 512}) {
      for (int threads : {1, 2, 16}) {
        const int64_t chunk = packed->ChunkRows(m, threads);
        EXPECT_GT(chunk, 0);
        EXPECT_EQ(0, chunk % packed->tile_rows());
      }
    }
  }
}

TEST(Isa, DetectsAndRefuses) {
  const auto best = DetectIsa("");
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(*best, *DetectIsa(IsaName(*best)));
  EXPECT_EQ(Isa::kScalar, *DetectIsa("scalar"));
  const auto unknown = DetectIsa("sse9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(std::string::npos, unknown.status().message().find("sse9"));
}

}  // namespace
}  // namespace deepinfer::cpu
