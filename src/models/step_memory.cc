#include "models/step_memory.h"

namespace deepinfer {

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
