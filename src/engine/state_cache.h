// Accounts for snapshots of row state: at which points of the prefix index the state of a slot can
// be brought back. Knows ids, never bytes (the runner holds those). Engine thread; every operation
// is O(1). A snapshot is free, reserved (a step will save it), or kept under a key; kept ones give
// way least recently used first.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace deepinfer {

class StateCache {
 public:
  explicit StateCache(int32_t capacity);

  // A snapshot to save into; -1 when every one is reserved. Ends in Keep or Drop.
  int32_t Reserve();
  // The reserved snapshot was saved and stands for `key` from now on. A key that has one already
  // keeps that, and the new one is free.
  void Keep(int32_t snapshot, uint64_t key);
  void Drop(int32_t snapshot);
  // The snapshot of `key` or -1. Found ones were used just now.
  int32_t Find(uint64_t key);
  bool Contains(uint64_t key) const { return by_key_.contains(key); }

  int32_t num_kept() const { return static_cast<int32_t>(by_key_.size()); }
  int32_t num_reserved() const { return num_reserved_; }
  // Recounts everything; for tests.
  bool Consistent() const;

 private:
  enum class Use : uint8_t { kFree, kReserved, kKept };
  struct Entry {
    uint64_t key = 0;
    int32_t older = -1;
    int32_t newer = -1;
    Use use = Use::kFree;
  };

  void Unlink(int32_t snapshot);
  void LinkNewest(int32_t snapshot);

  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::unordered_map<uint64_t, int32_t> by_key_;
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  int32_t num_reserved_ = 0;
};

}  // namespace deepinfer
