// Panels of the types whose scales are a second tensor.
#include <algorithm>

#include "backend/cpu/pack_items.h"
#include "tensor/block_formats.h"

namespace deepinfer::cpu {
namespace {

constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0fULL;

// Exchanges the middle bytes of each 32-bit item.
uint64_t SwapMiddle(uint64_t v) {
  return (v & 0xff0000ffff0000ffULL) | ((v >> 8) & 0x0000ff000000ff00ULL) |
         ((v << 8) & 0x00ff000000ff0000ULL);
}

// The bit 7 of a byte is set where the byte is one of the two NaN codes.
uint64_t NanCodes(uint64_t v) {
  return ((v & 0x7f7f7f7f7f7f7f7fULL) + 0x0101010101010101ULL) & 0x8080808080808080ULL;
}

// One block of `n` (up to 32) codes of one row, zeros behind them.
uint64_t F8Items(const std::byte* in, int64_t n, uint8_t* out) {
  uint8_t padded[kBlock] = {};
  if (n < kBlock) {
    memcpy(padded, in, static_cast<size_t>(n));
    in = reinterpret_cast<const std::byte*>(padded);
  }
  uint64_t bad = 0;
  for (int i = 0; i < kBlock; i += 8) {
    const uint64_t v = Load64(in + i);
    bad |= NanCodes(v);
    const uint64_t swapped = SwapMiddle(v);
    memcpy(out + i, &swapped, 8);
  }
  return bad;
}

// From neighbours in one byte to elements i (low) and i + 16 (high) in byte i.
void PairItems(const std::byte* in, uint8_t* out) {
  const uint64_t first = Load64(in), second = Load64(in + 8);
  const uint64_t even = (first & kLow) | ((second & kLow) << 4);
  const uint64_t odd = ((first >> 4) & kLow) | (second & (kLow << 4));
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = static_cast<uint8_t>(even >> (8 * i));
    out[2 * i + 1] = static_cast<uint8_t>(odd >> (8 * i));
  }
}

void Store4Rows(const uint8_t items[4][kBlock], int vectors, uint8_t* out) {
  for (int v = 0; v < vectors; v += 4) {
    const void* quad[4] = {items[0] + 4 * v, items[1] + 4 * v, items[2] + 4 * v, items[3] + 4 * v};
    Transpose4(quad, out + 64 * v, 64);
  }
}

}  // namespace

bool PackScaled(const PanelSource& source, int count, int64_t cols, uint8_t* panel) {
  const bool pairs = source.dtype == DType::kF4Pairs;
  const PackKind kind = pairs ? kPackMXFP4 : kPackF8;
  const int64_t code_bytes = pairs ? kBlock / 2 : kBlock;
  const int vectors = kGroupShapes[kind].block_bytes / 64;
  uint64_t bad = 0;
  bool finite = true;
  for (int64_t b = 0; b < PanelSteps(kind, cols); ++b) {
    const Place at = BlockPlace(kGroupShapes[kind], panel, b);
    uint8_t* header = at.header + kQuantPanel * at.index;
    for (int c = 0; c < count; ++c) {
      header[c] = std::to_integer<uint8_t>(source.scales[c][b * kBlock / source.scale_block]);
      finite = finite && header[c] != 255;
    }
    const int64_t n = std::min<int64_t>(kBlock, cols - b * kBlock);
    for (int c = 0; c < count; c += 4) {
      uint8_t items[4][kBlock] = {};
      for (int i = 0; i < std::min(4, count - c); ++i) {
        const std::byte* in = source.rows[c + i] + b * code_bytes;
        if (pairs) {
          PairItems(in, items[i]);
        } else {
          bad |= F8Items(in, n, items[i]);
        }
      }
      Store4Rows(items, vectors, at.block + 4 * c);
    }
  }
  return finite && bad == 0;
}

void DecodeF8Row(const uint8_t* panel, int row, int64_t cols, float* out) {
  constexpr int kPlace[4] = {0, 2, 1, 3};
  for (int64_t k = 0; k < cols; ++k) {
    const Place at =
        BlockPlace(kGroupShapes[kPackF8], const_cast<uint8_t*>(panel), k / kBlock);  // read alone
    const auto i = static_cast<int>(k % kBlock);
    const uint8_t code = at.block[64 * (i / 4) + 4 * row + kPlace[i % 4]];
    out[k] = E8M0ToFloat(at.header[kQuantPanel * at.index + row]) * E4M3ToFloat(code);
  }
}

}  // namespace deepinfer::cpu
