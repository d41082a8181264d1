// Masks by automaton state, shared by every request of one tokenizer: least recently used ones go
// when the limit of bytes is reached. Safe on any thread; entries stay valid while held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/hash.h"

namespace deepinfer {

class MaskCache {
 public:
  using Mask = std::shared_ptr<const std::vector<uint64_t>>;  // shared with who is reading it

  explicit MaskCache(size_t bytes_max) : bytes_max_(bytes_max) {}

  Mask Find(const Hash128& key);  // null when absent
  void Insert(const Hash128& key, Mask mask);

  struct Stats {
    int64_t hits = 0;
    int64_t misses = 0;
    size_t bytes = 0;
  };
  Stats stats() const;

 private:
  struct KeyHash {
    size_t operator()(const Hash128& key) const { return key.low; }
  };
  struct Entry {
    Hash128 key;
    Mask mask;
  };

  const size_t bytes_max_;
  mutable std::mutex mutex_;
  std::list<Entry> recent_;  // most recent first
  std::unordered_map<Hash128, std::list<Entry>::iterator, KeyHash> entries_;
  Stats stats_;
};

}  // namespace deepinfer
