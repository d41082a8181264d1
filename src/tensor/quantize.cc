#include "tensor/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace deepinfer {
namespace {

constexpr float kHalfMax = 65504.0F;

int RoundToInt(float value) { return static_cast<int>(std::lrintf(value)); }

int RoundClamped(float value, int low, int high) {
  return std::clamp(RoundToInt(value), low, high);
}

// Scales are stored as half: what a reader sees. Beyond its range the largest value.
float AsHalf(float value) {
  return HalfToFloat(FloatToHalf(std::clamp(value, -kHalfMax, kHalfMax)));
}

float LargestMagnitude(const float* x, int count) {
  float largest = 0.0F;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// Sums run in kLanes fixed lanes so that the compiler may use vectors without reordering anything.
constexpr int kLanes = 8;

struct Lanes {
  float sum[kLanes] = {};
  float Total() const {
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
  }
};

// The nearest whole number in [low, high], ties to even: adding 1.5 * 2^23 leaves no fraction bits.
float RoundWithin(float value, float low, float high) {
  constexpr float kNoFraction = 12582912.0F;
  return (std::min(std::max(value, low), high) + kNoFraction) - kNoFraction;
}

float InverseOf(float scale) { return scale == 0.0F ? 0.0F : 1.0F / scale; }

// Squared error of x against scale * q with q in [low, high] chosen by rounding.
template <int kCount>
float SymmetricError(const float* x, float scale, float low, float high) {
  const float inverse = InverseOf(scale);
  Lanes error;
  for (int i = 0; i < kCount; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      const float difference = value - scale * RoundWithin(value * inverse, low, high);
      error.sum[lane] += difference * difference;
    }
  }
  return error.Total();
}

// Least squares of the scale for the codes that `scale` gives; 0 when they are all zero.
template <int kCount>
float RefitSymmetric(const float* x, float scale, float low, float high) {
  const float inverse = InverseOf(scale);
  Lanes xq, qq;
  for (int i = 0; i < kCount; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float q = RoundWithin(x[i + lane] * inverse, low, high);
      xq.sum[lane] += x[i + lane] * q;
      qq.sum[lane] += q * q;
    }
  }
  const float squares = qq.Total();
  return squares > 0.0F ? xq.Total() / squares : 0.0F;
}

// The scale s (sign free) for which x is nearest to s * q, q in [low, high]. Candidates put the
// largest element on a code around the end of the range; each is refined by least squares.
// `round` maps a scale to the value that will be stored.
template <int kCount, typename Round>
float SearchSymmetric(const float* x, float low, float high, Round round) {
  float peak = 0.0F;
  for (int i = 0; i < kCount; ++i) {
    if (std::fabs(x[i]) > std::fabs(peak)) peak = x[i];
  }
  if (peak == 0.0F) return 0.0F;
  float best_scale = 0.0F;
  float best_error = std::numeric_limits<float>::infinity();
  const auto consider = [&](float scale) {
    const float stored = round(scale);
    const float error = SymmetricError<kCount>(x, stored, low, high);
    if (error < best_error) {
      best_error = error;
      best_scale = stored;
    }
  };
  // The range has one more negative code, so the peak is tried on both sides.
  constexpr float kSteps[] = {0.0F, -0.7F, -0.35F, 0.35F, 0.7F, 1.2F};
  for (const float step : kSteps) {
    for (const float end : {low, high}) {
      const float scale = peak / (end + (end < 0.0F ? -step : step));
      consider(scale);
      consider(RefitSymmetric<kCount>(x, scale, low, high));
    }
  }
  return best_scale;
}

struct Affine {
  float scale = 0.0F;
  float offset = 0.0F;  // x is near scale * q + offset
};

float AffineError(const float* x, Affine affine, float high) {
  const float inverse = InverseOf(affine.scale);
  Lanes error;
  for (int i = 0; i < 32; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      const float q = RoundWithin((value - affine.offset) * inverse, 0.0F, high);
      const float difference = value - (affine.scale * q + affine.offset);
      error.sum[lane] += difference * difference;
    }
  }
  return error.Total();
}

// Least squares of scale and offset for the codes that `affine` gives.
Affine Refit(const float* x, Affine affine, float high, float offset_max) {
  const float inverse = InverseOf(affine.scale);
  Lanes lanes_q, lanes_qq, lanes_x, lanes_xq;
  for (int i = 0; i < 32; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      const float q = RoundWithin((value - affine.offset) * inverse, 0.0F, high);
      lanes_q.sum[lane] += q;
      lanes_qq.sum[lane] += q * q;
      lanes_x.sum[lane] += value;
      lanes_xq.sum[lane] += value * q;
    }
  }
  const float sum_q = lanes_q.Total(), sum_qq = lanes_qq.Total();
  const float sum_x = lanes_x.Total(), sum_xq = lanes_xq.Total();
  const float determinant = 32.0F * sum_qq - sum_q * sum_q;
  if (determinant <= 0.0F) return affine;
  Affine fit{(32.0F * sum_xq - sum_x * sum_q) / determinant,
             (sum_qq * sum_x - sum_q * sum_xq) / determinant};
  if (fit.offset > offset_max) {
    fit.offset = offset_max;
    if (sum_qq > 0.0F) fit.scale = (sum_xq - fit.offset * sum_q) / sum_qq;
  }
  return fit.scale > 0.0F ? fit : affine;
}

// Nearest scale >= 0 and offset <= offset_max for codes 0..high of 32 elements. Starts from the
// span of x and spans a little narrower or wider, each refined by least squares.
template <typename Round>
Affine SearchAffine(const float* x, float high, float offset_max, Round round) {
  const auto [low_it, high_it] = std::minmax_element(x, x + 32);
  const float low = std::min(*low_it, offset_max);
  const float span = *high_it - low;
  if (!(span > 0.0F)) return round(Affine{0.0F, low});
  Affine best;
  float best_error = std::numeric_limits<float>::infinity();
  const auto consider = [&](Affine candidate) {
    const Affine stored = round(candidate);
    const float error = AffineError(x, stored, high);
    if (error < best_error) {
      best_error = error;
      best = stored;
    }
  };
  constexpr float kSteps[] = {0.0F, -0.8F, -0.4F, 0.4F, 0.8F, 1.4F};
  for (const float step : kSteps) {
    Affine candidate{span / (high + step), low};
    consider(candidate);
    for (int round_trip = 0; round_trip < 2; ++round_trip) {
      candidate = Refit(x, candidate, high, offset_max);
      consider(candidate);
    }
  }
  return best;
}

Affine RoundAffineToHalf(Affine affine) { return {AsHalf(affine.scale), AsHalf(affine.offset)}; }

uint8_t PackNibbles(int low, int high) { return static_cast<uint8_t>(low | (high << 4)); }

void Encode(const float* x, BlockQ8_0* b) {
  const float scale = AsHalf(LargestMagnitude(x, 32) / 127.0F);
  const float inverse = InverseOf(scale);
  b->d = FloatToHalf(scale);
  for (int i = 0; i < 32; ++i) {
    b->qs[i] = static_cast<int8_t>(RoundClamped(x[i] * inverse, -127, 127));
  }
}

void Encode(const float* x, BlockQ4_0* b) {
  const float scale = SearchSymmetric<32>(x, -8.0F, 7.0F, AsHalf);
  const float inverse = InverseOf(scale);
  b->d = FloatToHalf(scale);
  for (int i = 0; i < 16; ++i) {
    b->qs[i] = PackNibbles(RoundClamped(x[i] * inverse, -8, 7) + 8,
                           RoundClamped(x[i + 16] * inverse, -8, 7) + 8);
  }
}

void Encode(const float* x, BlockQ4_1* b) {
  const float no_limit = std::numeric_limits<float>::infinity();
  const Affine affine = SearchAffine(x, 15.0F, no_limit, RoundAffineToHalf);
  const float inverse = InverseOf(affine.scale);
  b->d = FloatToHalf(affine.scale);
  b->m = FloatToHalf(affine.offset);
  for (int i = 0; i < 16; ++i) {
    b->qs[i] = PackNibbles(RoundClamped((x[i] - affine.offset) * inverse, 0, 15),
                           RoundClamped((x[i + 16] - affine.offset) * inverse, 0, 15));
  }
}

void PackFiveBits(const int* q, uint8_t* qs, uint8_t* qh) {
  uint32_t high = 0;
  for (int i = 0; i < 32; ++i) high |= static_cast<uint32_t>((q[i] >> 4) & 1) << i;
  std::memcpy(qh, &high, sizeof high);
  for (int i = 0; i < 16; ++i) qs[i] = PackNibbles(q[i] & 15, q[i + 16] & 15);
}

void Encode(const float* x, BlockQ5_0* b) {
  const float scale = SearchSymmetric<32>(x, -16.0F, 15.0F, AsHalf);
  const float inverse = InverseOf(scale);
  b->d = FloatToHalf(scale);
  int q[32];
  for (int i = 0; i < 32; ++i) q[i] = RoundClamped(x[i] * inverse, -16, 15) + 16;
  PackFiveBits(q, b->qs, b->qh);
}

void Encode(const float* x, BlockQ5_1* b) {
  const float no_limit = std::numeric_limits<float>::infinity();
  const Affine affine = SearchAffine(x, 31.0F, no_limit, RoundAffineToHalf);
  const float inverse = InverseOf(affine.scale);
  b->d = FloatToHalf(affine.scale);
  b->m = FloatToHalf(affine.offset);
  int q[32];
  for (int i = 0; i < 32; ++i) q[i] = RoundClamped((x[i] - affine.offset) * inverse, 0, 31);
  PackFiveBits(q, b->qs, b->qh);
}

// Nearest E2M1 code; ties go to the even code.
uint8_t ToE2M1(float value) {
  constexpr float kMidpoints[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const float magnitude = std::fabs(value);
  uint8_t code = 0;
  while (code < 7) {
    const float midpoint = kMidpoints[code];
    const bool above = (code % 2 == 0) ? magnitude > midpoint : magnitude >= midpoint;
    if (!above) break;
    ++code;
  }
  return std::signbit(value) && code != 0 ? static_cast<uint8_t>(code | 8U) : code;
}

void Encode(const float* x, BlockMXFP4* b) {
  const float largest = LargestMagnitude(x, 32);
  if (largest == 0.0F) {
    *b = {};
    return;
  }
  // 6 * 2^e covers the largest element at e = ceil(log2(largest / 6)); one step below clips it but
  // may serve the rest better.
  const int cover = static_cast<int>(std::ceil(std::log2(std::max(largest / 6.0F, 0x1p-127F))));
  float best_error = std::numeric_limits<float>::infinity();
  for (int exponent = cover; exponent >= cover - 1; --exponent) {
    const auto code = static_cast<uint8_t>(std::clamp(exponent + 127, 0, 254));
    const float scale = E8M0ToFloat(code);
    BlockMXFP4 block{};
    block.e = code;
    float error = 0.0F;
    for (int i = 0; i < 32; ++i) {
      const uint8_t q = ToE2M1(x[i] / scale);
      const float difference = x[i] - scale * E2M1ToFloat(q);
      error += difference * difference;
      block.qs[i % 16] |= static_cast<uint8_t>(i < 16 ? q : q << 4);
    }
    if (exponent == cover || error < best_error) {  // the sum may overflow to infinity
      best_error = error;
      *b = block;
    }
  }
}

// Scales and mins of the eight sub-blocks of Q4_K and Q5_K, as stored.
struct SuperBlock {
  float d = 0.0F;
  float dmin = 0.0F;
  std::array<ScaleMin, 8> pairs{};
};

// Best 6-bit pair of one sub-block near `ideal`, given the stored d and dmin.
ScaleMin SearchPair(const float* x, Affine ideal, float d, float dmin, int high) {
  const int scale0 = d > 0.0F ? RoundClamped(ideal.scale / d, 0, 63) : 0;
  const int min0 = dmin > 0.0F ? RoundClamped(-ideal.offset / dmin, 0, 63) : 0;
  ScaleMin best{};
  float best_error = std::numeric_limits<float>::infinity();
  for (int scale = std::max(scale0 - 1, 0); scale <= std::min(scale0 + 1, 63); ++scale) {
    for (int min = std::max(min0 - 1, 0); min <= std::min(min0 + 1, 63); ++min) {
      const Affine stored{d * static_cast<float>(scale), -dmin * static_cast<float>(min)};
      const float error = AffineError(x, stored, static_cast<float>(high));
      if (error < best_error) {
        best_error = error;
        best = {static_cast<uint8_t>(scale), static_cast<uint8_t>(min)};
      }
    }
  }
  return best;
}

SuperBlock SearchSuperBlock(const float* x, int high) {
  std::array<Affine, 8> ideal;
  float scale_max = 0.0F;
  float min_max = 0.0F;
  for (size_t sub = 0; sub < 8; ++sub) {
    ideal[sub] = SearchAffine(x + 32 * sub, static_cast<float>(high), 0.0F,
                              [](Affine affine) { return affine; });
    scale_max = std::max(scale_max, ideal[sub].scale);
    min_max = std::max(min_max, -ideal[sub].offset);
  }
  SuperBlock super;
  super.d = AsHalf(scale_max / 63.0F);
  super.dmin = AsHalf(min_max / 63.0F);
  for (size_t sub = 0; sub < 8; ++sub) {
    super.pairs[sub] = SearchPair(x + 32 * sub, ideal[sub], super.d, super.dmin, high);
  }
  return super;
}

// Codes 0..high of the 256 elements.
void SuperBlockCodes(const float* x, const SuperBlock& super, int high, uint8_t* q) {
  for (size_t sub = 0; sub < 8; ++sub) {
    const float scale = super.d * static_cast<float>(super.pairs[sub].scale);
    const float min = super.dmin * static_cast<float>(super.pairs[sub].min);
    const float inverse = InverseOf(scale);
    for (size_t i = 32 * sub; i < 32 * sub + 32; ++i) {
      q[i] = static_cast<uint8_t>(RoundClamped((x[i] + min) * inverse, 0, high));
    }
  }
}

void PackScales(const SuperBlock& super, uint8_t* packed) {
  std::memset(packed, 0, 12);
  for (int sub = 0; sub < 8; ++sub) {
    WriteScaleMin(packed, sub, super.pairs[static_cast<size_t>(sub)]);
  }
}

void Encode(const float* x, BlockQ4_K* b) {
  const SuperBlock super = SearchSuperBlock(x, 15);
  b->d = FloatToHalf(super.d);
  b->dmin = FloatToHalf(super.dmin);
  PackScales(super, b->scales);
  uint8_t q[256];
  SuperBlockCodes(x, super, 15, q);
  for (int i = 0; i < 128; ++i) {
    const int low = 64 * (i / 32) + i % 32;
    b->qs[i] = PackNibbles(q[low], q[low + 32]);
  }
}

void Encode(const float* x, BlockQ5_K* b) {
  const SuperBlock super = SearchSuperBlock(x, 31);
  b->d = FloatToHalf(super.d);
  b->dmin = FloatToHalf(super.dmin);
  PackScales(super, b->scales);
  uint8_t q[256];
  SuperBlockCodes(x, super, 31, q);
  std::memset(b->qh, 0, sizeof b->qh);
  for (int i = 0; i < 256; ++i) {
    b->qh[i % 32] = static_cast<uint8_t>(b->qh[i % 32] | ((q[i] >> 4) << (i / 32)));
  }
  for (int i = 0; i < 128; ++i) {
    const int low = 64 * (i / 32) + i % 32;
    b->qs[i] = PackNibbles(q[low] & 15, q[low + 32] & 15);
  }
}

void Encode(const float* x, BlockQ6_K* b) {
  std::array<float, 16> ideal;
  float peak = 0.0F;
  for (size_t sub = 0; sub < 16; ++sub) {
    ideal[sub] =
        SearchSymmetric<16>(x + 16 * sub, -32.0F, 31.0F, [](float scale) { return scale; });
    if (std::fabs(ideal[sub]) > std::fabs(peak)) peak = ideal[sub];
  }
  const float d = AsHalf(peak / -128.0F);
  *b = {};
  b->d = FloatToHalf(d);
  if (d == 0.0F) return;  // all codes decode to zero
  for (size_t sub = 0; sub < 16; ++sub) {
    const float* sub_x = x + 16 * sub;
    const int rounded = RoundClamped(ideal[sub] / d, -128, 127);
    int best = rounded;
    float best_error = std::numeric_limits<float>::infinity();
    for (int code = std::max(rounded - 1, -128); code <= std::min(rounded + 1, 127); ++code) {
      const float error = SymmetricError<16>(sub_x, d * static_cast<float>(code), -32.0F, 31.0F);
      if (error < best_error) {
        best_error = error;
        best = code;
      }
    }
    b->scales[sub] = static_cast<int8_t>(best);
    const float scale = d * static_cast<float>(best);
    const float inverse = InverseOf(scale);
    for (size_t j = 0; j < 16; ++j) {
      const size_t i = 16 * sub + j;
      const int q = RoundClamped(sub_x[j] * inverse, -32, 31) + 32;
      const size_t half = i / 128;
      const size_t in_half = i % 128;
      b->ql[64 * half + in_half % 64] |= static_cast<uint8_t>((q & 15) << (4 * (in_half / 64)));
      b->qh[32 * half + in_half % 32] |= static_cast<uint8_t>((q >> 4) << (2 * (in_half / 32)));
    }
  }
}

template <typename Block>
void EncodeBlocks(const float* row, int64_t count, int block_elements, std::byte* out) {
  for (int64_t i = 0; i < count / block_elements; ++i) {
    Block block;
    Encode(row + i * block_elements, &block);
    std::memcpy(out + static_cast<size_t>(i) * sizeof(Block), &block, sizeof(Block));
  }
}

template <typename Convert>
void ConvertRow(const float* row, int64_t count, std::byte* out, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = convert(row[i]);
    std::memcpy(out + static_cast<size_t>(i) * sizeof bits, &bits, sizeof bits);
  }
}

// Largest magnitude that a block format's stored scale can reach.
float RangeMax(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kHalfMax;
    case DType::kQ4_1:
    case DType::kQ5_1:
      return kHalfMax;  // the offset itself is a half
    case DType::kQ8_0:
      return kHalfMax * 127.0F;
    case DType::kQ4_0:
      return kHalfMax * 7.0F;
    case DType::kQ5_0:
      return kHalfMax * 15.0F;
    case DType::kQ4_K:
    case DType::kQ5_K:
      return kHalfMax * 63.0F;
    case DType::kQ6_K:
      return kHalfMax * 128.0F;
    default:
      return std::numeric_limits<float>::max();
  }
}

}  // namespace

bool CanQuantizeTo(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         (Info(dtype).block_elements > 1 && !HasScaleTensor(dtype));
}

Status QuantizeRow(DType dtype, const float* row, int64_t count, std::byte* out) {
  const DTypeInfo& info = Info(dtype);
  DI_CHECK(CanQuantizeTo(dtype) && count >= 0 && count % info.block_elements == 0, "{} of {}",
           count, info.name);
  if (count == 0) return {};  // the pointers may be null
  const float range_max = RangeMax(dtype);
  for (int64_t i = 0; i < count; ++i) {
    if (!(std::fabs(row[i]) <= range_max)) {
      return Invalid(Format("element {} is {}; {} holds finite values up to {}", i, row[i],
                            info.name, range_max));
    }
  }
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(count) * 4);
      break;
    case DType::kF16:
      ConvertRow(row, count, out, FloatToHalf);
      break;
    case DType::kBF16:
      ConvertRow(row, count, out, FloatToBf16);
      break;
    case DType::kQ8_0:
      EncodeBlocks<BlockQ8_0>(row, count, 32, out);
      break;
    case DType::kQ4_0:
      EncodeBlocks<BlockQ4_0>(row, count, 32, out);
      break;
    case DType::kQ4_1:
      EncodeBlocks<BlockQ4_1>(row, count, 32, out);
      break;
    case DType::kQ5_0:
      EncodeBlocks<BlockQ5_0>(row, count, 32, out);
      break;
    case DType::kQ5_1:
      EncodeBlocks<BlockQ5_1>(row, count, 32, out);
      break;
    case DType::kQ4_K:
      EncodeBlocks<BlockQ4_K>(row, count, 256, out);
      break;
    case DType::kQ5_K:
      EncodeBlocks<BlockQ5_K>(row, count, 256, out);
      break;
    case DType::kQ6_K:
      EncodeBlocks<BlockQ6_K>(row, count, 256, out);
      break;
    case DType::kMXFP4:
      EncodeBlocks<BlockMXFP4>(row, count, 32, out);
      break;
    case DType::kI8:
    case DType::kU8:
    case DType::kI32:
    case DType::kI64:
    case DType::kF8_E4M3:
    case DType::kF8_E8M0:
    case DType::kF8Block:
    case DType::kF4Pairs:
      break;  // excluded by CanQuantizeTo
  }
  return {};
}

}  // namespace deepinfer
