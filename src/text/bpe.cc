#include "text/bpe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/format.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
constexpr uint32_t kNowhere = UINT32_MAX;
constexpr size_t kShortWordMax = 64;          // above it the heap beats the scan for the least rank
constexpr size_t kScoredPieceBytesMax = 256;  // longer pieces are not reached by merging
constexpr size_t kWordBytesMax = size_t{1} << 28;  // positions of merges are 32 bits wide
constexpr std::string_view kMetaspace = "\xE2\x96\x81";

uint64_t Load(const char* p, size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, p, bytes);
  return value;
}

// Of 1 to 22 bytes.
uint64_t WordHash(std::string_view word) {
  const char* p = word.data();
  const size_t n = word.size();
  uint64_t a = n;
  uint64_t b = 0;
  if (n >= 8) {
    a += Load(p, 8);
    b = Load(p + n - 8, 8);
    if (n > 16) b ^= Load(p + 8, 8) * 0xD6E8FEB86659FD93U;
  } else if (n >= 4) {
    a += Load(p, 4) << 8;
    b = Load(p + n - 4, 4);
  } else {
    a += (Load(p, 1) << 8) | (Load(p + n / 2, 1) << 16) | (Load(p + n - 1, 1) << 24);
  }
  uint64_t h = (a ^ (b * 0x9E3779B97F4A7C15U)) * 0xC2B2AE3D27D4EB4FU;
  h ^= h >> 29;
  h *= 0x165667B19E3779F9U;
  return h ^ (h >> 32);
}

bool MayBeMerged(const std::string& piece, bool byte_fallback) {
  if (piece.empty() || piece.size() > kScoredPieceBytesMax) return false;
  if (byte_fallback && FallbackByte(piece) >= 0) return false;
  return ValidUtf8Prefix(piece) == piece.size();
}

}  // namespace

void MergeTable::Reset(size_t count) {
  size_t slots = 2;
  shift_ = 63;
  while (slots * 2 < count * 3) {
    slots *= 2;
    --shift_;
  }
  slots_.assign(slots, Entry{});
  mask_ = slots - 1;
  used_ = 0;
}

void MergeTable::Set(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
  const uint64_t key = KeyOf(left, right);
  size_t at = IndexOf(key);
  while (slots_[at].key != key && slots_[at].key != UINT64_MAX) at = (at + 1) & mask_;
  if (slots_[at].key != key) ++used_;
  slots_[at] = {key, rank, merged};
}

void BpeScratch::Prepare(size_t text_bytes) {
  constexpr size_t kBytesPerEntry = 16;
  bytes_seen_ = std::min(bytes_seen_ + text_bytes, kCacheEntriesMax * kBytesPerEntry);
  size_t entries = std::max(cache_.size(), kCacheEntriesMin);
  while (entries * kBytesPerEntry < bytes_seen_) entries *= 2;
  if (entries != cache_.size()) std::vector<CacheEntry>(entries).swap(cache_);
}

size_t BpeScratch::bytes() const {
  return ids_.capacity() * sizeof(TokenId) + symbols_.capacity() * sizeof(Symbol) +
         heap_.capacity() * sizeof(uint64_t);
}

Result<std::unique_ptr<Bpe>> Bpe::Build(const TokenizerSpec& spec, const PieceTable* table) {
  auto bpe = std::make_unique<Bpe>();
  bpe->table_ = table;
  bpe->byte_fallback_ = spec.byte_fallback;
  bpe->ignore_merges_ = spec.ignore_merges;
  bpe->fuse_unk_ = spec.fuse_unk;
  bpe->unk_id_ = spec.unk_id;
  bool complete = true;
  std::string piece;
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<size_t>(byte);
    piece.clear();
    AppendCodePoint(ByteLevelChar(static_cast<uint8_t>(byte)), &piece);
    bpe->byte_level_ids_[index] = table->Find(piece);
    complete = complete && bpe->byte_level_ids_[index] >= 0;
    bpe->fallback_ids_[index] = table->Find(FallbackPiece(static_cast<uint8_t>(byte)));
  }
  bpe->drops_unknown_bytes_ = complete || (!spec.byte_fallback && spec.unk_id < 0);
  if (!spec.merges.empty()) {
    DI_TRY(bpe->AddRankedMerges(spec));
  } else if (!spec.scores.empty()) {
    DI_TRY(bpe->AddScoredMerges(spec));
  }
  bpe->FindWordBreak(spec);
  return bpe;
}

Status Bpe::AddRankedMerges(const TokenizerSpec& spec) {
  merges_.Reset(spec.merges.size());
  // Trained vocabularies list merged pieces in the order of the merges: try the next id first.
  size_t guess = 0;
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const TokenId left_id = table_->Find(left);
    const TokenId right_id = table_->Find(right);
    if (left_id < 0 || right_id < 0) {
      return Invalid(Format("merge {} joins {:?}, which is not in the vocabulary", rank,
                            left_id < 0 ? left : right));
    }
    TokenId merged = -1;
    if (guess < spec.vocab.size()) {
      const std::string& piece = spec.vocab[guess];
      if (piece.size() == left.size() + right.size() && piece.starts_with(left) &&
          piece.ends_with(right)) {
        merged = static_cast<TokenId>(guess);
      }
    }
    if (merged < 0) {
      joined.assign(left).append(right);
      merged = table_->Find(joined);
      if (merged < 0) {
        return Invalid(Format("merge {} makes {:?}, which is not in the vocabulary", rank, joined));
      }
    }
    guess = static_cast<size_t>(merged) + 1;
    merges_.Set(left_id, right_id, static_cast<uint32_t>(rank), merged);
  }
  return {};
}

// A piece is reached from each way to cut it into two pieces; pieces of a higher score come first,
// and of equal score the leftmost.
Status Bpe::AddScoredMerges(const TokenizerSpec& spec) {
  std::vector<float> order = spec.scores;
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<bool> usable(spec.vocab.size());
  size_t cuts = 0;
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    usable[id] = MayBeMerged(spec.vocab[id], spec.byte_fallback);
    if (usable[id]) cuts += spec.vocab[id].size();
  }
  for (const AddedToken& added : spec.added) {
    if (added.special && added.id >= 0 && static_cast<size_t>(added.id) < usable.size()) {
      usable[static_cast<size_t>(added.id)] = false;
    }
  }
  const auto find = [&](std::string_view text) {
    const TokenId id = table_->Find(text);
    return id >= 0 && usable[static_cast<size_t>(id)] ? id : -1;
  };
  struct Cut {
    TokenId left, right, merged;
    uint32_t rank;
  };
  std::vector<Cut> found;
  found.reserve(cuts / 2);
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    const std::string_view piece = spec.vocab[id];
    if (!usable[id] || find(piece) != static_cast<TokenId>(id)) continue;
    const auto rank = static_cast<uint32_t>(
        std::lower_bound(order.begin(), order.end(), spec.scores[id], std::greater<>()) -
        order.begin());
    for (size_t cut = static_cast<size_t>(Utf8Length(piece[0])); cut < piece.size();
         cut += static_cast<size_t>(Utf8Length(piece[cut]))) {
      const TokenId left = find(piece.substr(0, cut));
      const TokenId right = left < 0 ? -1 : find(piece.substr(cut));
      if (right >= 0) found.push_back({left, right, static_cast<TokenId>(id), rank});
    }
  }
  merges_.Reset(found.size());
  for (const Cut& cut : found) merges_.Set(cut.left, cut.right, cut.rank, cut.merged);
  return {};
}

void Bpe::FindWordBreak(const TokenizerSpec& spec) {
  if (table_->Find(kMetaspace) < 0) return;
  for (const std::string& piece : spec.vocab) {
    bool other = false;
    for (size_t pos = 0; pos < piece.size();) {
      if (std::string_view(piece).substr(pos).starts_with(kMetaspace)) {
        if (other) return;
        pos += kMetaspace.size();
      } else {
        other = true;
        ++pos;
      }
    }
  }
  word_break_ = kMetaspace;
}

void Bpe::EncodeWord(std::string_view word, Form form, BpeScratch* scratch,
                     std::vector<TokenId>* out) const {
  while (word.size() > kWordBytesMax) {
    size_t cut = kWordBytesMax;
    while ((static_cast<uint8_t>(word[cut]) & 0xC0U) == 0x80) --cut;
    EncodeWord(word.substr(0, cut), form, scratch, out);
    word.remove_prefix(cut);
  }
  if (form == Form::kBytes || word_break_.empty() || ignore_merges_) {
    EncodeCached(word, form, scratch, out);
    return;
  }
  size_t begin = 0;
  size_t from = 0;  // past the run of breaks that opens the word
  while (begin < word.size()) {
    while (word.substr(from).starts_with(word_break_)) from += word_break_.size();
    const size_t end = std::min(word.find(word_break_, from), word.size());
    EncodeCached(word.substr(begin, end - begin), form, scratch, out);
    begin = end;
    from = end;
  }
}

void Bpe::EncodeCached(std::string_view word, Form form, BpeScratch* scratch,
                       std::vector<TokenId>* out) const {
  if (word.empty()) return;
  if (word.size() > BpeScratch::kCachedTextMax) {
    EncodeUncached(word, form, scratch, out);
    return;
  }
  const uint64_t hash = WordHash(word);
  BpeScratch::CacheEntry& entry = scratch->cache_[hash & (scratch->cache_.size() - 1)];
  if (entry.hash == hash && entry.length == word.size() &&
      std::memcmp(entry.text.data(), word.data(), word.size()) == 0) {
    out->insert(out->end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const size_t before = out->size();
  EncodeUncached(word, form, scratch, out);
  const size_t count = out->size() - before;
  if (count > BpeScratch::kCachedIdsMax) return;
  entry.hash = hash;
  entry.length = static_cast<uint8_t>(word.size());
  entry.count = static_cast<uint8_t>(count);
  std::memcpy(entry.text.data(), word.data(), word.size());
  std::copy(out->begin() + static_cast<ptrdiff_t>(before), out->end(), entry.ids.begin());
}

void Bpe::EncodeUncached(std::string_view word, Form form, BpeScratch* scratch,
                         std::vector<TokenId>* out) const {
  std::vector<TokenId>& ids = scratch->ids_;
  ids.clear();
  std::string level;
  if (form == Form::kBytes && (ignore_merges_ || !drops_unknown_bytes_)) {
    AppendByteLevel(word, &level);
    word = level;
    form = Form::kText;
  }
  if (ignore_merges_) {
    if (const TokenId id = table_->Find(word); id >= 0) {
      out->push_back(id);
      return;
    }
  }
  if (form == Form::kBytes) {
    for (const char c : word) {
      if (const TokenId id = byte_level_ids_[static_cast<uint8_t>(c)]; id >= 0) ids.push_back(id);
    }
  } else {
    TextSymbols(word, &ids);
  }
  if (ids.size() <= kShortWordMax) {
    const size_t count = MergeShort(ids.data(), ids.size());
    out->insert(out->end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
  } else {
    MergeLong(scratch, out);
  }
}

// A pending unknown is written when a known character or the end of the word follows, as in the
// package that is matched: byte fallbacks pass it.
void Bpe::TextSymbols(std::string_view word, std::vector<TokenId>* ids) const {
  bool unk_pending = false;
  for (size_t pos = 0; pos < word.size();) {
    const std::string_view character = word.substr(pos, static_cast<size_t>(Utf8Length(word[pos])));
    pos += character.size();
    if (const TokenId id = table_->Find(character); id >= 0) {
      if (unk_pending) ids->push_back(unk_id_);
      unk_pending = false;
      ids->push_back(id);
      continue;
    }
    const auto fallback = [this](char c) { return fallback_ids_[static_cast<uint8_t>(c)]; };
    if (byte_fallback_ &&
        std::all_of(character.begin(), character.end(), [&](char c) { return fallback(c) >= 0; })) {
      for (const char c : character) ids->push_back(fallback(c));
      continue;
    }
    if (unk_id_ < 0) continue;
    if (unk_pending && !fuse_unk_) ids->push_back(unk_id_);
    unk_pending = true;
  }
  if (unk_pending) ids->push_back(unk_id_);
}

// Merges in place; returns the new count. At most kShortWordMax symbols.
size_t Bpe::MergeShort(TokenId* ids, size_t count) const {
  if (count < 2) return count;
  std::array<uint32_t, kShortWordMax> ranks;
  std::array<TokenId, kShortWordMax> merged;
  const auto look_up = [&](size_t i) {
    const MergeTable::Entry& entry = merges_.Find(ids[i], ids[i + 1]);
    ranks[i] = entry.rank;
    merged[i] = entry.merged;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    ids[best] = merged[best];
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  return count;
}

void Bpe::MergeLong(BpeScratch* scratch, std::vector<TokenId>* out) const {
  const std::vector<TokenId>& ids = scratch->ids_;
  std::vector<BpeScratch::Symbol>& symbols = scratch->symbols_;
  std::vector<uint64_t>& heap = scratch->heap_;
  const auto count = static_cast<uint32_t>(ids.size());
  symbols.resize(count);
  heap.clear();
  for (uint32_t i = 0; i < count; ++i) {
    BpeScratch::Symbol& symbol = symbols[i];
    symbol = {ids[i], i == 0 ? kNowhere : i - 1, i + 1 == count ? kNowhere : i + 1, kNoRank, -1};
    if (i + 1 == count) continue;
    const MergeTable::Entry& entry = merges_.Find(ids[i], ids[i + 1]);
    symbol.rank = entry.rank;
    symbol.merged = entry.merged;
    if (entry.rank != kNoRank) heap.push_back((static_cast<uint64_t>(entry.rank) << 32) | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top);
    // An entry is stale when the pair that starts here has changed since it was pushed.
    if (symbols[at].rank == static_cast<uint32_t>(top >> 32)) MergeAt(at, &symbols, &heap);
  }
  for (uint32_t at = 0; at != kNowhere; at = symbols[at].next) out->push_back(symbols[at].id);
}

void Bpe::MergeAt(uint32_t at, std::vector<BpeScratch::Symbol>* symbols,
                  std::vector<uint64_t>* heap) const {
  BpeScratch::Symbol& left = (*symbols)[at];
  BpeScratch::Symbol& right = (*symbols)[left.next];
  left.id = left.merged;
  left.next = right.next;
  right.rank = kNoRank;
  if (left.next != kNowhere) (*symbols)[left.next].previous = at;
  const auto look_up = [&](uint32_t index) {
    BpeScratch::Symbol& symbol = (*symbols)[index];
    symbol.rank = kNoRank;
    if (symbol.next == kNowhere) return;
    const MergeTable::Entry& entry = merges_.Find(symbol.id, (*symbols)[symbol.next].id);
    symbol.rank = entry.rank;
    symbol.merged = entry.merged;
    if (entry.rank == kNoRank) return;
    heap->push_back((static_cast<uint64_t>(entry.rank) << 32) | index);
    std::push_heap(heap->begin(), heap->end(), std::greater<>());
  };
  look_up(at);
  if (left.previous != kNowhere) look_up(left.previous);
}

}  // namespace deepinfer
