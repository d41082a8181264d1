// The stored number formats: conversions of half, bfloat16, E8M0 and E2M1, and the packed block
// structs of the public GGUF types. Layouts are little-endian and unaligned: read them through
// memcpy or pointers to these packed structs only.
#pragma once

#include <bit>
#include <cstdint>

namespace deepinfer {

// IEEE binary16 bits to float: exact.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 31U;
  const uint32_t mantissa = half & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

// Round to nearest even; overflow gives infinity, NaN stays NaN.
inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // >= 65520
  if (magnitude < 0x38800000U) {  // below 2^-14: 0.5F has the spacing of half subnormals
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  magnitude += 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((magnitude >> 13) - (112U << 10)));
}

inline float Bf16ToFloat(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

// Round to nearest even; NaN stays NaN.
inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// E8M0 (OCP MX scale): 2^(code - 127); 255 is NaN, 0 is the float subnormal 2^-127.
inline float E8M0ToFloat(uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000U);
  if (code == 0) return std::bit_cast<float>(0x00400000U);
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// E2M1 (OCP FP4): 4 bits, sign first.
inline float E2M1ToFloat(uint8_t code) {
  constexpr float kMagnitude[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitude[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

// The nearest code, ties to even; magnitudes above 6 saturate. Not for NaN.
inline uint8_t FloatToE2M1(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 28) & 8U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  uint32_t code;
  if (magnitude < 0x3f800000U) {  // below 1: 2^22 has the spacing of the codes, 0.5
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p22F) - 0x4a800000U;
  } else {
    code = ((magnitude + 0x1fffffU + ((magnitude >> 22) & 1U)) >> 22) - 252U;
  }
  return static_cast<uint8_t>(sign | (code > 7 ? 7U : code));
}

// E4M3 (OCP FP8, the "fn" variant): sign, 4 bits of exponent with bias 7, 3 bits of mantissa; the
// largest is 448, there is no infinity, 0x7f and 0xff are NaN.
inline float E4M3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t magnitude = code & 0x7fU;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
}

// The nearest code, ties to even; magnitudes above 448 saturate; NaN stays NaN.
inline uint8_t FloatToE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint8_t>(sign | 0x7fU);
  uint32_t code;
  if (magnitude < 0x3c800000U) {  // below 2^-6: 2^14 has the spacing of the subnormals, 2^-9
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14F) - 0x46800000U;
  } else {
    code = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - 960U;
  }
  return static_cast<uint8_t>(sign | (code > 0x7e ? 0x7eU : code));
}

// Blocks of 32 elements. Nibbles: element i in the low half of qs[i], element i + 16 in the high
// half. `d` and `m` are half bits.
#pragma pack(push, 1)
struct BlockQ8_0 {  // x = d * q
  uint16_t d;
  int8_t qs[32];
};
struct BlockQ4_0 {  // x = d * (q - 8)
  uint16_t d;
  uint8_t qs[16];
};
struct BlockQ4_1 {  // x = d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};
struct BlockQ5_0 {  // x = d * (q - 16); bit i of qh is the fifth bit of element i
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ5_1 {  // x = d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockMXFP4 {  // x = 2^(e - 127) * e2m1(q)
  uint8_t e;
  uint8_t qs[16];
};

// Blocks of 256 elements, in sub-blocks of 32 (Q4_K, Q5_K) or 16 (Q6_K).
// scales: eight pairs (scale, min) of 6 bits, see ReadScaleMin. x = d * scale * q - dmin * min.
struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qs[128];  // 32 bytes hold sub-blocks 2k (low nibbles) and 2k + 1 (high nibbles)
};
struct BlockQ5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];  // bit s of qh[i] is the fifth bit of element i of sub-block s
  uint8_t qs[128];
};
struct BlockQ6_K {  // x = d * scales[i / 16] * (q - 32)
  uint8_t ql[128];  // per half of 128: 64 bytes, low nibbles elements 0..63, high 64..127
  uint8_t qh[64];   // per half: byte i holds the upper two bits of i, i+32, i+64, i+96
  int8_t scales[16];
  uint16_t d;
};
#pragma pack(pop)

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);

struct ScaleMin {
  uint8_t scale;
  uint8_t min;
};

// Pair `sub` (0..7) of the 12 packed bytes of Q4_K and Q5_K: bytes 0-3 hold scales 0-3 and bytes
// 4-7 mins 0-3 in their low 6 bits; scales and mins 4-7 have their low nibbles in bytes 8-11 and
// their upper two bits on top of bytes 0-3 and 4-7.
inline ScaleMin ReadScaleMin(const uint8_t* packed, int sub) {
  if (sub < 4) {
    return {static_cast<uint8_t>(packed[sub] & 63U), static_cast<uint8_t>(packed[sub + 4] & 63U)};
  }
  return {static_cast<uint8_t>((packed[sub + 4] & 15U) | ((packed[sub - 4] >> 6) << 4)),
          static_cast<uint8_t>((packed[sub + 4] >> 4) | ((packed[sub] >> 6) << 4))};
}

inline void WriteScaleMin(uint8_t* packed, int sub, ScaleMin pair) {
  if (sub < 4) {
    packed[sub] = static_cast<uint8_t>((packed[sub] & 0xc0U) | pair.scale);
    packed[sub + 4] = static_cast<uint8_t>((packed[sub + 4] & 0xc0U) | pair.min);
    return;
  }
  packed[sub + 4] = static_cast<uint8_t>((pair.scale & 15U) | ((pair.min & 15U) << 4));
  packed[sub - 4] = static_cast<uint8_t>((packed[sub - 4] & 63U) | ((pair.scale >> 4) << 6));
  packed[sub] = static_cast<uint8_t>((packed[sub] & 63U) | ((pair.min >> 4) << 6));
}

}  // namespace deepinfer
