#include "models/step_memory.h"

#include <utility>

#include "base/check.h"

namespace deepinfer {

void StepRows::Grow(Backend* backend, int64_t rows, int64_t cols) {
  const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
  if (buffer_.get_deleter().bytes >= bytes) return;
  // Stages may still read the old rows.
  backend->Synchronize();
  buffer_.reset();
  Result<Backend::Buffer> grown = backend->Allocate(bytes);
  DI_CHECK(grown.ok(), "rows of a step: {}", grown.status().message());
  buffer_ = std::move(grown).value();
}

void ActivationSet::AddReaders(std::initializer_list<const Weight*> weights) {
  for (const Weight* weight : weights) {
    if (weight != nullptr) readers_[weight->cols].push_back(weight);
  }
}

void ActivationSet::Create(Backend* backend) {
  for (const auto& [cols, readers] : readers_) {
    of_width_[cols] = CreateOwn(backend, cols, readers);
  }
}

Activation* ActivationSet::OfWidth(int64_t cols) const {
  const auto found = of_width_.find(cols);
  return found == of_width_.end() ? nullptr : found->second;
}

std::span<const Weight* const> ActivationSet::ReadersOf(int64_t cols) const {
  const auto found = readers_.find(cols);
  if (found == readers_.end()) return {};
  return found->second;
}

Activation* ActivationSet::CreateOwn(Backend* backend, int64_t cols,
                                     std::span<const Weight* const> readers) {
  return all_.emplace_back(backend->CreateActivation(cols, readers)).get();
}

}  // namespace deepinfer
