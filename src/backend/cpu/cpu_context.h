// What every CPU stage works with, and the handles behind Weight and Activation.
// Owned by CpuBackend; used on the runner thread, read by pool threads inside a stage.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/packed_linear.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/sparse_kernels.h"
#include "backend/cpu/weight_cache.h"
#include "base/compute_pool.h"

namespace deepinfer::cpu {

struct CpuContext {
  Isa isa = Isa::kScalar;
  bool float32 = false;
  const RowKernels* rows = nullptr;
  std::unique_ptr<ComputePool> pool;
  std::shared_ptr<WeightCache> weight_cache;  // shared with the weights in it; nullptr: none

  const SparseKernels& sparse() const;
};

class CpuWeight final : public Weight {
 public:
  ~CpuWeight() override {
    if (cache == nullptr) return;
    for (const std::unique_ptr<PackedMatrix>& matrix : matrices) cache->Remove(matrix.get());
  }

  // The matrix of an expert (0 for one that has no experts), and the expert's index inside it.
  const PackedMatrix& matrix(int64_t expert = 0) const {
    return *matrices[matrices.size() > 1 ? static_cast<size_t>(expert) : 0];
  }
  int64_t index(int64_t expert) const { return matrices.size() > 1 ? 0 : expert; }

  std::vector<std::unique_ptr<PackedMatrix>> matrices;  // one, or one per expert
  std::shared_ptr<WeightCache> cache;                   // shared with the backend: packs matrices
  std::vector<float> vector;                            // of kVector
};

class CpuActivation final : public Activation {
 public:
  CpuActivation(int64_t cols, uint32_t formats) : rows(cols, formats) {}
  ActRows rows;
};

inline const CpuWeight& Cpu(const Weight& weight) { return static_cast<const CpuWeight&>(weight); }
inline const CpuActivation& Cpu(const Activation& a) {
  return static_cast<const CpuActivation&>(a);
}
inline CpuActivation& Cpu(Activation& a) { return static_cast<CpuActivation&>(a); }

// A 64-byte aligned array of floats that only grows; contents are lost when it does.
class Floats {
 public:
  float* Reserve(int64_t count) {
    if (count > count_) {
      data_.reset(static_cast<float*>(
          ::operator new[](static_cast<size_t>(count) * sizeof(float), std::align_val_t{64})));
      count_ = count;
    }
    return data_.get();
  }
  float* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Free> data_;
  int64_t count_ = 0;
};

}  // namespace deepinfer::cpu
