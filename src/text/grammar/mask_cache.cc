#include "text/grammar/mask_cache.h"

namespace deepinfer {

namespace {

constexpr size_t kEntryBytes = 160;  // list node, table node, vector header

size_t BytesOf(const std::vector<uint64_t>& mask) { return mask.size() * 8 + kEntryBytes; }

}  // namespace

MaskCache::Mask MaskCache::Find(const Hash128& key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->mask;
}

void MaskCache::Insert(const Hash128& key, Mask mask) {
  const size_t bytes = BytesOf(*mask);
  if (bytes > bytes_max_) return;
  const std::lock_guard lock(mutex_);
  if (entries_.contains(key)) return;
  while (stats_.bytes + bytes > bytes_max_) {
    stats_.bytes -= BytesOf(*recent_.back().mask);
    entries_.erase(recent_.back().key);
    recent_.pop_back();
  }
  recent_.push_front({key, std::move(mask)});
  entries_[key] = recent_.begin();
  stats_.bytes += bytes;
}

MaskCache::Stats MaskCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace deepinfer
