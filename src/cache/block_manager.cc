#include "cache/block_manager.h"

#include <bit>

#include "base/check.h"
#include "cache/prefix_index.h"

namespace deepinfer {

BlockManager::BlockManager(int32_t num_blocks, PrefixIndex* index)
    : num_blocks_(num_blocks), index_(index), entries_(static_cast<size_t>(num_blocks)) {
  DI_CHECK(num_blocks > 0, "{} blocks", num_blocks);
  auto bits = static_cast<size_t>(num_blocks);
  do {
    const size_t words = (bits + 63) / 64;
    std::vector<uint64_t> level(words, ~uint64_t{0});
    if (bits % 64 != 0) level.back() = (uint64_t{1} << (bits % 64)) - 1;
    free_bits_.push_back(std::move(level));
    bits = words;
  } while (bits > 1);
  num_free_ = num_blocks;
}

size_t BlockManager::Check(int32_t block) const {
  DI_CHECK(block >= 0 && block < num_blocks_, "block {} of {}", block, num_blocks_);
  return static_cast<size_t>(block);
}

int32_t BlockManager::TakeLowestFree() {
  size_t at = 0;
  for (size_t level = free_bits_.size(); level-- > 0;) {
    at = at * 64 + static_cast<size_t>(std::countr_zero(free_bits_[level][at]));
  }
  const auto block = static_cast<int32_t>(at);
  for (std::vector<uint64_t>& level : free_bits_) {
    uint64_t& word = level[at / 64];
    word &= ~(uint64_t{1} << (at % 64));
    if (word != 0) break;
    at /= 64;
  }
  --num_free_;
  return block;
}

void BlockManager::PutFree(int32_t block) {
  auto at = static_cast<size_t>(block);
  for (std::vector<uint64_t>& level : free_bits_) {
    uint64_t& word = level[at / 64];
    const bool was_empty = word == 0;
    word |= uint64_t{1} << (at % 64);
    if (!was_empty) break;
    at /= 64;
  }
  ++num_free_;
}

void BlockManager::Unlink(int32_t block) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  (entry.lru_prev < 0 ? lru_oldest_ : entries_[static_cast<size_t>(entry.lru_prev)].lru_next) =
      entry.lru_next;
  (entry.lru_next < 0 ? lru_newest_ : entries_[static_cast<size_t>(entry.lru_next)].lru_prev) =
      entry.lru_prev;
  entry.lru_prev = entry.lru_next = -1;
  entry.idle = false;
  --num_idle_;
}

void BlockManager::EvictOldest() {
  const int32_t block = lru_oldest_;
  Unlink(block);
  entries_[static_cast<size_t>(block)].cached = false;
  index_->Erase(block);
  PutFree(block);
}

int32_t BlockManager::Allocate() {
  if (num_free_ == 0) {
    if (num_idle_ == 0) return -1;
    EvictOldest();
  }
  const int32_t block = TakeLowestFree();
  entries_[static_cast<size_t>(block)].references = 1;
  return block;
}

void BlockManager::Retain(int32_t block) {
  Entry& entry = entries_[Check(block)];
  DI_CHECK(entry.references > 0 || entry.idle, "block {} is free", block);
  if (entry.idle) Unlink(block);
  ++entry.references;
}

void BlockManager::Release(int32_t block) {
  Entry& entry = entries_[Check(block)];
  DI_CHECK(entry.references > 0, "block {} has no reference", block);
  if (--entry.references > 0) return;
  if (!entry.cached) {
    PutFree(block);
    return;
  }
  entry.idle = true;
  entry.lru_prev = lru_newest_;
  (lru_newest_ < 0 ? lru_oldest_ : entries_[static_cast<size_t>(lru_newest_)].lru_next) = block;
  lru_newest_ = block;
  ++num_idle_;
}

void BlockManager::MarkCached(int32_t block) {
  Entry& entry = entries_[Check(block)];
  DI_CHECK(entry.references > 0 && index_ != nullptr, "block {} is not used", block);
  entry.cached = true;
}

void BlockManager::Forget(int32_t block) {
  Entry& entry = entries_[Check(block)];
  DI_CHECK(entry.references > 0, "block {} is not used", block);
  if (!entry.cached) return;
  entry.cached = false;
  index_->Erase(block);
}

void BlockManager::DropIdle() {
  while (num_idle_ > 0) EvictOldest();
}

bool BlockManager::Consistent() const {
  int32_t free = 0;
  int32_t idle = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const bool is_free = (free_bits_[0][i / 64] >> (i % 64) & 1) != 0;
    free += is_free ? 1 : 0;
    idle += entry.idle ? 1 : 0;
    if (is_free && (entry.references != 0 || entry.cached || entry.idle)) return false;
    if (!is_free && entry.references == 0 && !entry.idle) return false;
    if (entry.idle && (entry.references != 0 || !entry.cached)) return false;
  }
  int32_t linked = 0;
  for (int32_t at = lru_oldest_; at >= 0; at = entries_[static_cast<size_t>(at)].lru_next) ++linked;
  return free == num_free_ && idle == num_idle_ && linked == num_idle_;
}

}  // namespace deepinfer
