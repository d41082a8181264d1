#include "tensor/fake_quant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace deepinfer {
namespace {

#include "tensor/fake_quant_golden.inc"

constexpr int64_t kCount = std::size(kGoldenInput);

std::vector<float> GoldenInput() {
  std::vector<float> x;
  for (uint32_t bits : kGoldenInput) x.push_back(std::bit_cast<float>(bits));
  return x;
}

void ExpectBits(std::span<const uint32_t> want, const std::vector<float>& got) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(want[i], std::bit_cast<uint32_t>(got[i])) << i << ": " << got[i];
  }
}

TEST(FakeQuant, GoldenBits) {
  const std::vector<float> x = GoldenInput();
  std::vector<float> out(x.size());
  FakeQuantFp8(x.data(), kCount, 32, out.data());
  ExpectBits(kGoldenFp8, out);
  FakeQuantFp4E8m0(x.data(), kCount, 32, out.data());
  ExpectBits(kGoldenFp4E8m0, out);
  FakeQuantFp4E4m3(x.data(), kCount, 16, out.data());
  ExpectBits(kGoldenFp4E4m3, out);
}

TEST(FakeQuant, StoredRowsDecodeToTheSameBits) {
  EXPECT_EQ(WindowRowBytes(512), 528);
  EXPECT_EQ(IndexKeyBytes(128), 68);
  EXPECT_EQ(MainEntryBytes(512), 288);
  const std::vector<float> x = GoldenInput();
  std::vector<float> out(x.size());
  std::vector<std::byte> row(static_cast<size_t>(WindowRowBytes(kCount)));
  EncodeWindowRow(x.data(), kCount, row.data());
  DecodeWindowRow(row.data(), kCount, out.data());
  ExpectBits(kGoldenFp8, out);
  row.assign(static_cast<size_t>(IndexKeyBytes(kCount)), std::byte{});
  EncodeIndexKey(x.data(), kCount, row.data());
  DecodeIndexKey(row.data(), kCount, out.data());
  ExpectBits(kGoldenFp4E8m0, out);
  row.assign(static_cast<size_t>(MainEntryBytes(kCount)), std::byte{});
  EncodeMainEntry(x.data(), kCount, row.data());
  DecodeMainEntry(row.data(), kCount, out.data());
  ExpectBits(kGoldenFp4E4m3, out);
}

TEST(FakeQuant, PowersOfTwo) {
  EXPECT_EQ(PowerOfTwoCeil(1.0F), 1.0F);
  EXPECT_EQ(PowerOfTwoCeil(std::nextafter(1.0F, 2.0F)), 2.0F);
  EXPECT_EQ(PowerOfTwoCeil(3.0F), 4.0F);
  EXPECT_EQ(PowerOfTwoCeil(0x1p-126F), 0x1p-126F);
}

// Idempotent: what was quantised once is a value of the format. (Not so with e4m3 scales.)
TEST(FakeQuant, TwiceIsOnce) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> x(512), once(512), twice(512);
  for (float& v : x) v = normal(random);
  FakeQuantFp8(x.data(), 512, 32, once.data());
  FakeQuantFp8(once.data(), 512, 32, twice.data());
  EXPECT_EQ(once, twice);
  FakeQuantFp4E8m0(x.data(), 512, 32, once.data());
  FakeQuantFp4E8m0(once.data(), 512, 32, twice.data());
  EXPECT_EQ(once, twice);
}

TEST(FakeQuant, NonFiniteBlocksAreNan) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(64, 1.5F);
    x[3] = bad;
    for (auto* quantise : {FakeQuantFp8, FakeQuantFp4E8m0, FakeQuantFp4E4m3}) {
      std::vector<float> out(64);
      quantise(x.data(), 64, 32, out.data());
      for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(out[i]), i < 32) << bad << " " << i;
    }
    std::vector<std::byte> row(128);
    std::vector<float> out(64);
    EncodeWindowRow(x.data(), 64, row.data());
    DecodeWindowRow(row.data(), 64, out.data());
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[31]) && out[32] == 1.5F);
    EncodeMainEntry(x.data(), 64, row.data());
    DecodeMainEntry(row.data(), 64, out.data());
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[15]) && out[16] == 1.5F);
  }
}

}  // namespace
}  // namespace deepinfer
