// Accounts for the KV blocks of one engine: which are free, who holds how many references, which
// are kept for their prefix. Knows ids, never bytes. Every operation is O(1).
// Owned and used by the engine thread. A block is in one of three states:
//   free    nobody needs its content
//   used    at least one reference: sequence, step in flight, copy source
//   idle    no reference, but the prefix index can still offer it; evicted least recently used
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer {

class PrefixIndex;

class BlockManager {
 public:
  // `index` (may be nullptr: nothing is ever idle) must outlive this object; evicted blocks are
  // erased from it.
  BlockManager(int32_t num_blocks, PrefixIndex* index);

  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_free() const { return num_free_; }
  int32_t num_idle() const { return num_idle_; }
  int32_t num_used() const { return num_blocks_ - num_free_ - num_idle_; }
  // What Allocate can still hand out.
  int32_t num_available() const { return num_free_ + num_idle_; }

  // The free block of the lowest id, so that memory once touched is used again; when none is free
  // the block idle for longest. The caller holds one reference. -1 when every block is used.
  int32_t Allocate();
  // Adds a reference to a used or idle block.
  void Retain(int32_t block);
  // Drops a reference. The last one makes the block idle when the index knows it, else free.
  void Release(int32_t block);
  // The index now knows this used block.
  void MarkCached(int32_t block);
  // The content of a used block must never be offered again; its index entry is erased.
  void Forget(int32_t block);
  // Evicts every idle block.
  void DropIdle();

  int32_t references(int32_t block) const { return entries_[Check(block)].references; }
  bool cached(int32_t block) const { return entries_[Check(block)].cached; }
  // Recounts everything from scratch; false when the counters disagree. For tests, O(blocks).
  bool Consistent() const;

 private:
  struct Entry {
    int32_t references = 0;
    int32_t lru_prev = -1;
    int32_t lru_next = -1;
    bool cached = false;
    bool idle = false;
  };

  size_t Check(int32_t block) const;
  int32_t TakeLowestFree();
  void PutFree(int32_t block);
  void Unlink(int32_t block);
  void EvictOldest();

  const int32_t num_blocks_;
  PrefixIndex* const index_;
  std::vector<Entry> entries_;
  // Bit trees of free blocks: level 0 has one bit a block, a bit of level i + 1 says that the
  // 64-bit word of level i is not zero.
  std::vector<std::vector<uint64_t>> free_bits_;
  int32_t num_free_ = 0;
  int32_t num_idle_ = 0;
  int32_t lru_oldest_ = -1;
  int32_t lru_newest_ = -1;
};

}  // namespace deepinfer
