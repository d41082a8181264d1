#include <cstring>
#include <new>

#include "backend/cpu/act_storage.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/packed_linear.h"
#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr std::align_val_t kAlign{64};

// An odd number of cache lines: rows of a power of two would all fall into the same cache sets.
int64_t RowStride(int64_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }

}  // namespace

ActPlane::~ActPlane() { ::operator delete[](bytes, kAlign); }

void ActPlane::Reserve(int64_t rows) {
  ::operator delete[](bytes, kAlign);
  const auto size = static_cast<size_t>(rows * stride);
  bytes = static_cast<uint8_t*>(::operator new[](size, kAlign));
  memset(bytes, 0, size);  // a row that was never set reads as zeros
}

ActRows::ActRows(int64_t cols, uint32_t formats)
    : cols_(cols), formats_(formats), storage_(std::make_unique<Storage>()) {
  DI_CHECK(cols > 0, "{} columns", cols);
  const int64_t padded = (cols + kBlock - 1) / kBlock * kBlock;
  storage_->f32.stride = RowStride(padded * static_cast<int64_t>(sizeof(float)));
  storage_->bf16.stride = RowStride(padded * 2);
  storage_->q8.stride = RowStride(padded / kBlock * static_cast<int64_t>(2 * sizeof(ActBlock)));
}

ActRows::~ActRows() = default;

void ActRows::Reserve(int64_t rows) {
  if (rows <= rows_) return;
  if ((formats_ & kActF32) != 0) storage_->f32.Reserve(rows);
  if ((formats_ & kActBF16) != 0) storage_->bf16.Reserve(rows);
  if ((formats_ & kActQ8) != 0) storage_->q8.Reserve(rows);
  rows_ = rows;
}

void ActRows::SetRow(Isa isa, int64_t row, const float* x) {
  DI_CHECK(row >= 0 && row < rows_, "row {} of {}", row, rows_);
  const ActFns& fns = Kernels(isa).act;
  if ((formats_ & kActF32) != 0) {
    memcpy(storage_->f32.row(row), x, static_cast<size_t>(cols_) * sizeof(float));
  }
  if ((formats_ & kActBF16) != 0) {
    fns.to_bf16(x, cols_, reinterpret_cast<uint16_t*>(storage_->bf16.row(row)));
  }
  if ((formats_ & kActQ8) != 0) {
    auto* blocks = reinterpret_cast<ActBlock*>(storage_->q8.row(row));
    fns.quantize(x, cols_, blocks, blocks + (cols_ + kBlock - 1) / kBlock);
  }
}

}  // namespace deepinfer::cpu
