// What models keep between steps to compute in: buffers that grow to the largest step, and the
// inputs of linear stages, one for all stages of a width. Owned by a model; loading thread, then
// runner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace deepinfer {

// At least rows x cols elements; what the buffer held may be lost.
template <typename T>
void Grow(std::vector<T>* buffer, int64_t rows, int64_t cols) {
  const auto size = static_cast<size_t>(rows * cols);
  if (buffer->size() < size) *buffer = std::vector<T>(size);
}

// Rows of floats where the stages of the backend compute. The host may not look into them.
class StepRows {
 public:
  float* data() { return reinterpret_cast<float*>(buffer_.get()); }
  // At least rows x cols elements; what the buffer held may be lost.
  void Grow(Backend* backend, int64_t rows, int64_t cols);

 private:
  Backend::Buffer buffer_;
};

class ActivationSet {
 public:
  // Weights that read an input of their width; nullptr is passed over.
  void AddReaders(std::initializer_list<const Weight*> weights);
  // One input per width of the readers. Stages that share one must not be alive at once.
  void Create(Backend* backend);
  Activation* OfWidth(int64_t cols) const;  // nullptr: nobody reads one
  std::span<const Weight* const> ReadersOf(int64_t cols) const;
  // One more, for these readers alone.
  Activation* CreateOwn(Backend* backend, int64_t cols, std::span<const Weight* const> readers);

 private:
  std::map<int64_t, std::vector<const Weight*>> readers_;
  std::map<int64_t, Activation*> of_width_;
  std::vector<std::unique_ptr<Activation>> all_;
};

}  // namespace deepinfer
