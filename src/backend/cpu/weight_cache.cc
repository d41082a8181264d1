#include "backend/cpu/weight_cache.h"

#include "base/check.h"
#include "base/logging.h"

namespace deepinfer::cpu {

void WeightCache::Add(PackedMatrix* matrix, const TensorFile* file, const TensorView& view) {
  int32_t index = 0;
  if (free_.empty()) {
    index = static_cast<int32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Entry& entry = entries_[static_cast<size_t>(index)];
  entry = {};
  entry.matrix = matrix;
  entry.file = file;
  entry.view = view;
  matrix->cache_entry_ = index;
}

void WeightCache::Remove(PackedMatrix* matrix) {
  const int32_t index = matrix->cache_entry_;
  if (index < 0) return;
  if (matrix->loaded()) {
    Unlink(index);
    stats_.bytes -= matrix->bytes();
  }
  entries_[static_cast<size_t>(index)] = {};
  free_.push_back(index);
  matrix->cache_entry_ = -1;
}

void WeightCache::Unlink(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  (entry.older >= 0 ? entries_[static_cast<size_t>(entry.older)].newer : oldest_) = entry.newer;
  (entry.newer >= 0 ? entries_[static_cast<size_t>(entry.newer)].older : newest_) = entry.older;
  entry.older = entry.newer = -1;
}

void WeightCache::PutNewest(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  entry.older = newest_;
  entry.newer = -1;
  (newest_ >= 0 ? entries_[static_cast<size_t>(newest_)].newer : oldest_) = index;
  newest_ = index;
}

size_t WeightCache::Wanted(const PackedMatrix* matrix) const {
  if (matrix == nullptr || matrix->cache_entry_ < 0) return 0;
  const Entry& entry = entries_[static_cast<size_t>(matrix->cache_entry_)];
  return entry.used == round_ ? 0 : matrix->bytes();
}

void WeightCache::Hold(const PackedMatrix* matrix) {
  if (Wanted(matrix) == 0) return;
  const int32_t index = matrix->cache_entry_;
  Entry& entry = entries_[static_cast<size_t>(index)];
  entry.used = round_;
  if (!matrix->loaded()) {
    missing_.push_back(index);
    return;
  }
  Unlink(index);
  PutNewest(index);
}

// What this round holds is newer than everything else and fits, so the oldest may go.
void WeightCache::Load(int32_t index, ComputePool* pool) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  PackedMatrix* from = nullptr;
  while (stats_.bytes + entry.matrix->bytes() > limit_ && oldest_ >= 0) {
    Entry& victim = entries_[static_cast<size_t>(oldest_)];
    if (victim.used == round_) break;  // one product alone is over the limit
    Unlink(oldest_);
    stats_.bytes -= victim.matrix->bytes();
    ++stats_.evictions;
    if (from != nullptr) from->Unload();
    from = victim.matrix;
  }
  const Status status = entry.matrix->Load(entry.view, pool, from);
  entry.file->Drop(entry.view);
  ++stats_.loads;
  if (!status.ok() && !entry.reported) {
    entry.reported = true;
    LogError("{}; requests that need it fail", status.message());
  }
  if (!entry.matrix->loaded()) return;
  stats_.bytes += entry.matrix->bytes();
  PutNewest(index);
}

size_t WeightCache::Prepare(std::span<const Need> needs, ComputePool* pool) {
  DI_CHECK(!needs.empty(), "nothing to prepare");
  ++round_;
  missing_.clear();
  size_t held = 0;
  size_t count = 0;
  for (const Need& need : needs) {
    const size_t bytes = Wanted(need.matrix) + Wanted(need.pair);
    if (count > 0 && held + bytes > limit_) break;
    held += bytes;
    Hold(need.matrix);
    Hold(need.pair);
    ++count;
  }
  for (int32_t index : missing_) {
    const Entry& entry = entries_[static_cast<size_t>(index)];
    entry.file->Prefetch(entry.view);
  }
  for (int32_t index : missing_) Load(index, pool);
  return count;
}

}  // namespace deepinfer::cpu
