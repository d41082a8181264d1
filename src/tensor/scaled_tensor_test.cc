#include "tensor/scaled_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/format.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"
#include "tensor/safetensors.h"

namespace deepinfer {
namespace {

TensorView View(std::string name, DType dtype, std::vector<int64_t> shape,
                const std::vector<std::byte>& bytes) {
  return {std::move(name), dtype, std::move(shape), bytes.data(), bytes.size()};
}

std::vector<std::byte> RandomBytes(size_t count, unsigned seed, unsigned low, unsigned high) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(low + random() % (high - low + 1));
  return bytes;
}

double E4M3(unsigned code) {
  const unsigned exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0
                               ? mantissa / 512.0
                               : std::ldexp(1.0 + mantissa / 8.0, static_cast<int>(exponent) - 7);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

TEST(ScaledTensor, EveryE4M3CodeRoundTrips) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = E4M3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(FloatToE4M3(value) & 0x7f, 0x7f);
      continue;
    }
    EXPECT_EQ(value, E4M3(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128);
    EXPECT_EQ(FloatToE4M3(value), code);
    if ((code & 0x7f) >= 0x7e) continue;
    const float next = E4M3ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = (value + next) / 2;
    EXPECT_EQ(FloatToE4M3(middle), (code & 1) == 0 ? code : code + 1) << code;
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, value)), code);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, next)), code + 1);
  }
  EXPECT_EQ(FloatToE4M3(1e30F), 0x7e);
  EXPECT_EQ(FloatToE4M3(-INFINITY), 0xfe);
}

TEST(ScaledTensor, EveryE2M1CodeRoundTrips) {
  for (unsigned code = 0; code < 16; ++code) {
    const float value = E2M1ToFloat(static_cast<uint8_t>(code));
    EXPECT_EQ(FloatToE2M1(value), code);
    if ((code & 7) == 7) continue;
    const float next = E2M1ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = (value + next) / 2;
    EXPECT_EQ(FloatToE2M1(middle), (code & 1) == 0 ? code : code + 1) << code;
    EXPECT_EQ(FloatToE2M1(std::nextafter(middle, value)), code);
    EXPECT_EQ(FloatToE2M1(std::nextafter(middle, next)), code + 1);
  }
  EXPECT_EQ(FloatToE2M1(100.0F), 7);
}

TEST(ScaledTensor, BlocksOfEverySizeAndPartialOnes) {
  struct Case {
    int64_t rows, cols, block;
  };
  for (const Case& c : {Case{96, 64, 32}, Case{40, 100, 32}, Case{300, 260, 128}, Case{5, 7, 32},
                        Case{130, 200, 64}, Case{1, 33, 32}}) {
    const int64_t down = (c.rows + c.block - 1) / c.block,
                  across = (c.cols + c.block - 1) / c.block;
    auto codes = RandomBytes(static_cast<size_t>(c.rows * c.cols), 1, 0, 126);
    const auto scales = RandomBytes(static_cast<size_t>(down * across), 2, 0, 245);
    const auto view = WithScale(View("w", DType::kF8_E4M3, {c.rows, c.cols}, codes),
                                View("s", DType::kF8_E8M0, {down, across}, scales));
    ASSERT_TRUE(view.ok()) << view.status().message();
    EXPECT_EQ(view->dtype, DType::kF8Block);
    const auto values = DequantizeTensor(*view);
    ASSERT_TRUE(values.ok());
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t k = 0; k < c.cols; ++k) {
        const auto code = std::to_integer<unsigned>(codes[static_cast<size_t>(r * c.cols + k)]);
        const auto scale =
            std::to_integer<int>(scales[static_cast<size_t>(r / c.block * across + k / c.block)]);
        const double want = std::ldexp(E4M3(code), scale - 127);
        ASSERT_EQ((*values)[static_cast<size_t>(r * c.cols + k)], want) << r << "," << k;
      }
    }
  }
}

TEST(ScaledTensor, RowsWithTheirOwnScales) {
  const auto codes = RandomBytes(50 * 64, 3, 128, 254);
  const auto scales = RandomBytes(50 * 2, 4, 0, 140);
  const auto view = WithScale(View("w", DType::kF8_E4M3, {50, 64}, codes),
                              View("s", DType::kF8_E8M0, {50, 2}, scales));
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->scale_block_rows, 1);
  float row[64];
  DequantizeRow(*view, 49, row);
  for (size_t k = 0; k < 64; ++k) {
    const double scale = std::ldexp(1.0, std::to_integer<int>(scales[98 + k / 32]) - 127);
    EXPECT_EQ(row[k], scale * E4M3(std::to_integer<unsigned>(codes[49 * 64 + k])));
  }
}

TEST(ScaledTensor, PackedPairs) {
  const auto codes = RandomBytes(6 * 48, 5, 0, 255);
  const auto scales = RandomBytes(6 * 3, 6, 0, 250);
  const auto view =
      WithScale(View("w", DType::kI8, {6, 48}, codes), View("s", DType::kF8_E8M0, {6, 3}, scales));
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->shape, (std::vector<int64_t>{6, 96}));
  const std::vector<float> values = DequantizeTensor(*view).value();
  for (size_t r = 0; r < 6; ++r) {
    for (size_t k = 0; k < 96; ++k) {
      const auto byte = std::to_integer<unsigned>(codes[r * 48 + k / 2]);
      const auto code = static_cast<uint8_t>(k % 2 == 0 ? byte & 15 : byte >> 4);
      const int scale = std::to_integer<int>(scales[r * 3 + k / 32]) - 127;
      EXPECT_EQ(values[r * 96 + k], std::ldexp(static_cast<double>(E2M1ToFloat(code)), scale));
    }
  }
  const auto part = RowsOf(*view, 2, 5);
  ASSERT_TRUE(part.ok());
  const std::vector<float> some = DequantizeTensor(*part).value();
  EXPECT_EQ(some, std::vector<float>(values.begin() + 2 * 96, values.begin() + 5 * 96));
}

TEST(ScaledTensor, MisfitsAreNamed) {
  const std::vector<std::byte> bytes(4096);
  const auto error = [&](DType w, std::vector<int64_t> w_shape, DType s,
                         std::vector<int64_t> s_shape) {
    const auto view = WithScale(View("layer.weight", w, std::move(w_shape), bytes),
                                View("layer.scale", s, std::move(s_shape), bytes));
    return view.ok() ? std::string() : view.status().message();
  };
  const auto names = [](const std::string& message) {
    return message.find("layer.weight") != std::string::npos &&
           message.find("layer.scale") != std::string::npos;
  };
  EXPECT_EQ(error(DType::kF8_E4M3, {64, 64}, DType::kF8_E8M0, {2, 2}), "");
  EXPECT_TRUE(names(error(DType::kF8_E4M3, {64, 64}, DType::kF8_E8M0, {2, 3})));
  EXPECT_TRUE(names(error(DType::kF8_E4M3, {64, 64}, DType::kF8_E8M0, {3, 2})));
  EXPECT_TRUE(names(error(DType::kF8_E4M3, {64, 64}, DType::kF32, {2, 2})));
  EXPECT_TRUE(names(error(DType::kBF16, {32, 32}, DType::kF8_E8M0, {1, 1})));
  EXPECT_TRUE(names(error(DType::kF8_E4M3, {64}, DType::kF8_E8M0, {2})));
  EXPECT_TRUE(names(error(DType::kF8_E4M3, {64, 128}, DType::kF8_E8M0, {2, 4})));  // too few bytes
  EXPECT_TRUE(names(error(DType::kF8_E4M3, {0, 64}, DType::kF8_E8M0, {0, 2})));
  EXPECT_TRUE(names(error(DType::kI8, {4, 24}, DType::kF8_E8M0, {4, 2})));
  EXPECT_TRUE(names(error(DType::kI8, {4, int64_t{1} << 62}, DType::kF8_E8M0, {4, 2})));
  EXPECT_EQ(error(DType::kI8, {4, 32}, DType::kF8_E8M0, {4, 2}), "");
}

TEST(ScaledTensor, NanCodesAndScalesAreRefused) {
  std::vector<std::byte> codes(64), scales(2);
  const auto decode = [&] {
    return DequantizeTensor(WithScale(View("w", DType::kF8_E4M3, {1, 64}, codes),
                                      View("s", DType::kF8_E8M0, {1, 2}, scales))
                                .value())
        .ok();
  };
  EXPECT_TRUE(decode());
  scales[1] = std::byte{255};
  EXPECT_FALSE(decode());
  scales[1] = std::byte{0};
  codes[63] = std::byte{0xff};
  EXPECT_FALSE(decode());
}

TEST(ScaledTensor, SafetensorsReadsTheTypes) {
  const std::string header = R"({"w":{"dtype":"F8_E4M3","shape":[1,32],"data_offsets":[0,32]},)"
                             R"("s":{"dtype":"F8_E8M0","shape":[1,1],"data_offsets":[32,33]}})";
  const uint64_t size = header.size();
  std::string text(reinterpret_cast<const char*>(&size), sizeof size);
  text += header + std::string(32, '\x38') + "\x80";
  const auto file = SafetensorsFile::Parse(std::as_bytes(std::span(text)), "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto view = WithScale(*(*file)->Find("w"), *(*file)->Find("s"));
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(DequantizeTensor(*view).value(), std::vector<float>(32, 2.0F));
  // The name of a scaled view is no type of a file.
  std::string odd = header;
  odd.replace(odd.find("F8_E4M3"), 7, Info(DType::kF8Block).name);
  const uint64_t odd_size = odd.size();
  std::string bad(reinterpret_cast<const char*>(&odd_size), sizeof odd_size);
  bad += odd + std::string(33, '\0');
  EXPECT_FALSE(SafetensorsFile::Parse(std::as_bytes(std::span(bad)), "t").ok());
}

}  // namespace
}  // namespace deepinfer
