// Experts packed when they are first chosen, under a limit of bytes: what was used least lately
// makes room, and is packed again from its file when it is chosen again, to the same bits.
// Shared by the backend and the weights it bound; used on the runner thread alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/packed_linear.h"
#include "base/compute_pool.h"
#include "tensor/tensor_file.h"

namespace deepinfer::cpu {

class WeightCache {
 public:
  // What one product needs at the same time; pair may be nullptr.
  struct Need {
    const PackedMatrix* matrix = nullptr;
    const PackedMatrix* pair = nullptr;
  };
  struct Stats {
    uint64_t loads = 0;      // matrices packed
    uint64_t evictions = 0;  // matrices that made room
    size_t bytes = 0;        // packed now
  };

  explicit WeightCache(size_t limit_bytes) : limit_(limit_bytes) {}

  // Takes care of `matrix` (made by PackedMatrix::Plan for `view`) until Remove. The file must
  // outlive it.
  void Add(PackedMatrix* matrix, const TensorFile* file, const TensorView& view);
  void Remove(PackedMatrix* matrix);

  // Makes the matrices of the first n >= 1 needs ready for products until the next call; returns n.
  // Matrices that the cache does not know are ready always. One whose file is damaged gives NaN,
  // which fails the sequences that chose it; the log names the tensor, once.
  size_t Prepare(std::span<const Need> needs, ComputePool* pool);

  size_t limit() const { return limit_; }
  const Stats& stats() const { return stats_; }

 private:
  struct Entry {
    PackedMatrix* matrix = nullptr;  // nullptr: free
    const TensorFile* file = nullptr;
    TensorView view;
    uint64_t used = 0;   // number of the Prepare that last needed it
    int32_t older = -1;  // of loaded entries, by last use
    int32_t newer = -1;
    bool reported = false;  // its damage
  };

  void Unlink(int32_t index);
  void PutNewest(int32_t index);
  // The bytes of `matrix` that this round does not hold yet; holds them when `take`.
  size_t Wanted(const PackedMatrix* matrix) const;
  void Hold(const PackedMatrix* matrix);
  void Load(int32_t index, ComputePool* pool);

  size_t limit_;
  uint64_t round_ = 0;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::vector<int32_t> missing_;
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  Stats stats_;
};

}  // namespace deepinfer::cpu
