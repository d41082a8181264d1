#include "tensor/scaled_tensor.h"

#include "base/format.h"

namespace deepinfer {
namespace {

constexpr int64_t kRun = 32;  // columns under one scale where every row has its own
constexpr int64_t kBlocks[] = {32, 64, 128, 256};

int64_t Parts(int64_t count, int64_t block) { return count / block + (count % block != 0 ? 1 : 0); }

std::string Describe(const TensorView& view) {
  std::string text = Format("{} {} [", view.name, Info(view.dtype).name);
  for (size_t i = 0; i < view.shape.size(); ++i) {
    text += Format("{}{}", i == 0 ? "" : ", ", view.shape[i]);
  }
  return text + "]";
}

Status Mismatch(const TensorView& weight, const TensorView& scale, std::string_view wanted) {
  return Invalid(Format("tensor {} and its scales {} do not fit; {}", Describe(weight),
                        Describe(scale), wanted))
      .WithParam(scale.name);
}

// True when `bytes` hold the tensor's elements.
bool Holds(const TensorView& view) {
  int64_t elements = 1;
  for (int64_t d : view.shape) {
    if (d < 0 || __builtin_mul_overflow(elements, d, &elements)) return false;
  }
  const Result<size_t> bytes = ByteSize(view.dtype, elements);
  return bytes.ok() && *bytes <= view.bytes && (view.data != nullptr || *bytes == 0);
}

}  // namespace

Result<TensorView> WithScale(const TensorView& weight, const TensorView& scale) {
  const bool pairs = weight.dtype == DType::kI8 || weight.dtype == DType::kU8;
  if ((!pairs && weight.dtype != DType::kF8_E4M3) || scale.dtype != DType::kF8_E8M0) {
    return Mismatch(weight, scale,
                    "types F8_E4M3 (codes of 8 bits) or I8 (two codes of 4 bits a byte) with "
                    "F8_E8M0 are supported");
  }
  if (weight.shape.size() != 2 || scale.shape.size() != 2 || weight.shape[0] < 1 ||
      weight.shape[1] < 1) {
    return Mismatch(weight, scale, "both must be matrices that are not empty");
  }
  if (!Holds(weight) || !Holds(scale)) {
    return Mismatch(weight, scale, "the bytes do not hold the shape");
  }
  TensorView view = weight;
  const int64_t rows = weight.shape[0];
  int64_t cols = weight.shape[1];
  view.scale = scale.data;
  view.scale_rows = scale.shape[0];
  view.scale_cols = scale.shape[1];
  if (pairs) {
    view.dtype = DType::kF4Pairs;
    if (__builtin_mul_overflow(cols, 2, &cols) || cols % kRun != 0 || view.scale_rows != rows ||
        view.scale_cols != cols / kRun) {
      return Mismatch(weight, scale, "packed FP4 [N, K/2] needs scales [N, K/32]");
    }
    view.shape[1] = cols;
    view.scale_block_rows = 1;
    view.scale_block_cols = kRun;
    return view;
  }
  view.dtype = DType::kF8Block;
  // At most one size fits, or the whole dimension is one block and they mean the same.
  for (int64_t block : kBlocks) {
    if (view.scale_rows == Parts(rows, block) && view.scale_cols == Parts(cols, block)) {
      view.scale_block_rows = view.scale_block_cols = block;
      return view;
    }
  }
  if (view.scale_rows == rows && view.scale_cols == Parts(cols, kRun)) {
    view.scale_block_rows = 1;
    view.scale_block_cols = kRun;
    return view;
  }
  return Mismatch(weight, scale,
                  "FP8 [N, K] needs scales [N/B, K/B] rounded up with B = 32, 64, 128 or 256, or "
                  "[N, K/32]");
}

Result<TensorView> RowsOf(const TensorView& view, int64_t begin, int64_t end) {
  if (view.shape.size() != 2 || begin < 0 || begin >= end || end > view.shape[0] ||
      (view.scale != nullptr && begin % view.scale_block_rows != 0)) {
    return Invalid(Format("tensor {}: rows {} to {} cannot be taken from it", Describe(view), begin,
                          end))
        .WithParam(view.name);
  }
  TensorView part = view;
  part.shape[0] = end - begin;
  const DTypeInfo& info = Info(view.dtype);
  const auto row_bytes =
      static_cast<size_t>(view.shape[1] / info.block_elements * info.block_bytes);
  part.data = view.data + static_cast<size_t>(begin) * row_bytes;
  part.bytes = static_cast<size_t>(end - begin) * row_bytes;
  if (view.scale == nullptr) return part;
  part.scale = view.scale + begin / view.scale_block_rows * view.scale_cols;
  part.scale_rows = Parts(end - begin, view.scale_block_rows);
  return part;
}

}  // namespace deepinfer
