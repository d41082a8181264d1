// Panels of the types whose scales are a second tensor.
#include <algorithm>

#include "backend/cpu/pack_items.h"
#include "tensor/block_formats.h"

namespace deepinfer::cpu {
namespace {

#if defined(__SSE2__)
__m128i Load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
void Store128(uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }

// One block of `n` (up to 32) codes of one row in the order 0 2 1 3 of every four, zeros behind
// them; true when one is NaN.
bool F8Items(const std::byte* in, int64_t n, uint8_t* out) {
  alignas(16) std::byte padded[kBlock] = {};
  if (n < kBlock) {
    memcpy(padded, in, static_cast<size_t>(n));
    in = padded;
  }
  const __m128i ends = _mm_set1_epi32(static_cast<int>(0xff0000ffU));
  const __m128i second = _mm_set1_epi32(0x0000ff00);
  const __m128i nan = _mm_set1_epi8(0x7f);
  __m128i bad = _mm_setzero_si128();
  for (int i = 0; i < kBlock; i += 16) {
    const __m128i v = Load128(in + i);
    bad = _mm_or_si128(bad, _mm_cmpeq_epi8(_mm_and_si128(v, nan), nan));
    const __m128i down = _mm_and_si128(_mm_srli_epi32(v, 8), second);
    const __m128i up = _mm_slli_epi32(_mm_and_si128(v, second), 8);
    Store128(out + i, _mm_or_si128(_mm_and_si128(v, ends), _mm_or_si128(down, up)));
  }
  return _mm_movemask_epi8(bad) != 0;
}

// From neighbours in one byte to elements i (low) and i + 16 (high) in byte i.
void PairItems(const std::byte* in, uint8_t* out) {
  const __m128i low = _mm_set1_epi8(0x0f);
  const __m128i v = Load128(in);
  const __m128i even = _mm_and_si128(v, low), odd = _mm_and_si128(_mm_srli_epi16(v, 4), low);
  const auto join = [](__m128i x) {
    return _mm_or_si128(x, _mm_slli_epi16(_mm_srli_si128(x, 8), 4));
  };
  Store128(out, _mm_unpacklo_epi8(join(even), join(odd)));
}
#else
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

bool F8Items(const std::byte* in, int64_t n, uint8_t* out) {
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
  return bad != 0;
}

void PairItems(const std::byte* in, uint8_t* out) {
  const uint64_t first = Load64(in), second = Load64(in + 8);
  const uint64_t even = (first & kLow) | ((second & kLow) << 4);
  const uint64_t odd = ((first >> 4) & kLow) | (second & (kLow << 4));
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = static_cast<uint8_t>(even >> (8 * i));
    out[2 * i + 1] = static_cast<uint8_t>(odd >> (8 * i));
  }
}
#endif

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
  bool finite = true;
  alignas(16) uint8_t items[4][kBlock] = {};
  const int64_t blocks_per_scale = source.scale_block / kBlock;
  const int64_t steps = PanelSteps(kind, cols);
  // Rows lie one behind the other, so the next panel is one panel of rows ahead: too many short
  // streams for the processor to foresee.
  const int64_t ahead = count < kQuantPanel ? 0 : kQuantPanel * (source.rows[1] - source.rows[0]);
  const int64_t line_blocks = 64 / code_bytes;
  int64_t scale = 0;
  for (int64_t b = 0, left = blocks_per_scale; b < steps; ++b) {
    const Place at = BlockPlace(kGroupShapes[kind], panel, b);
    uint8_t* header = at.header + kQuantPanel * at.index;
    for (int c = 0; c < count; ++c) {
      const auto code = std::to_integer<uint8_t>(source.scales[c][scale]);
      header[c] = code;
      finite = finite && code != 255;
    }
    if (--left == 0) left = blocks_per_scale, ++scale;
    const int64_t n = std::min<int64_t>(kBlock, cols - b * kBlock);
    for (int c = 0; c < count; c += 4) {
      for (int i = 0; i < 4; ++i) {
        if (c + i >= count) {
          memset(items[i], 0, kBlock);
          continue;
        }
        const std::byte* in = source.rows[c + i] + b * code_bytes;
        if (b % line_blocks == 0) __builtin_prefetch(in + ahead);
        if (pairs) {
          PairItems(in, items[i]);
        } else {
          finite = !F8Items(in, n, items[i]) && finite;
        }
      }
      Store4Rows(items, vectors, at.block + 4 * c);
    }
  }
  return finite;
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
