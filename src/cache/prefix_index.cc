#include "cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <random>

#include "base/check.h"
#include "base/hash.h"

namespace deepinfer {
namespace {

uint64_t DrawSecret() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device() | 1;
}

}  // namespace

uint64_t ChainHash(uint64_t parent, std::span<const TokenId> tokens) {
  return HashBytes64(tokens.data(), tokens.size_bytes(), parent);
}

PrefixIndex::PrefixIndex(int32_t num_blocks, int block_tokens)
    : block_tokens_(block_tokens),
      secret_(DrawSecret()),
      entries_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_tokens)),
      table_(std::bit_ceil(static_cast<size_t>(num_blocks) * 2), -1) {}

PrefixNode PrefixIndex::AcquireRoot(std::string_view salt) {
  const auto [it, added] = root_of_salt_.try_emplace(std::string(salt), -1);
  if (added) {
    if (free_roots_.empty()) {
      it->second = static_cast<int32_t>(roots_.size());
      roots_.emplace_back();
    } else {
      it->second = free_roots_.back();
      free_roots_.pop_back();
    }
    roots_[static_cast<size_t>(it->second)] = {std::string(salt), next_serial_++, 0};
  }
  Root& root = roots_[static_cast<size_t>(it->second)];
  ++root.holders;
  return {root.serial, HashText(salt), it->second};
}

void PrefixIndex::ReleaseRoot(const PrefixNode& root) {
  DI_CHECK(root.root >= 0 && roots_[static_cast<size_t>(root.root)].serial == root.serial,
           "not a live root");
  DropHolder(root.root);
}

void PrefixIndex::DropHolder(int32_t index) {
  Root& root = roots_[static_cast<size_t>(index)];
  DI_CHECK(root.holders > 0, "root {} has no holder", index);
  if (--root.holders > 0) return;
  root_of_salt_.erase(root.salt);
  root = {};
  free_roots_.push_back(index);
}

size_t PrefixIndex::Bucket(uint64_t hash) const {
  uint64_t x = hash ^ secret_;
  x *= 0x9E3779B97F4A7C15;
  x ^= x >> 32;
  x *= secret_;
  return static_cast<size_t>(x >> 32 ^ x) & (table_.size() - 1);
}

size_t PrefixIndex::FindBucket(uint64_t hash) const {
  size_t at = Bucket(hash);
  while (table_[at] >= 0 && entries_[static_cast<size_t>(table_[at])].hash != hash) {
    at = (at + 1) & (table_.size() - 1);
  }
  return at;
}

bool PrefixIndex::Equals(int32_t block, const PrefixNode& parent,
                         std::span<const TokenId> tokens) const {
  const auto at = static_cast<size_t>(block);
  return entries_[at].parent == parent.serial &&
         std::equal(tokens.begin(), tokens.end(),
                    tokens_.begin() + static_cast<ptrdiff_t>(at * tokens.size()));
}

PrefixIndex::Match PrefixIndex::Find(const PrefixNode& parent,
                                     std::span<const TokenId> tokens) const {
  DI_CHECK(static_cast<int>(tokens.size()) == block_tokens_, "{} tokens", tokens.size());
  const uint64_t hash = ChainHash(parent.hash, tokens);
  const int32_t block = table_[FindBucket(hash)];
  if (block < 0 || !Equals(block, parent, tokens)) return {};
  return {block, {entries_[static_cast<size_t>(block)].serial, hash, -1}};
}

PrefixIndex::Match PrefixIndex::Insert(const PrefixNode& parent, std::span<const TokenId> tokens,
                                       int32_t block) {
  DI_CHECK(static_cast<int>(tokens.size()) == block_tokens_, "{} tokens", tokens.size());
  Entry& entry = entries_[static_cast<size_t>(block)];
  DI_CHECK(entry.serial == 0, "block {} has an entry", block);
  const uint64_t hash = ChainHash(parent.hash, tokens);
  const size_t bucket = FindBucket(hash);
  if (const int32_t other = table_[bucket]; other >= 0) {
    if (!Equals(other, parent, tokens)) return {};
    return {other, {entries_[static_cast<size_t>(other)].serial, hash, -1}};
  }
  table_[bucket] = block;
  entry = {next_serial_++, parent.serial, hash, parent.root};
  if (parent.root >= 0) ++roots_[static_cast<size_t>(parent.root)].holders;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(block) * tokens.size()));
  ++num_entries_;
  return {block, {entry.serial, hash, -1}};
}

PrefixNode PrefixIndex::NodeOf(int32_t block) const {
  const Entry& entry = entries_[static_cast<size_t>(block)];
  DI_CHECK(entry.serial != 0, "block {} has no entry", block);
  return {entry.serial, entry.hash, -1};
}

void PrefixIndex::Erase(int32_t block) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  DI_CHECK(entry.serial != 0, "block {} has no entry", block);
  size_t hole = FindBucket(entry.hash);
  DI_CHECK(table_[hole] == block, "block {} is not in the table", block);
  // Backward shift: an entry after the hole moves into it unless its home bucket lies between.
  const size_t mask = table_.size() - 1;
  for (size_t at = (hole + 1) & mask; table_[at] >= 0; at = (at + 1) & mask) {
    const size_t home = Bucket(entries_[static_cast<size_t>(table_[at])].hash);
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      table_[hole] = table_[at];
      hole = at;
    }
  }
  table_[hole] = -1;
  if (entry.root >= 0) DropHolder(entry.root);
  entry = {};
  --num_entries_;
}

}  // namespace deepinfer
