#include "engine/state_cache.h"

#include "base/check.h"

namespace deepinfer {

StateCache::StateCache(int32_t capacity) : entries_(static_cast<size_t>(capacity)) {
  for (int32_t i = capacity; i-- > 0;) free_.push_back(i);
}

void StateCache::Unlink(int32_t snapshot) {
  const Entry& entry = entries_[static_cast<size_t>(snapshot)];
  (entry.older < 0 ? oldest_ : entries_[static_cast<size_t>(entry.older)].newer) = entry.newer;
  (entry.newer < 0 ? newest_ : entries_[static_cast<size_t>(entry.newer)].older) = entry.older;
}

void StateCache::LinkNewest(int32_t snapshot) {
  Entry& entry = entries_[static_cast<size_t>(snapshot)];
  entry.older = newest_;
  entry.newer = -1;
  (newest_ < 0 ? oldest_ : entries_[static_cast<size_t>(newest_)].newer) = snapshot;
  newest_ = snapshot;
}

int32_t StateCache::Reserve() {
  int32_t snapshot = -1;
  if (!free_.empty()) {
    snapshot = free_.back();
    free_.pop_back();
  } else if (oldest_ >= 0) {
    snapshot = oldest_;
    Unlink(snapshot);
    by_key_.erase(entries_[static_cast<size_t>(snapshot)].key);
  } else {
    return -1;
  }
  entries_[static_cast<size_t>(snapshot)].use = Use::kReserved;
  ++num_reserved_;
  return snapshot;
}

void StateCache::Drop(int32_t snapshot) {
  Entry& entry = entries_[static_cast<size_t>(snapshot)];
  DI_CHECK(entry.use == Use::kReserved, "snapshot {} is not reserved", snapshot);
  entry.use = Use::kFree;
  --num_reserved_;
  free_.push_back(snapshot);
}

void StateCache::Keep(int32_t snapshot, uint64_t key) {
  if (!by_key_.try_emplace(key, snapshot).second) {
    Drop(snapshot);
    return;
  }
  Entry& entry = entries_[static_cast<size_t>(snapshot)];
  DI_CHECK(entry.use == Use::kReserved, "snapshot {} is not reserved", snapshot);
  entry.use = Use::kKept;
  entry.key = key;
  --num_reserved_;
  LinkNewest(snapshot);
}

int32_t StateCache::Find(uint64_t key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return -1;
  Unlink(it->second);
  LinkNewest(it->second);
  return it->second;
}

bool StateCache::Consistent() const {
  size_t kept = 0;
  int32_t reserved = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    reserved += entry.use == Use::kReserved ? 1 : 0;
    if (entry.use != Use::kKept) continue;
    ++kept;
    const auto it = by_key_.find(entry.key);
    if (it == by_key_.end() || it->second != static_cast<int32_t>(i)) return false;
  }
  size_t linked = 0;
  for (int32_t i = oldest_; i >= 0; i = entries_[static_cast<size_t>(i)].newer) ++linked;
  return kept == by_key_.size() && linked == kept && reserved == num_reserved_ &&
         kept + static_cast<size_t>(reserved) + free_.size() == entries_.size();
}

}  // namespace deepinfer
