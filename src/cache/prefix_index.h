// Finds the block that already holds the KV rows of a prompt's next block_tokens tokens.
// A chain: every entry is keyed by (parent entry, tokens), the first by a root that stands for the
// extra key (tenant salt, later image and adapter). Hash values only find candidates: an entry is
// offered when its parent is the very entry asked for and its tokens are equal, so by induction
// the whole prefix is. Owned and used by the engine thread; every operation is O(block_tokens).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer {

// Content address of a block in its chain: the same in every engine that knows the same tokens.
uint64_t ChainHash(uint64_t parent, std::span<const TokenId> tokens);

// A point of a chain: a root or the end of a block.
struct PrefixNode {
  uint64_t serial = 0;  // identity of the entry in this index, never used again; 0: none
  uint64_t hash = 0;    // ChainHash up to here
  int32_t root = -1;    // >= 0: this is a root, and which
};

class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, int block_tokens);

  int block_tokens() const { return block_tokens_; }
  int32_t num_entries() const { return num_entries_; }

  // The root of chains under `salt`. It lives while held or while the index has blocks after it.
  PrefixNode AcquireRoot(std::string_view salt);
  void ReleaseRoot(const PrefixNode& root);
  int64_t num_roots() const { return static_cast<int64_t>(root_of_salt_.size()); }

  struct Match {
    int32_t block = -1;  // -1: nothing found
    PrefixNode node;
  };
  // The entry after `parent` for exactly these block_tokens tokens.
  Match Find(const PrefixNode& parent, std::span<const TokenId> tokens) const;
  // Adds `block` after `parent`. When an equal entry exists that one is returned and nothing
  // changes; block -1 when the entry cannot be kept (another entry has the same hash).
  Match Insert(const PrefixNode& parent, std::span<const TokenId> tokens, int32_t block);
  // The chain point at the end of `block`, which has an entry.
  PrefixNode NodeOf(int32_t block) const;
  // Removes the entry of `block`. Entries after it can no longer be reached.
  void Erase(int32_t block);

 private:
  struct Entry {
    uint64_t serial = 0;  // 0: the block has no entry
    uint64_t parent = 0;
    uint64_t hash = 0;
    int32_t root = -1;  // of a first block
  };
  struct Root {
    std::string salt;
    uint64_t serial = 0;
    int64_t holders = 0;  // acquired and not released, plus first blocks in the index
  };

  size_t Bucket(uint64_t hash) const;
  // The bucket that holds an entry of `hash`, or the empty bucket where it would go.
  size_t FindBucket(uint64_t hash) const;
  bool Equals(int32_t block, const PrefixNode& parent, std::span<const TokenId> tokens) const;
  void DropHolder(int32_t root);

  const int block_tokens_;
  const uint64_t secret_;        // spreads buckets, so that chosen tokens cannot pile up in one
  std::vector<Entry> entries_;   // by block
  std::vector<TokenId> tokens_;  // by block, block_tokens each
  std::vector<int32_t> table_;   // open addressing: block or -1; at most half full
  std::vector<Root> roots_;
  std::vector<int32_t> free_roots_;
  std::unordered_map<std::string, int32_t> root_of_salt_;
  uint64_t next_serial_ = 1;
  int32_t num_entries_ = 0;
};

}  // namespace deepinfer
