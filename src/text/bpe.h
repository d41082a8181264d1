// Byte-pair merging: by rank (a merge list) or by score (SentencePiece), with byte fallback.
// Built once, then immutable; EncodeWord is safe on any thread with a scratch of its own.
// The vocabulary and the piece table must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/piece_table.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

// (left id, right id) -> rank and merged id, open addressing.
class MergeTable {
 public:
  struct Entry {
    uint64_t key = UINT64_MAX;
    uint32_t rank = UINT32_MAX;
    TokenId merged = -1;
  };
  void Reset(size_t count);
  // An equal pair is replaced.
  void Set(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  // rank is UINT32_MAX when the pair does not merge.
  const Entry& Find(TokenId left, TokenId right) const {
    const uint64_t key = KeyOf(left, right);
    size_t at = IndexOf(key);
    while (slots_[at].key != key && slots_[at].key != UINT64_MAX) at = (at + 1) & mask_;
    return slots_[at];
  }
  bool empty() const { return used_ == 0; }

 private:
  static uint64_t KeyOf(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  size_t IndexOf(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15U) >> shift_);
  }
  std::vector<Entry> slots_ = std::vector<Entry>(2);
  size_t mask_ = 1;
  int shift_ = 63;
  size_t used_ = 0;
};

// Work space of one encoding thread: the merge arrays of long words and a bounded cache of words.
class BpeScratch {
 public:
  // Call before encoding so many bytes: the cache grows with the text that was seen.
  void Prepare(size_t text_bytes);
  // Bytes held beyond the cache.
  size_t bytes() const;

 private:
  friend class Bpe;
  static constexpr size_t kCacheEntriesMin = 256;
  static constexpr size_t kCacheEntriesMax = 32768;
  static constexpr size_t kCachedTextMax = 22;
  static constexpr size_t kCachedIdsMax = 8;
  struct CacheEntry {
    uint64_t hash;
    uint8_t length;  // 0: free
    uint8_t count;
    std::array<char, kCachedTextMax> text;
    std::array<TokenId, kCachedIdsMax> ids;
  };
  struct Symbol {
    TokenId id;
    uint32_t previous;
    uint32_t next;
    uint32_t rank;  // of the pair that starts here; UINT32_MAX: does not merge, or is gone
    TokenId merged;
  };
  std::vector<CacheEntry> cache_;  // a power of two; at least the minimum once prepared
  size_t bytes_seen_ = 0;
  std::vector<TokenId> ids_;
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> heap_;  // rank << 32 | position
};

class Bpe {
 public:
  enum class Form { kText, kBytes };  // kBytes: each byte stands for its byte-level character

  static Result<std::unique_ptr<Bpe>> Build(const TokenizerSpec& spec, const PieceTable* table);

  // Appends the ids of one pre-tokenised piece, valid UTF-8.
  void EncodeWord(std::string_view word, Form form, BpeScratch* scratch,
                  std::vector<TokenId>* out) const;

 private:
  Status AddRankedMerges(const TokenizerSpec& spec);
  Status AddScoredMerges(const TokenizerSpec& spec);
  void FindWordBreak(const TokenizerSpec& spec);
  void EncodeUncached(std::string_view word, Form form, BpeScratch* scratch,
                      std::vector<TokenId>* out) const;
  void EncodeCached(std::string_view word, Form form, BpeScratch* scratch,
                    std::vector<TokenId>* out) const;
  void TextSymbols(std::string_view word, std::vector<TokenId>* ids) const;
  size_t MergeShort(TokenId* ids, size_t count) const;
  void MergeLong(BpeScratch* scratch, std::vector<TokenId>* out) const;
  void MergeAt(uint32_t at, std::vector<BpeScratch::Symbol>* symbols,
               std::vector<uint64_t>* heap) const;

  const PieceTable* table_ = nullptr;
  MergeTable merges_;
  std::array<TokenId, 256> byte_level_ids_{};  // id of the byte's byte-level character, or -1
  std::array<TokenId, 256> fallback_ids_{};    // id of <0xNN>, or -1
  bool drops_unknown_bytes_ = false;           // or there are none
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool fuse_unk_ = false;
  // No merge crosses from another character into this one, so words break before its runs.
  std::string word_break_;
  TokenId unk_id_ = -1;
};

}  // namespace deepinfer
