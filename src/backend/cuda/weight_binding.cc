#include "backend/cuda/weight_binding.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/format.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kChunkElements = int64_t{32} << 20;

StoredType TypeOf(const CudaContext& context, const TensorView& view) {
  if (context.float32) return kStoredF32;
  if (view.dtype == DType::kF8Block && view.scale_block_cols % 16 == 0) return kStoredF8;
  if (view.dtype == DType::kF4Pairs && view.scale_block_cols % 32 == 0) return kStoredF4;
  // Routers and other small matrices keep what decides between near ties.
  if (view.dtype == DType::kF32) return kStoredF32;
  return kStoredBf16;
}

Status CheckShape(const TensorView& view) {
  const size_t dims = view.shape.size();
  constexpr int64_t kMost = std::numeric_limits<int>::max() - kPaddedColumns;
  if (dims < 2 || dims > 3 || view.elements() <= 0 || view.dim(dims - 1) > kMost ||
      view.dim(dims - 2) > kMost) {
    return Invalid(Format("tensor {}: needs two dimensions, or three of experts", view.name))
        .WithParam(view.name);
  }
  return {};
}

// Device memory that is full is an error of the model's size, not of the device.
Result<std::byte*> Reserve(DeviceBuffer* buffer, int64_t bytes, const TensorView& view) {
  size_t free_bytes = 0, total = 0;
  DI_TRY(DeviceError(cudaMemGetInfo(&free_bytes, &total), "memory of the device"));
  if (static_cast<size_t>(bytes) > free_bytes) {
    return Exhausted(
        Format("tensor {}: {} bytes of device memory, {} of {} are free; take a "
               "smaller model or type",
               view.name, bytes, free_bytes, total));
  }
  return buffer->Array<std::byte>(bytes);
}

// Rows [begin, begin + count) of the view as a matrix of its last dimension, decoded.
void DecodeRows(const TensorView& view, int64_t begin, int64_t count, float* out) {
  const int64_t cols = view.shape.back();
  for (int64_t i = 0; i < count; ++i) DequantizeRow(view, begin + i, out + i * cols);
}

// Packs one view's matrices, `inner` of them, from decoded elements.
Status PackDecoded(const CudaContext& context, const TensorView& view, const StoredMatrix& matrix,
                   int64_t inner, std::byte* to) {
  const int64_t rows_at_once = std::max<int64_t>(1, kChunkElements / matrix.cols);
  const int64_t size = matrix.type == kStoredF32 ? 4 : 2;
  std::vector<float> decoded;
  std::vector<uint16_t> rounded;
  DeviceBuffer raw;
  auto* device =
      raw.Array<std::byte>(std::min<int64_t>(rows_at_once, matrix.rows) * matrix.cols * size);
  for (int64_t e = 0; e < inner; ++e) {
    for (int64_t row = 0; row < matrix.rows; row += rows_at_once) {
      const int64_t count = std::min<int64_t>(rows_at_once, matrix.rows - row);
      decoded.resize(static_cast<size_t>(count * matrix.cols));
      DecodeRows(view, e * matrix.rows + row, count, decoded.data());
      const void* from = decoded.data();
      if (matrix.type == kStoredBf16) {
        rounded.resize(decoded.size());
        std::transform(decoded.begin(), decoded.end(), rounded.begin(), FloatToBf16);
        from = rounded.data();
      }
      context.Upload(from, decoded.size() * static_cast<size_t>(size), device);
      PackCodes(matrix.type, device, static_cast<int>(count), matrix.cols,
                to + e * matrix.expert_bytes() + row * matrix.padded_cols() * size, context.stream);
    }
  }
  return DeviceError(cudaStreamSynchronize(context.stream), "packing of weights");
}

// The codes as they are.
Status PackStored(const CudaContext& context, const TensorView& view, const StoredMatrix& matrix,
                  int64_t inner, std::byte* to) {
  DeviceBuffer raw;
  auto* device = raw.Array<std::byte>(static_cast<int64_t>(view.bytes));
  context.Upload(view.data, view.bytes, device);
  for (int64_t e = 0; e < inner; ++e) {
    PackCodes(matrix.type, device + e * (static_cast<int64_t>(view.bytes) / inner), matrix.rows,
              matrix.cols, to + e * matrix.expert_bytes(), context.stream);
  }
  return DeviceError(cudaStreamSynchronize(context.stream), "packing of weights");
}

}  // namespace

Result<std::unique_ptr<Weight>> BindVector(const CudaContext& context, const TensorView& view) {
  DI_ASSIGN(const std::vector<float> values, DequantizeTensor(view));
  auto weight = std::make_unique<CudaWeight>();
  weight->rows = static_cast<int64_t>(values.size());
  weight->cols = 1;
  weight->packed_bytes = values.size() * sizeof(float);
  weight->elements = weight->vector.Floats(std::max<int64_t>(1, weight->rows));
  context.Upload(values.data(), weight->packed_bytes, weight->elements);
  return std::unique_ptr<Weight>(std::move(weight));
}

Result<std::unique_ptr<Weight>> BindMatrices(const CudaContext& context,
                                             std::span<const TensorView> views) {
  if (views.empty()) return Invalid("a layer of experts without a tensor");
  const TensorView& first = views[0];
  for (const TensorView& view : views) {
    DI_TRY(CheckShape(view));
    if (view.shape != first.shape || view.dtype != first.dtype ||
        view.scale_block_rows != first.scale_block_rows ||
        view.scale_block_cols != first.scale_block_cols) {
      return Invalid(Format("tensor {}: shape or type differs from {}; the experts of a matrix "
                            "must agree",
                            view.name, first.name))
          .WithParam(view.name);
    }
    if (!AllFinite(view)) {
      return Invalid(Format("tensor {}: an element or scale is not finite", view.name))
          .WithParam(view.name);
    }
  }
  const int64_t inner = first.shape.size() == 3 ? first.dim(0) : 1;
  auto weight = std::make_unique<CudaWeight>();
  weight->rows = first.dim(first.shape.size() - 2);
  weight->cols = first.shape.back();
  weight->experts = static_cast<int64_t>(views.size()) * inner;
  StoredMatrix& matrix = weight->stored;
  matrix.rows = static_cast<int>(weight->rows);
  matrix.cols = static_cast<int>(weight->cols);
  matrix.type = TypeOf(context, first);
  const int64_t bytes = matrix.expert_bytes() * weight->experts;
  DI_ASSIGN(std::byte* const codes, Reserve(&weight->codes, bytes, first));
  MustWork(cudaMemsetAsync(codes, 0, static_cast<size_t>(bytes), context.stream), "weights");
  matrix.codes = codes;
  weight->packed_bytes = static_cast<size_t>(bytes);
  const bool scaled = matrix.type == kStoredF8 || matrix.type == kStoredF4;
  if (scaled) {
    matrix.scale_rows = static_cast<int>(first.scale_rows);
    matrix.scale_cols = static_cast<int>(first.scale_cols);
    matrix.block_rows = static_cast<int>(first.scale_block_rows);
    matrix.block_cols = static_cast<int>(first.scale_block_cols);
    const auto count = static_cast<size_t>(first.scale_rows * first.scale_cols);
    auto* scales = weight->scales.Array<uint8_t>(static_cast<int64_t>(count * views.size()));
    matrix.scales = scales;
    for (size_t i = 0; i < views.size(); ++i) {
      context.Upload(views[i].scale, count, scales + i * count);
    }
    weight->packed_bytes += count * views.size();
  }
  for (size_t i = 0; i < views.size(); ++i) {
    std::byte* to = codes + static_cast<int64_t>(i) * inner * matrix.expert_bytes();
    DI_TRY(scaled ? PackStored(context, views[i], matrix, inner, to)
                  : PackDecoded(context, views[i], matrix, inner, to));
  }
  return std::unique_ptr<Weight>(std::move(weight));
}

}  // namespace deepinfer::cuda
