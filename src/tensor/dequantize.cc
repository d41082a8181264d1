#include "tensor/dequantize.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace deepinfer {
namespace {

bool HalfFinite(uint16_t half) { return (half & 0x7c00U) != 0x7c00U; }
bool Bf16Finite(uint16_t bf16) { return (bf16 & 0x7f80U) != 0x7f80U; }

uint32_t ReadBits32(const uint8_t* bytes) {
  uint32_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

void Decode(const BlockQ8_0& b, float* out) {
  const float d = HalfToFloat(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(b.qs[i]);
}

void Decode(const BlockQ4_0& b, float* out) {
  const float d = HalfToFloat(b.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b.qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((b.qs[i] >> 4) - 8);
  }
}

void Decode(const BlockQ4_1& b, float* out) {
  const float d = HalfToFloat(b.d);
  const float m = HalfToFloat(b.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b.qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(b.qs[i] >> 4) + m;
  }
}

// Element i of a five-bit block.
int FiveBits(const uint8_t* qs, uint32_t high, int i) {
  const int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
  return low | static_cast<int>(((high >> i) & 1U) << 4);
}

void Decode(const BlockQ5_0& b, float* out) {
  const float d = HalfToFloat(b.d);
  const uint32_t high = ReadBits32(b.qh);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(FiveBits(b.qs, high, i) - 16);
}

void Decode(const BlockQ5_1& b, float* out) {
  const float d = HalfToFloat(b.d);
  const float m = HalfToFloat(b.m);
  const uint32_t high = ReadBits32(b.qh);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(FiveBits(b.qs, high, i)) + m;
}

void Decode(const BlockMXFP4& b, float* out) {
  const float scale = E8M0ToFloat(b.e);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * E2M1ToFloat(b.qs[i] & 15U);
    out[i + 16] = scale * E2M1ToFloat(b.qs[i] >> 4);
  }
}

void Decode(const BlockQ4_K& b, float* out) {
  const float d = HalfToFloat(b.d);
  const float dmin = HalfToFloat(b.dmin);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin pair = ReadScaleMin(b.scales, sub);
    const float scale = d * static_cast<float>(pair.scale);
    const float min = dmin * static_cast<float>(pair.min);
    const uint8_t* qs = b.qs + 32 * (sub / 2);
    const int shift = 4 * (sub % 2);
    for (int i = 0; i < 32; ++i) {
      out[32 * sub + i] = scale * static_cast<float>((qs[i] >> shift) & 15) - min;
    }
  }
}

void Decode(const BlockQ5_K& b, float* out) {
  const float d = HalfToFloat(b.d);
  const float dmin = HalfToFloat(b.dmin);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin pair = ReadScaleMin(b.scales, sub);
    const float scale = d * static_cast<float>(pair.scale);
    const float min = dmin * static_cast<float>(pair.min);
    const uint8_t* qs = b.qs + 32 * (sub / 2);
    const int shift = 4 * (sub % 2);
    for (int i = 0; i < 32; ++i) {
      const int q = ((qs[i] >> shift) & 15) | (((b.qh[i] >> sub) & 1) << 4);
      out[32 * sub + i] = scale * static_cast<float>(q) - min;
    }
  }
}

void Decode(const BlockQ6_K& b, float* out) {
  const float d = HalfToFloat(b.d);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int in_half = i % 128;
    const int low = (b.ql[64 * half + in_half % 64] >> (4 * (in_half / 64))) & 15;
    const int high = (b.qh[32 * half + in_half % 32] >> (2 * (in_half / 32))) & 3;
    const float scale = d * static_cast<float>(b.scales[i / 16]);
    out[i] = scale * static_cast<float>((low | (high << 4)) - 32);
  }
}

template <typename Block>
void DecodeBlocks(const std::byte* source, int64_t count, int block_elements, float* out) {
  Block block;
  for (int64_t i = 0; i < count / block_elements; ++i) {
    std::memcpy(&block, source + static_cast<size_t>(i) * sizeof(Block), sizeof(Block));
    Decode(block, out + i * block_elements);
  }
}

bool E4M3Finite(uint8_t code) { return (code & 0x7fU) != 0x7fU; }

template <typename T, typename Convert>
void ConvertRow(const std::byte* source, int64_t count, float* out, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, source + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    out[i] = convert(value);
  }
}

template <typename Block, typename Good>
bool AllBlocks(const std::byte* source, int64_t blocks, Good good) {
  Block block;
  for (int64_t i = 0; i < blocks; ++i) {
    std::memcpy(&block, source + static_cast<size_t>(i) * sizeof(Block), sizeof(Block));
    if (!good(block)) return false;
  }
  return true;
}

}  // namespace

void DequantizeRow(DType dtype, const std::byte* source, int64_t count, float* out) {
  DI_CHECK(count >= 0 && count % Info(dtype).block_elements == 0, "{} of {}", count,
           Info(dtype).name);
  if (count == 0) return;  // the pointers may be null
  const auto cast = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, source, static_cast<size_t>(count) * 4);
      return;
    case DType::kF16:
      return ConvertRow<uint16_t>(source, count, out, HalfToFloat);
    case DType::kBF16:
      return ConvertRow<uint16_t>(source, count, out, Bf16ToFloat);
    case DType::kI8:
      return ConvertRow<int8_t>(source, count, out, cast);
    case DType::kU8:
      return ConvertRow<uint8_t>(source, count, out, cast);
    case DType::kI32:
      return ConvertRow<int32_t>(source, count, out, cast);
    case DType::kI64:
      return ConvertRow<int64_t>(source, count, out, cast);
    case DType::kQ8_0:
      return DecodeBlocks<BlockQ8_0>(source, count, 32, out);
    case DType::kQ4_0:
      return DecodeBlocks<BlockQ4_0>(source, count, 32, out);
    case DType::kQ4_1:
      return DecodeBlocks<BlockQ4_1>(source, count, 32, out);
    case DType::kQ5_0:
      return DecodeBlocks<BlockQ5_0>(source, count, 32, out);
    case DType::kQ5_1:
      return DecodeBlocks<BlockQ5_1>(source, count, 32, out);
    case DType::kQ4_K:
      return DecodeBlocks<BlockQ4_K>(source, count, 256, out);
    case DType::kQ5_K:
      return DecodeBlocks<BlockQ5_K>(source, count, 256, out);
    case DType::kQ6_K:
      return DecodeBlocks<BlockQ6_K>(source, count, 256, out);
    case DType::kMXFP4:
      return DecodeBlocks<BlockMXFP4>(source, count, 32, out);
    case DType::kF8_E4M3:
      return ConvertRow<uint8_t>(source, count, out, E4M3ToFloat);
    case DType::kF8_E8M0:
      return ConvertRow<uint8_t>(source, count, out, E8M0ToFloat);
    case DType::kF8Block:
    case DType::kF4Pairs:
      break;
  }
  DI_CHECK(false, "{} is decoded by view", Info(dtype).name);
}

void DequantizeScaled(DType dtype, const std::byte* codes, const std::byte* scales,
                      int64_t scale_block, int64_t begin, int64_t count, float* out) {
  const bool pairs = dtype == DType::kF4Pairs;
  for (int64_t k = begin; k < begin + count;) {
    const float scale = E8M0ToFloat(std::to_integer<uint8_t>(scales[k / scale_block]));
    const int64_t end = std::min(begin + count, (k / scale_block + 1) * scale_block);
    for (; k < end; ++k, ++out) {
      const auto byte = std::to_integer<uint8_t>(codes[pairs ? k / 2 : k]);
      const float value = pairs ? E2M1ToFloat(static_cast<uint8_t>((byte >> (4 * (k & 1))) & 15U))
                                : E4M3ToFloat(byte);
      *out = scale * value;
    }
  }
}

void DequantizeRow(const TensorView& view, int64_t row, float* out) {
  const int64_t cols = view.shape.empty() ? 1 : view.shape.back();
  const DTypeInfo& info = Info(view.dtype);
  const int64_t row_bytes = cols / info.block_elements * info.block_bytes;
  if (HasScaleTensor(view.dtype)) {
    const std::byte* scales = view.scale + row / view.scale_block_rows * view.scale_cols;
    return DequantizeScaled(view.dtype, view.data + row * row_bytes, scales, view.scale_block_cols,
                            0, cols, out);
  }
  DequantizeRow(view.dtype, view.data + row * row_bytes, cols, out);
}

bool AllFinite(DType dtype, const std::byte* source, int64_t count) {
  const int64_t blocks = count / Info(dtype).block_elements;
  const auto d_finite = [](const auto& b) { return HalfFinite(b.d); };
  const auto dm_finite = [](const auto& b) { return HalfFinite(b.d) && HalfFinite(b.m); };
  const auto dmin_finite = [](const auto& b) { return HalfFinite(b.d) && HalfFinite(b.dmin); };
  switch (dtype) {
    case DType::kF32:
      return AllBlocks<uint32_t>(source, blocks,
                                 [](uint32_t b) { return (b & 0x7f800000U) != 0x7f800000U; });
    case DType::kF16:
      return AllBlocks<uint16_t>(source, blocks, HalfFinite);
    case DType::kBF16:
      return AllBlocks<uint16_t>(source, blocks, Bf16Finite);
    case DType::kI8:
    case DType::kU8:
    case DType::kI32:
    case DType::kI64:
      return true;
    case DType::kQ8_0:
      return AllBlocks<BlockQ8_0>(source, blocks, d_finite);
    case DType::kQ4_0:
      return AllBlocks<BlockQ4_0>(source, blocks, d_finite);
    case DType::kQ4_1:
      return AllBlocks<BlockQ4_1>(source, blocks, dm_finite);
    case DType::kQ5_0:
      return AllBlocks<BlockQ5_0>(source, blocks, d_finite);
    case DType::kQ5_1:
      return AllBlocks<BlockQ5_1>(source, blocks, dm_finite);
    case DType::kQ4_K:
      return AllBlocks<BlockQ4_K>(source, blocks, dmin_finite);
    case DType::kQ5_K:
      return AllBlocks<BlockQ5_K>(source, blocks, dmin_finite);
    case DType::kQ6_K:
      return AllBlocks<BlockQ6_K>(source, blocks, d_finite);
    case DType::kMXFP4:
      return AllBlocks<BlockMXFP4>(source, blocks, [](const BlockMXFP4& b) { return b.e != 255; });
    case DType::kF8_E4M3:
    case DType::kF8Block:
      return AllBlocks<uint8_t>(source, blocks, E4M3Finite);
    case DType::kF8_E8M0:
      return AllBlocks<uint8_t>(source, blocks, [](uint8_t code) { return code != 255; });
    case DType::kF4Pairs:
      return true;
  }
  return false;
}

bool AllFinite(const TensorView& view) {
  return AllFinite(view.dtype, view.data, view.elements()) &&
         (view.scale == nullptr ||
          AllFinite(DType::kF8_E8M0, view.scale, view.scale_rows * view.scale_cols));
}

Result<std::vector<float>> DequantizeTensor(const TensorView& view) {
  const int64_t count = view.elements();
  if (!AllFinite(view)) {
    return Invalid(
        Format("tensor {}: a value or scale is NaN or infinite; the file is damaged", view.name));
  }
  std::vector<float> values(static_cast<size_t>(count));
  if (!HasScaleTensor(view.dtype)) {
    DequantizeRow(view.dtype, view.data, count, values.data());
    return values;
  }
  const int64_t cols = view.shape.back();
  for (int64_t row = 0; row < count / cols; ++row) {
    DequantizeRow(view, row, values.data() + row * cols);
  }
  return values;
}

}  // namespace deepinfer
