#include "backend/cpu/pack_panel.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/pack_items.h"
#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"

namespace deepinfer::cpu {
namespace {

bool HalfFinite(uint16_t half) { return (half & 0x7c00U) != 0x7c00U; }

// Bits 0, 4, .., 28 of x as one byte.
uint32_t EveryFourth(uint32_t x) {
  x &= 0x11111111U;
  x = (x | (x >> 3)) & 0x03030303U;
  x = (x | (x >> 6)) & 0x000f000fU;
  return (x | (x >> 12)) & 0xffU;
}

// One 32-bit item of the vector of fifth bits, of 32 bits in order of the elements.
uint32_t FifthBits(uint32_t qh) {
  return EveryFourth(qh) | EveryFourth(qh >> 1) << 8 | EveryFourth(qh >> 2) << 16 |
         EveryFourth(qh >> 3) << 24;
}

constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0fULL;

// The nibbles of element i and i + 16 of one sub-block of 32, of 32 bytes that hold two
// sub-blocks in their low and high halves.
void SplitNibbles(const uint8_t* bytes, int half, uint8_t out[16]) {
  for (int i = 0; i < 16; i += 8) {
    const uint64_t a = Load64(bytes + i), b = Load64(bytes + 16 + i);
    const uint64_t v =
        half == 0 ? (a & kLow) | ((b & kLow) << 4) : ((a >> 4) & kLow) | (b & (kLow << 4));
    memcpy(out + i, &v, 8);
  }
}

// Stored types. Items: the bytes of one row of one block of 32, vector after vector, in the order
// of packed_layout.h. Scales: into the header, for column c; false when one is not finite.
struct StoredQ8_0 {
  typedef BlockQ8_0 Block;
  static constexpr PackKind kKind = kPackQ8_0;
  static void Items(const Block& in, int, uint8_t* out) {
    for (int i = 0; i < 32; i += 8) {
      const uint64_t v = Load64(in.qs + i) ^ 0x8080808080808080ULL;
      memcpy(out + i, &v, 8);
    }
  }
  static bool Scales(const Block& in, const Place& at, int c) {
    Store16(at.header + 32 * at.index + 2 * c, in.d);
    return HalfFinite(in.d);
  }
};

struct StoredQ4_0 {
  typedef BlockQ4_0 Block;
  static constexpr PackKind kKind = kPackQ4_0;
  static void Items(const Block& in, int, uint8_t* out) { memcpy(out, in.qs, 16); }
  static bool Scales(const Block& in, const Place& at, int c) {
    Store16(at.header + 32 * at.index + 2 * c, in.d);
    return HalfFinite(in.d);
  }
};

struct StoredQ4_1 {
  typedef BlockQ4_1 Block;
  static constexpr PackKind kKind = kPackQ4_1;
  static void Items(const Block& in, int, uint8_t* out) { memcpy(out, in.qs, 16); }
  static bool Scales(const Block& in, const Place& at, int c) {
    Store16(at.header + 2 * c, in.d);
    Store16(at.header + 32 + 2 * c, in.m);
    return HalfFinite(in.d) && HalfFinite(in.m);
  }
};

struct StoredQ5_0 {
  typedef BlockQ5_0 Block;
  static constexpr PackKind kKind = kPackQ5_0;
  static void Items(const Block& in, int, uint8_t* out) {
    memcpy(out, in.qs, 16);
    Store32(out + 16, FifthBits(Load32(in.qh)));
  }
  static bool Scales(const Block& in, const Place& at, int c) {
    Store16(at.header + 32 * at.index + 2 * c, in.d);
    return HalfFinite(in.d);
  }
};

struct StoredQ5_1 {
  typedef BlockQ5_1 Block;
  static constexpr PackKind kKind = kPackQ5_1;
  static void Items(const Block& in, int, uint8_t* out) {
    memcpy(out, in.qs, 16);
    Store32(out + 16, FifthBits(Load32(in.qh)));
  }
  static bool Scales(const Block& in, const Place& at, int c) {
    Store16(at.header + 2 * c, in.d);
    Store16(at.header + 32 + 2 * c, in.m);
    return HalfFinite(in.d) && HalfFinite(in.m);
  }
};

struct StoredMXFP4 {
  typedef BlockMXFP4 Block;
  static constexpr PackKind kKind = kPackMXFP4;
  static void Items(const Block& in, int, uint8_t* out) { memcpy(out, in.qs, 16); }
  static bool Scales(const Block& in, const Place& at, int c) {
    at.header[16 * at.index + c] = in.e;
    return in.e != 255;
  }
};

bool PutScalesK(uint16_t d, uint16_t dmin, const uint8_t* scales, uint8_t* header, int c) {
  Store16(header + 2 * c, d);
  Store16(header + 32 + 2 * c, dmin);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin pair = ReadScaleMin(scales, sub);
    header[64 + 32 * sub + c] = pair.scale;
    header[64 + 32 * sub + 16 + c] = pair.min;
  }
  return HalfFinite(d) && HalfFinite(dmin);
}

struct StoredQ4K {
  typedef BlockQ4_K Block;
  static constexpr PackKind kKind = kPackQ4K;
  static void Items(const Block& in, int sub, uint8_t* out) {
    SplitNibbles(in.qs + 32 * (sub / 2), sub & 1, out);
  }
  static bool Scales(const Block& in, const Place& at, int c) {
    return PutScalesK(in.d, in.dmin, in.scales, at.header, c);
  }
};

struct StoredQ5K {
  typedef BlockQ5_K Block;
  static constexpr PackKind kKind = kPackQ5K;
  static void Items(const Block& in, int sub, uint8_t* out) {
    SplitNibbles(in.qs + 32 * (sub / 2), sub & 1, out);
    uint32_t high = 0;  // bit v of byte i: element 4v + i
    for (int v = 0; v < 8; ++v) high |= ((Load32(in.qh + 4 * v) >> sub) & 0x01010101U) << v;
    Store32(out + 16, high);
  }
  static bool Scales(const Block& in, const Place& at, int c) {
    return PutScalesK(in.d, in.dmin, in.scales, at.header, c);
  }
};

struct StoredQ6K {
  typedef BlockQ6_K Block;
  static constexpr PackKind kKind = kPackQ6K;
  static void Items(const Block& in, int sub, uint8_t* out) {
    const int half = sub / 4, part = sub & 3;
    SplitNibbles(in.ql + 64 * half + 32 * (part & 1), part / 2, out);
    for (int w = 0; w < 2; ++w) {
      uint32_t high = 0;
      for (int f = 0; f < 4; ++f) {
        const uint32_t bits = Load32(in.qh + 32 * half + 16 * w + 4 * f);
        high |= ((bits >> (2 * part)) & 0x03030303U) << (2 * f);
      }
      Store32(out + 16 + 4 * w, high);
    }
  }
  static bool Scales(const Block& in, const Place& at, int c) {
    Store16(at.header + 2 * c, in.d);
    for (int sub = 0; sub < 8; ++sub) {
      at.header[32 + 32 * sub + c] = static_cast<uint8_t>(in.scales[2 * sub]);
      at.header[32 + 32 * sub + 16 + c] = static_cast<uint8_t>(in.scales[2 * sub + 1]);
    }
    return HalfFinite(in.d);
  }
};

// Blocks are walked in the order of the panel, which is written once, front to back.
template <typename Stored>
bool PackBlocks(const std::byte* const* rows, int count, int64_t cols, uint8_t* panel) {
  typedef typename Stored::Block Block;
  constexpr GroupShape kShape = kGroupShapes[Stored::kKind];
  constexpr int kVectors = kShape.block_bytes / 64;
  constexpr int kSubs = sizeof(Block) > 100 ? 8 : 1;  // blocks of 32 in a stored block
  static const Block kNone = {};                      // what rows past the end hold
  bool finite = true;
  for (int64_t b = 0; b < cols / (kBlock * kSubs); ++b) {
    const Place at = BlockPlace(kShape, panel, b * kSubs);
    const Block* in[kQuantPanel];
    for (int c = 0; c < kQuantPanel; ++c) {
      in[c] = c < count ? reinterpret_cast<const Block*>(rows[c]) + b : &kNone;
      finite = Stored::Scales(*in[c], at, c) && finite;
    }
    for (int sub = 0; sub < kSubs; ++sub) {
      for (int c = 0; c < kQuantPanel; c += 4) {
        uint8_t items[4][48];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) Stored::Items(*in[c + i], sub, items[i]);
        uint8_t* out = at.block + int64_t{sub} * kShape.block_bytes + 4 * c;
#pragma GCC unroll 2
        for (int v = 0; v + 4 <= kVectors; v += 4) {
          const void* quad[4] = {items[0] + 4 * v, items[1] + 4 * v, items[2] + 4 * v,
                                 items[3] + 4 * v};
          Transpose4(quad, out + 64 * v, 64);
        }
        for (int v = kVectors / 4 * 4; v < kVectors; ++v) {
          for (int i = 0; i < 4; ++i) Store32(out + 64 * v + 4 * i, Load32(items[i] + 4 * v));
        }
      }
    }
  }
  return finite;
}

// A sum whose top bits tell that an exponent was all ones.
struct ExponentCheck {
  uint32_t mask;
  uint32_t carry;
  uint32_t top;
};
constexpr ExponentCheck kFloatCheck = {0x7f800000U, 0x00800000U, 0x80000000U};
constexpr ExponentCheck kBf16PairCheck = {0x7f807f80U, 0x00800080U, 0x80008000U};
constexpr ExponentCheck kHalfCheck = {0x7c00U, 0x0400U, 0x8000U};

// 32-bit items (floats or pairs of bf16): item k of row c goes to panel[k][c].
bool PackItems32(const ExponentCheck& check, const std::byte* const* rows, int count, int64_t items,
                 uint8_t* panel) {
  constexpr int64_t kTile = 16;
  uint32_t seen = 0;
  for (int64_t k = 0; k < items; k += kTile) {
    const int64_t n = std::min(kTile, items - k);
    for (int c = 0; c < count; ++c) {
      const std::byte* in = rows[c] + 4 * k;
      for (int64_t i = 0; i < n; ++i) seen |= (Load32(in + 4 * i) & check.mask) + check.carry;
    }
    const int whole = n == kTile ? count / 4 * 4 : 0;
    for (int c = 0; c < whole; c += 4) {
      for (int64_t i = 0; i < kTile; i += 4) {
        const std::byte* const* row = rows + c;
        const int64_t at = 4 * (k + i);
        const void* quad[4] = {row[0] + at, row[1] + at, row[2] + at, row[3] + at};
        Transpose4(quad, panel + 128 * (k + i) + 4 * c, 128);
      }
    }
    for (int c = whole; c < count; ++c) {
      for (int64_t i = 0; i < n; ++i) {
        Store32(panel + 128 * (k + i) + 4 * c, Load32(rows[c] + 4 * (k + i)));
      }
    }
  }
  return (seen & check.top) == 0;
}

bool PackHalves(const std::byte* const* rows, int count, int64_t cols, uint8_t* panel) {
  constexpr int64_t kTile = 32;
  uint32_t seen = 0;
  for (int64_t k = 0; k < cols; k += kTile) {
    const int64_t n = std::min(kTile, cols - k);
    for (int c = 0; c < count; ++c) {
      const std::byte* in = rows[c] + 2 * k;
      uint8_t* out = panel + 64 * k + 2 * c;
      for (int64_t i = 0; i < n; ++i) {
        const uint16_t v = Load16(in + 2 * i);
        seen |= (v & kHalfCheck.mask) + kHalfCheck.carry;
        Store16(out + 64 * i, v);
      }
    }
  }
  return (seen & kHalfCheck.top) == 0;
}

bool PackPairs(const std::byte* const* rows, int count, int64_t cols, uint8_t* panel) {
  bool finite = PackItems32(kBf16PairCheck, rows, count, cols / 2, panel);
  if (cols % 2 == 0) return finite;
  for (int c = 0; c < count; ++c) {
    const uint16_t last = Load16(rows[c] + 2 * (cols - 1));
    finite = finite && (last & 0x7f80U) != 0x7f80U;
    Store16(panel + 128 * (cols / 2) + 4 * c, last);
  }
  return finite;
}

// Any type to a float32 panel. The chunk is a multiple of every block.
bool PackDecoded(const PanelSource& source, int count, int64_t cols, uint8_t* panel) {
  constexpr int64_t kChunk = 256;
  const DTypeInfo& info = Info(source.dtype);
  float values[kFloatPanel][kChunk];
  const std::byte* decoded[kFloatPanel];
  bool finite = true;
  for (int64_t k = 0; k < cols; k += kChunk) {
    const int64_t n = std::min(kChunk, cols - k);
    for (int c = 0; c < count; ++c) {
      if (HasScaleTensor(source.dtype)) {
        DequantizeScaled(source.dtype, source.rows[c], source.scales[c], source.scale_block, k, n,
                         values[c]);
      } else {
        DequantizeRow(source.dtype, source.rows[c] + k / info.block_elements * info.block_bytes, n,
                      values[c]);
      }
      decoded[c] = reinterpret_cast<const std::byte*>(values[c]);
    }
    finite = PackItems32(kFloatCheck, decoded, count, n, panel + 128 * k) && finite;
  }
  return finite;
}

uint16_t HeaderHalf(const uint8_t* header, int index) { return Load16(header + 2 * index); }

void ReadBytes(PackKind kind, const uint8_t* block, int c, uint8_t* q) {
  constexpr uint8_t kMXFP4[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
  for (int i = 0; i < kBlock; ++i) {
    const int v = i / 4, at = 4 * c + i % 4;
    if (kind == kPackQ8_0) {
      q[i] = block[64 * v + at];
      continue;
    }
    int value = (block[64 * (v & 3) + at] >> (v >= 4 ? 4 : 0)) & 15;
    if (kind == kPackQ5_0 || kind == kPackQ5_1 || kind == kPackQ5K) {
      value |= ((block[256 + at] >> v) & 1) << 4;
    } else if (kind == kPackQ6K) {
      value |= ((block[256 + 64 * (v / 4) + at] >> (2 * (v & 3))) & 3) << 4;
    } else if (kind == kPackMXFP4) {
      value = kMXFP4[value];
    }
    q[i] = static_cast<uint8_t>(value);
  }
}

void ReadScales(PackKind kind, const Place& at, int c, DecodedBlock* out) {
  const uint8_t* header = at.header;
  const int sub = 32 * at.index;
  float scale = 0.0F;
  switch (kind) {
    case kPackQ8_0:
    case kPackQ4_0:
    case kPackQ5_0:
      scale = HalfToFloat(HeaderHalf(header + sub, c));
      out->offset = kind == kPackQ8_0 ? 128 : (kind == kPackQ4_0 ? 8 : 16);
      break;
    case kPackQ4_1:
    case kPackQ5_1:
      scale = HalfToFloat(HeaderHalf(header, c));
      out->min = HalfToFloat(HeaderHalf(header + 32, c));
      break;
    case kPackQ4K:
    case kPackQ5K:
      scale = HalfToFloat(HeaderHalf(header, c)) * static_cast<float>(header[64 + sub + c]);
      out->min = -(HalfToFloat(HeaderHalf(header + 32, c)) *
                   static_cast<float>(header[64 + sub + 16 + c]));
      break;
    case kPackQ6K: {
      const float d = HalfToFloat(HeaderHalf(header, c));
      for (int h = 0; h < 2; ++h) {
        out->scale[h] = d * static_cast<float>(static_cast<int8_t>(header[32 + sub + 16 * h + c]));
      }
      out->offset = 32;
      return;
    }
    default:  // MXFP4: bytes hold twice the value
      scale = E8M0ToFloat(header[16 * at.index + c]) * 0.5F;
      out->offset = 16;
      break;
  }
  out->scale[0] = out->scale[1] = scale;
}

}  // namespace

PackKind KindOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kPackF32;
    case DType::kF16:
      return kPackF16;
    case DType::kBF16:
      return kPackBF16;
    case DType::kQ8_0:
      return kPackQ8_0;
    case DType::kQ4_0:
      return kPackQ4_0;
    case DType::kQ4_1:
      return kPackQ4_1;
    case DType::kQ5_0:
      return kPackQ5_0;
    case DType::kQ5_1:
      return kPackQ5_1;
    case DType::kQ4_K:
      return kPackQ4K;
    case DType::kQ5_K:
      return kPackQ5K;
    case DType::kQ6_K:
      return kPackQ6K;
    case DType::kMXFP4:
      return kPackMXFP4;
    case DType::kF4Pairs:
      return kPackMXFP4;
    case DType::kF8Block:
      return kPackF8;
    case DType::kI8:
    case DType::kU8:
    case DType::kI32:
    case DType::kI64:
    case DType::kF8_E4M3:
    case DType::kF8_E8M0:
      return kPackKinds;
  }
  return kPackKinds;
}

int64_t PanelSteps(PackKind kind, int64_t cols) {
  if (kind == kPackBF16) return (cols + kBlock - 1) / kBlock * (kBlock / 2);  // whole tiles of K
  if (kind == kPackF8) return (cols + kBlock - 1) / kBlock;
  return kind < kPackBF16 ? cols : cols / kBlock;
}

int64_t PanelBytes(PackKind kind, int64_t cols) {
  const int64_t steps = PanelSteps(kind, cols);
  if (kind <= kPackBF16) return steps * kStepBytes[kind];
  const GroupShape& shape = kGroupShapes[kind];
  return (steps + shape.group_blocks - 1) / shape.group_blocks * shape.header_bytes +
         steps * shape.block_bytes;
}

bool PackPanel(PackKind kind, const PanelSource& source, int count, int64_t cols, uint8_t* panel) {
  const std::byte* const* rows = source.rows;
  if (kind <= kPackBF16) {
    if (kind == kPackF16) {
      return PackHalves(rows, count, cols, panel);
    } else if (kind == kPackBF16) {
      return PackPairs(rows, count, cols, panel);
    } else if (source.dtype == DType::kF32) {
      return PackItems32(kFloatCheck, rows, count, cols, panel);
    }
    return PackDecoded(source, count, cols, panel);
  }
  if (HasScaleTensor(source.dtype)) return PackScaled(source, count, cols, panel);
  switch (kind) {
    case kPackQ8_0:
      return PackBlocks<StoredQ8_0>(rows, count, cols, panel);
    case kPackQ4_0:
      return PackBlocks<StoredQ4_0>(rows, count, cols, panel);
    case kPackQ4_1:
      return PackBlocks<StoredQ4_1>(rows, count, cols, panel);
    case kPackQ5_0:
      return PackBlocks<StoredQ5_0>(rows, count, cols, panel);
    case kPackQ5_1:
      return PackBlocks<StoredQ5_1>(rows, count, cols, panel);
    case kPackQ4K:
      return PackBlocks<StoredQ4K>(rows, count, cols, panel);
    case kPackQ5K:
      return PackBlocks<StoredQ5K>(rows, count, cols, panel);
    case kPackQ6K:
      return PackBlocks<StoredQ6K>(rows, count, cols, panel);
    case kPackMXFP4:
      return PackBlocks<StoredMXFP4>(rows, count, cols, panel);
    default:
      break;
  }
  DI_CHECK(false, "no panel of kind {}", static_cast<int>(kind));
  return false;
}

void ReadBlock(PackKind kind, const uint8_t* panel, int64_t block, int row, DecodedBlock* out) {
  // BlockPlace computes places alone; nothing is written here.
  const Place at = BlockPlace(kGroupShapes[kind], const_cast<uint8_t*>(panel), block);
  ReadBytes(kind, at.block, row, out->q);
  ReadScales(kind, at, row, out);
}

void DecodePanelRow(PackKind kind, const uint8_t* panel, int row, int64_t cols, float* out) {
  if (kind <= kPackBF16) {
    for (int64_t k = 0; k < cols; ++k) {
      switch (kind) {
        case kPackF32:
          memcpy(out + k, panel + 128 * k + 4 * row, 4);
          break;
        case kPackF16:
          out[k] = HalfToFloat(Load16(panel + 64 * k + 2 * row));
          break;
        default:
          out[k] = Bf16ToFloat(Load16(panel + 128 * (k / 2) + 4 * row + 2 * (k & 1)));
          break;
      }
    }
    return;
  }
  if (kind == kPackF8) return DecodeF8Row(panel, row, cols, out);
  for (int64_t b = 0; b < cols / kBlock; ++b) {
    DecodedBlock block;
    ReadBlock(kind, panel, b, row, &block);
    for (int i = 0; i < kBlock; ++i) {
      const auto q = static_cast<float>(block.q[i] - block.offset);
      out[b * kBlock + i] = block.scale[i / 16] * q + block.min;
    }
  }
}

}  // namespace deepinfer::cpu
