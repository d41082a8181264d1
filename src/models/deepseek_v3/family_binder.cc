#include "models/deepseek_v3/family_binder.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"
#include "tensor/scaled_tensor.h"

namespace deepinfer {
namespace {

constexpr std::array kPlain = {DType::kF32, DType::kF16, DType::kBF16};
constexpr std::array kWhole = {DType::kI64, DType::kI32};
constexpr std::array kFloat32 = {DType::kF32};
constexpr std::array kExponent = {DType::kF8_E8M0};
constexpr int64_t kBlocks[] = {128, 32, 64, 256};  // the sizes of square blocks, the usual first

int64_t Parts(int64_t count, int64_t block) { return (count + block - 1) / block; }

// Side of the square blocks that give this shape of scales; 0: none does.
int64_t BlockOf(const TensorView& weight, const TensorView& scale) {
  if (scale.shape.size() != 2) return 0;
  for (const int64_t block : kBlocks) {
    if (scale.shape[0] == Parts(weight.shape[0], block) &&
        scale.shape[1] == Parts(weight.shape[1], block)) {
      return block;
    }
  }
  return 0;
}

// The code of a power of two that E8M0 can hold; -1 for other numbers.
int ExponentCode(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = bits >> 23;
  const bool power = (bits & 0x007fffffU) == 0 && exponent >= 1 && exponent <= 254;
  return power ? static_cast<int>(exponent) : -1;
}

}  // namespace

FamilyBinder::FamilyBinder(const Checkpoint& checkpoint, Backend* backend,
                           const LoadProgress& progress, BindPass pass)
    : checkpoint_(checkpoint),
      backend_(backend),
      progress_(progress),
      pass_(pass),
      census_(checkpoint.file()) {
  for (const TensorView& view : checkpoint.file().tensors()) {
    bytes_total_ += static_cast<int64_t>(view.bytes);
  }
}

void FamilyBinder::Problem(std::string problem) {
  failed_ = true;
  census_.Problem(std::move(problem));
}

Status FamilyBinder::Finish(std::string_view architecture) {
  DI_TRY(Status(status_));
  if (pass_ == BindPass::kBind && !failed_) return {};
  return census_.Finish(checkpoint_.path(), architecture);
}

std::unique_ptr<Weight> FamilyBinder::Count(Result<std::unique_ptr<Weight>> weight,
                                            size_t source_bytes) {
  if (!weight.ok()) {
    status_ = weight.status();
    return nullptr;
  }
  packed_bytes_ += (*weight)->packed_bytes;
  bytes_done_ += static_cast<int64_t>(source_bytes);
  if (progress_.report != nullptr) progress_.report(progress_.context, bytes_done_, bytes_total_);
  return std::move(weight).value();
}

std::unique_ptr<Weight> FamilyBinder::Vector(const std::string& name, int64_t size) {
  return Table(name, {size});
}

std::unique_ptr<Weight> FamilyBinder::Table(const std::string& name,
                                            const std::vector<int64_t>& shape) {
  const TensorView* view = census_.Take(name, shape, kPlain);
  failed_ = failed_ || view == nullptr;
  if (!binding()) return nullptr;
  return Count(backend_->Bind(checkpoint_.file(), *view, WeightRole::kVector), view->bytes);
}

std::unique_ptr<Weight> FamilyBinder::Float32Matrix(const std::string& name, int64_t rows,
                                                    int64_t cols) {
  const TensorView* stored = census_.Take(name, {rows, cols}, kPlain);
  failed_ = failed_ || stored == nullptr;
  if (!binding()) return nullptr;
  Result<std::vector<float>> values = DequantizeTensor(*stored);
  if (!values.ok()) {
    status_ = values.status();
    return nullptr;
  }
  TensorView view{stored->name, DType::kF32, stored->shape};
  view.data = reinterpret_cast<const std::byte*>(values->data());
  view.bytes = values->size() * sizeof(float);
  return Count(backend_->Bind(checkpoint_.file(), view, WeightRole::kLinear), stored->bytes);
}

std::vector<int64_t> FamilyBinder::Ints(const std::string& name,
                                        const std::vector<int64_t>& shape) {
  const TensorView* view = census_.Take(name, shape, kWhole);
  failed_ = failed_ || view == nullptr;
  if (!binding()) return {};
  std::vector<int64_t> values(static_cast<size_t>(view->elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (view->dtype == DType::kI64) {
      memcpy(&values[i], view->data + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      int32_t value = 0;
      memcpy(&value, view->data + i * sizeof(value), sizeof(value));
      values[i] = value;
    }
  }
  return values;
}

std::byte* FamilyBinder::Derive(size_t bytes) { return derived_.emplace_back(bytes).data(); }

// The same values as codes and exponents, where every scale is a power of two.
std::optional<TensorView> FamilyBinder::PowersOfTwo(const TensorView& weight,
                                                    const TensorView& scale,
                                                    const std::vector<float>& values) {
  for (const float value : values) {
    if (ExponentCode(value) < 0) return std::nullopt;
  }
  TensorView codes = scale;
  std::byte* to = Derive(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    to[i] = static_cast<std::byte>(ExponentCode(values[i]));
  codes.dtype = DType::kF8_E8M0;
  codes.data = to;
  codes.bytes = values.size();
  Result<TensorView> view = WithScale(weight, codes);
  if (!view.ok()) return std::nullopt;
  return *std::move(view);
}

// e4m3 codes times a float32 scale for each square block.
std::optional<TensorView> FamilyBinder::Float32Scaled(const TensorView& weight,
                                                      const std::string& base) {
  const TensorView* scale = checkpoint_.file().Find(base + ".weight_scale_inv");
  const int64_t block = BlockOf(weight, *scale);
  if (block == 0) {
    Problem(Format("{} is {}, which is no grid of square blocks over {} {}", scale->name,
                   ShapeText(scale->shape), weight.name, ShapeText(weight.shape)));
    return std::nullopt;
  }
  scale = census_.Take(base + ".weight_scale_inv", scale->shape, kFloat32);
  failed_ = failed_ || scale == nullptr;
  if (!binding()) return std::nullopt;
  Result<std::vector<float>> values = DequantizeTensor(*scale);
  if (!values.ok()) {
    status_ = values.status();
    return std::nullopt;
  }
  if (std::optional<TensorView> view = PowersOfTwo(weight, *scale, *values)) return view;
  const int64_t rows = weight.shape[0];
  const int64_t cols = weight.shape[1];
  const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
  auto* to = reinterpret_cast<float*>(Derive(bytes));
  for (int64_t r = 0; r < rows; ++r) {
    const float* scales = values->data() + r / block * scale->shape[1];
    for (int64_t c = 0; c < cols; ++c) {
      const auto code = static_cast<uint8_t>(weight.data[r * cols + c]);
      to[r * cols + c] = E4M3ToFloat(code) * scales[c / block];
    }
  }
  TensorView view{weight.name, DType::kF32, weight.shape};
  view.data = reinterpret_cast<const std::byte*>(to);
  view.bytes = bytes;
  return view;
}

std::optional<TensorView> FamilyBinder::View(const std::string& base, int64_t rows, int64_t cols) {
  const std::string name = base + ".weight";
  const TensorView* stored = checkpoint_.file().Find(name);
  const bool pairs =
      stored != nullptr && (stored->dtype == DType::kI8 || stored->dtype == DType::kU8);
  const bool codes = stored != nullptr && stored->dtype == DType::kF8_E4M3;
  if (!pairs && !codes) {
    const TensorView* view = census_.Take(name, {rows, cols}, kPlain);
    failed_ = failed_ || view == nullptr;
    if (!binding()) return std::nullopt;
    return *view;
  }
  const TensorView* weight = census_.Take(name, {rows, pairs ? cols / 2 : cols});
  failed_ = failed_ || weight == nullptr;
  if (weight == nullptr) return std::nullopt;
  if (codes && Has(base + ".weight_scale_inv")) return Float32Scaled(*weight, base);
  const TensorView* scale = checkpoint_.file().Find(base + ".scale");
  if (scale == nullptr) {
    Problem(Format("{}.scale is missing; {} has type {}", base, name, Info(weight->dtype).name));
    return std::nullopt;
  }
  scale = census_.Take(scale->name, scale->shape, kExponent);
  failed_ = failed_ || scale == nullptr;
  if (scale == nullptr) return std::nullopt;
  Result<TensorView> view = WithScale(*weight, *scale);
  if (!view.ok() || view->shape != std::vector<int64_t>{rows, cols}) {
    Problem(view.ok() ? Format("{} holds {}, expected {}", name, ShapeText(view->shape),
                               ShapeText({rows, cols}))
                      : view.status().message());
    return std::nullopt;
  }
  if (!binding()) return std::nullopt;
  return *std::move(view);
}

std::unique_ptr<Weight> FamilyBinder::Matrix(const std::string& base, int64_t rows, int64_t cols,
                                             WeightRole role) {
  const std::optional<TensorView> view = View(base, rows, cols);
  if (!view.has_value()) return nullptr;
  auto weight = Count(backend_->Bind(checkpoint_.file(), *view, role), view->bytes);
  derived_.clear();
  return weight;
}

std::unique_ptr<Weight> FamilyBinder::Experts(std::span<const std::string> bases, int64_t rows,
                                              int64_t cols) {
  std::vector<TensorView> views;
  for (const std::string& base : bases) {
    std::optional<TensorView> view = View(base, rows, cols);
    if (view.has_value()) views.push_back(*std::move(view));
  }
  if (!binding() || views.size() != bases.size()) return nullptr;
  size_t bytes = 0;
  for (const TensorView& view : views) bytes += view.bytes;
  auto weight = Count(backend_->BindExperts(checkpoint_.file(), views), bytes);
  derived_.clear();
  return weight;
}

std::unique_ptr<Weight> FamilyBinder::Keep(std::span<const TensorView> experts, Derived derived) {
  if (!binding()) return nullptr;
  size_t bytes = 0;
  for (const TensorView& view : experts) bytes += view.bytes;
  auto weight = Count(backend_->BindGroups(checkpoint_.file(), experts), bytes);
  if (derived == Derived::kDropped) derived_.clear();
  return weight;
}

std::unique_ptr<Weight> FamilyBinder::KeepRows(const TensorView& whole, int64_t count,
                                               int64_t rows) {
  std::vector<TensorView> parts;
  for (int64_t i = 0; i < count; ++i) {
    Result<TensorView> part = RowsOf(whole, i * rows, (i + 1) * rows);
    if (!part.ok()) {
      status_ = part.status();
      return nullptr;
    }
    parts.push_back(*std::move(part));
  }
  return Keep(parts);
}

}  // namespace deepinfer
