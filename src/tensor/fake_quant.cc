#include "tensor/fake_quant.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace deepinfer {
namespace {

constexpr uint8_t kNanE8M0 = 255;
constexpr uint8_t kNanE4M3 = 0x7f;

// Infinite when an element is not finite.
float LargestMagnitude(const float* x, int64_t count) {
  uint32_t top = 0;  // magnitudes are ordered like their bits, NaN above all
  for (int64_t i = 0; i < count; ++i) {
    top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffU);
  }
  return std::bit_cast<float>(std::min(top, 0x7f800000U));
}

uint8_t PowerCode(float power) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(power) >> 23);
}

// The three formats: a scale code for the largest magnitude of a block, what it stands for, and
// the codes of the elements.
struct Fp8 {
  static constexpr float kTop = 448.0F;
  static uint8_t ScaleCode(float a) {
    if (!std::isfinite(a)) return kNanE8M0;
    return PowerCode(PowerOfTwoCeil(std::max(a, 1e-4F) * (1.0F / 448.0F)));
  }
  static float Scale(uint8_t code) { return E8M0ToFloat(code); }
  static uint8_t Code(float v) { return FloatToE4M3(v); }
  static float Value(uint8_t code) { return E4M3ToFloat(code); }
  static constexpr bool kPairs = false;
};

struct Fp4E8m0 {
  static constexpr float kTop = 6.0F;
  static uint8_t ScaleCode(float a) {
    if (!std::isfinite(a)) return kNanE8M0;
    return PowerCode(PowerOfTwoCeil(std::max(a, 0x6p-126F) * (1.0F / 6.0F)));
  }
  static float Scale(uint8_t code) { return E8M0ToFloat(code); }
  static uint8_t Code(float v) { return FloatToE2M1(v); }
  static float Value(uint8_t code) { return E2M1ToFloat(code); }
  static constexpr bool kPairs = true;
};

struct Fp4E4m3 {
  static constexpr float kTop = 6.0F;
  static uint8_t ScaleCode(float a) {
    if (!std::isfinite(a)) return kNanE4M3;
    return FloatToE4M3(std::max(a, 0x6p-9F) / 6.0F);
  }
  static float Scale(uint8_t code) { return E4M3ToFloat(code); }
  static uint8_t Code(float v) { return FloatToE2M1(v); }
  static float Value(uint8_t code) { return E2M1ToFloat(code); }
  static constexpr bool kPairs = true;
};

template <typename Format>
uint8_t ElementCode(float x, float scale) {
  // A NaN scale: any code will do, and the conversions are not defined for NaN.
  if (std::isnan(scale)) return 0;
  return Format::Code(std::clamp(x / scale, -Format::kTop, Format::kTop));
}

template <typename Format>
void FakeQuant(const float* x, int64_t count, int64_t block, float* out) {
  DI_CHECK(block > 0 && count % block == 0, "{} elements in blocks of {}", count, block);
  for (int64_t begin = 0; begin < count; begin += block) {
    const float scale = Format::Scale(Format::ScaleCode(LargestMagnitude(x + begin, block)));
    for (int64_t i = begin; i < begin + block; ++i) {
      out[i] = Format::Value(ElementCode<Format>(x[i], scale)) * scale;
    }
  }
}

template <typename Format>
void EncodeRow(const float* x, int64_t count, int64_t block, std::byte* out) {
  DI_CHECK(block % 2 == 0 && count % block == 0, "{} elements in blocks of {}", count, block);
  std::byte* scales = out + (Format::kPairs ? count / 2 : count);
  for (int64_t begin = 0; begin < count; begin += block) {
    const uint8_t code = Format::ScaleCode(LargestMagnitude(x + begin, block));
    const float scale = Format::Scale(code);
    scales[begin / block] = std::byte{code};
    for (int64_t i = begin; i < begin + block; i += 2) {
      const uint8_t even = ElementCode<Format>(x[i], scale);
      const uint8_t odd = ElementCode<Format>(x[i + 1], scale);
      if (Format::kPairs) {
        out[i / 2] = static_cast<std::byte>(even | (odd << 4));
      } else {
        out[i] = std::byte{even};
        out[i + 1] = std::byte{odd};
      }
    }
  }
}

template <typename Format>
void DecodeRow(const std::byte* row, int64_t count, int64_t block, float* out) {
  DI_CHECK(count % block == 0, "{} elements in blocks of {}", count, block);
  const std::byte* scales = row + (Format::kPairs ? count / 2 : count);
  for (int64_t i = 0; i < count; ++i) {
    const float scale = Format::Scale(std::to_integer<uint8_t>(scales[i / block]));
    const auto byte = std::to_integer<uint8_t>(row[Format::kPairs ? i / 2 : i]);
    const int shift = Format::kPairs ? 4 * static_cast<int>(i & 1) : 0;
    const auto code = static_cast<uint8_t>(Format::kPairs ? (byte >> shift) & 15 : byte);
    out[i] = Format::Value(code) * scale;
  }
}

}  // namespace

float PowerOfTwoCeil(float t) {
  const uint32_t bits = std::bit_cast<uint32_t>(t);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1U : 0U);
  return std::bit_cast<float>(exponent << 23);
}

void FakeQuantFp8(const float* x, int64_t count, int64_t block, float* out) {
  FakeQuant<Fp8>(x, count, block, out);
}
void FakeQuantFp4E8m0(const float* x, int64_t count, int64_t block, float* out) {
  FakeQuant<Fp4E8m0>(x, count, block, out);
}
void FakeQuantFp4E4m3(const float* x, int64_t count, int64_t block, float* out) {
  FakeQuant<Fp4E4m3>(x, count, block, out);
}

void EncodeWindowRow(const float* x, int64_t count, std::byte* out) {
  EncodeRow<Fp8>(x, count, kWindowBlock, out);
}
void DecodeWindowRow(const std::byte* row, int64_t count, float* out) {
  DecodeRow<Fp8>(row, count, kWindowBlock, out);
}
void EncodeIndexKey(const float* x, int64_t count, std::byte* out) {
  EncodeRow<Fp4E8m0>(x, count, kIndexKeyBlock, out);
}
void DecodeIndexKey(const std::byte* row, int64_t count, float* out) {
  DecodeRow<Fp4E8m0>(row, count, kIndexKeyBlock, out);
}
void EncodeMainEntry(const float* x, int64_t count, std::byte* out) {
  EncodeRow<Fp4E4m3>(x, count, kMainEntryBlock, out);
}
void DecodeMainEntry(const std::byte* row, int64_t count, float* out) {
  DecodeRow<Fp4E4m3>(row, count, kMainEntryBlock, out);
}

}  // namespace deepinfer
