#include "models/tensor_census.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "tensor/scaled_tensor.h"

namespace deepinfer {
namespace {

constexpr size_t kProblemsShown = 8;
constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += Format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

void TensorProblems::Add(std::string problem) {
  ++count_;
  if (shown_.size() < kProblemsShown) shown_.push_back(std::move(problem));
}

Status TensorProblems::ToStatus(const std::string& path) const {
  if (count_ == 0) return {};
  std::string text = Format("{}: the tensors do not fit the configuration: ", path);
  for (size_t i = 0; i < shown_.size(); ++i) text += (i == 0 ? "" : "; ") + shown_[i];
  if (count_ > shown_.size()) text += Format("; and {} more", count_ - shown_.size());
  return Invalid(std::move(text)).WithParam(path);
}

const TensorView* TensorCensus::Take(const std::string& name, const std::vector<int64_t>& shape,
                                     std::span<const DType> allowed) {
  if (!Has(name)) {
    problems_.Add(Format("{} {} is missing", name, ShapeText(shape)));
    return nullptr;
  }
  return TakeIfPresent(name, shape, allowed);
}

const TensorView* TensorCensus::TakeIfPresent(const std::string& name,
                                              const std::vector<int64_t>& shape,
                                              std::span<const DType> allowed) {
  const TensorView* view = file_.Find(name);
  if (view == nullptr) return nullptr;
  used_.insert(view->name);
  if (view->shape != shape) {
    problems_.Add(Format("{} is {}, expected {}", name, ShapeText(view->shape), ShapeText(shape)));
    return nullptr;
  }
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), view->dtype) == allowed.end()) {
    std::string types;
    for (const DType type : allowed)
      types += (types.empty() ? "" : " or ") + std::string(Info(type).name);
    problems_.Add(Format("{} has type {}, expected {}", name, Info(view->dtype).name, types));
    return nullptr;
  }
  return view;
}

TensorView TensorCensus::TakeMatrix(const std::string& base, int64_t rows, int64_t cols) {
  const std::string name = base + ".weight";
  const TensorView* scale = file_.Find(base + ".scale");
  if (scale == nullptr) {
    const TensorView* plain = Take(name, {rows, cols}, kFloatTypes);
    return plain == nullptr ? TensorView{.name = name} : *plain;
  }
  used_.insert(scale->name);
  const TensorView* codes = file_.Find(name);
  if (codes == nullptr) {
    problems_.Add(Format("{} {} is missing", name, ShapeText({rows, cols})));
    return {.name = name};
  }
  used_.insert(codes->name);
  Result<TensorView> view = WithScale(*codes, *scale);
  if (!view.ok()) {
    problems_.Add(view.status().message());
    return {.name = name};
  }
  if (view->shape != std::vector<int64_t>{rows, cols}) {
    problems_.Add(Format("{} stands for {}, expected {}", name, ShapeText(view->shape),
                         ShapeText({rows, cols})));
    return {.name = name};
  }
  return *std::move(view);
}

Status TensorCensus::Finish(const std::string& path, std::string_view architecture) {
  for (const TensorView& view : file_.tensors()) {
    if (used_.contains(view.name)) continue;
    const auto known = [&view](const std::string& prefix) { return view.name.starts_with(prefix); };
    if (std::any_of(ignored_.begin(), ignored_.end(), known)) continue;
    problems_.Add(Format("{} {} does not belong to architecture {}", view.name,
                         ShapeText(view.shape), architecture));
  }
  return problems_.ToStatus(path);
}

}  // namespace deepinfer
