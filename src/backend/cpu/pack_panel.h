// Rearranges weight rows of a stored type into one panel of packed_layout.h, at memory speed, and
// reads rows back out of panels. Plain functions, any thread.
#pragma once

#include <cstdint>

#include "backend/cpu/packed_layout.h"
#include "tensor/dtype.h"

namespace deepinfer::cpu {

// The packed kind of a stored type; kPackKinds when it has no products.
PackKind KindOf(DType dtype);

// Steps (float kinds) or blocks of K of a panel, and its bytes.
int64_t PanelSteps(PackKind kind, int64_t cols);
int64_t PanelBytes(PackKind kind, int64_t cols);
inline int PanelRows(PackKind kind) { return kind <= kPackBF16 ? kFloatPanel : kQuantPanel; }

// The stored rows of one panel.
struct PanelSource {
  DType dtype = DType::kF32;
  const std::byte* const* rows = nullptr;    // elements (or codes) of each row
  const std::byte* const* scales = nullptr;  // types with a scale tensor: scales of each row,
  int64_t scale_block = 0;                   // one for this many columns, a multiple of 32
};

// Packs `count` rows of `cols` elements into a panel that holds zeros; rows past `count` stay
// zeros. kind is KindOf(dtype), or kPackF32 to decode. False when a scale or element is not finite.
bool PackPanel(PackKind kind, const PanelSource& source, int count, int64_t cols, uint8_t* panel);

// One block of 32 of one row: w = scale * (q - offset) + min, one scale per 16 elements.
struct DecodedBlock {
  uint8_t q[kBlock];
  int offset = 0;
  float scale[2] = {0.0F, 0.0F};
  float min = 0.0F;
};

// Block `block` of K of row `row` of a quantised panel.
void ReadBlock(PackKind kind, const uint8_t* panel, int64_t block, int row, DecodedBlock* out);

// Row `row` of the panel as floats.
void DecodePanelRow(PackKind kind, const uint8_t* panel, int row, int64_t cols, float* out);

}  // namespace deepinfer::cpu
