// Experts packed as they are used, under a limit of bytes. One that few rows choose only streams,
// the first two times: its products pack what they read and forget it, which is quicker than to
// keep it and costs no memory; the steps of a prompt choose many that are not chosen again. From
// the third time on it is packed to stay. What was used least lately makes room, and comes again
// from its file, always to the same bits. Shared by the backend and the weights it bound; used on
// the runner thread alone, but for stats.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/packed_linear.h"
#include "backend/cpu/packed_memory.h"
#include "base/compute_pool.h"
#include "tensor/tensor_file.h"

namespace deepinfer::cpu {

// What decides whether experts pass through a cache.
struct WeightCacheFacts {
  int64_t file_bytes = 0;       // of tensors that are packed: tables of rows left out
  int64_t available_bytes = 0;  // of memory; 0: unknown
  bool scaled = false;          // experts have scale tensors (FP8, packed FP4)
};
// The limit of the cache for what was asked (BackendOptions::weight_cache_bytes); 0: experts are
// packed when bound. Experts with scale tensors come by the hundred per layer, of which a token
// uses a few: packing gigabytes of them at load would only hold up the first answer. Others are
// packed at load for even speed, if all of them fit.
int64_t WeightCacheLimit(int64_t asked, const WeightCacheFacts& facts);

class WeightCache {
 public:
  // What one product needs at the same time; pair may be nullptr.
  struct Need {
    const PackedMatrix* matrix = nullptr;
    const PackedMatrix* pair = nullptr;
    int64_t rows = 1;  // of input
  };
  static constexpr int kStreamsMax = 2;  // of one matrix
  // Bytes that may stream between two calls of Prepare, for their pages are in memory meanwhile.
  static constexpr size_t kStreamBytes = size_t{128} << 20;
  // stream_bytes 0: matrices are packed from the first time on.
  explicit WeightCache(size_t limit_bytes, size_t stream_bytes = kStreamBytes)
      : limit_(limit_bytes), stream_limit_(stream_bytes) {}

  // Takes care of `matrix` (made by PackedMatrix::Plan for `view`) until Remove. The file must
  // outlive it.
  void Add(PackedMatrix* matrix, const TensorFile* file, const TensorView& view);
  void Remove(PackedMatrix* matrix);

  // Makes the matrices of the first n >= 1 needs ready for products until the next call; returns n.
  // Matrices that the cache does not know are ready always. One whose file is damaged gives NaN,
  // which fails the sequences that chose it; the log names the tensor, once.
  size_t Prepare(std::span<const Need> needs, ComputePool* pool);
  // After the products: what streamed lets its pages go. True when some of it was damaged, as
  // PackedMatrix::damaged tells until the next Prepare.
  bool Release(ComputePool* pool);

  size_t limit() const { return limit_; }
  WeightCacheStats stats() const;  // any thread

 private:
  struct Entry {
    PackedMatrix* matrix = nullptr;  // nullptr: free
    const TensorFile* file = nullptr;
    TensorView view;
    uint8_t* slot = nullptr;  // its memory while it is loaded
    uint64_t used = 0;        // number of the Prepare that last needed it
    int32_t older = -1;       // of loaded entries, by last use
    int32_t newer = -1;
    int streamed = 0;       // how often
    bool touched = false;   // was ever needed
    bool reported = false;  // its damage
  };

  // A run of panels of one missing matrix.
  struct Chunk {
    int32_t missing = 0;  // index into missing_
    int64_t begin = 0;
    int64_t end = 0;
  };
  using Counter = std::atomic<int64_t>;

  void Unlink(int32_t index);
  void PutNewest(int32_t index);
  // The bytes of `matrix` that this round does not hold yet, if it is to be packed or streamed.
  struct Bytes {
    size_t packed = 0;
    size_t streamed = 0;
  };
  bool MayStream(const Entry& entry, int64_t rows) const;
  Bytes Wanted(const Need& need) const;
  void AddWanted(const PackedMatrix* matrix, int64_t rows, Bytes* bytes) const;
  void Hold(const PackedMatrix* matrix, int64_t rows);
  void Evict(int32_t index);
  // False when the system has no memory for it.
  bool GiveSlot(int32_t index);
  void Load(ComputePool* pool);
  void Report(Entry* entry, const Status& status);

  const size_t limit_;
  const size_t stream_limit_;
  uint64_t round_ = 0;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::vector<int32_t> missing_;
  std::vector<int32_t> streaming_;
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  PackedSlots slots_;
  std::vector<Chunk> chunks_;
  std::vector<std::atomic<bool>> damaged_;  // of missing_

  // Written by the runner thread.
  Counter known_bytes_{0}, touched_bytes_{0}, bytes_{0}, streams_{0}, lookups_{0}, hits_{0},
      loads_{0}, evictions_{0}, load_us_{0};
};

}  // namespace deepinfer::cpu
