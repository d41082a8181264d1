// Vocabulary text to id: one flat open-addressing table over strings that it does not own.
// Filled once, then immutable; Find is safe on any thread. The strings must outlive it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "deepinfer/request.h"

namespace deepinfer {

class PieceTable {
 public:
  // Index in `pieces` is the id; holds nothing yet, and room for `count` entries.
  void Reset(std::span<const std::string> pieces, size_t count) {
    pieces_ = pieces;
    size_t slots = 16;
    while (slots * 3 < count * 4) slots *= 2;
    slots_.assign(slots, Slot{});
  }
  // The strings have moved; ids in the table still name the same text.
  void Rebase(std::span<const std::string> pieces) { pieces_ = pieces; }

  // Empty strings are holes. Of equal strings the first id stays.
  void Insert(TokenId id) {
    const std::string& piece = pieces_[static_cast<size_t>(id)];
    if (piece.empty()) return;
    const uint64_t hash = HashText(piece);
    Slot& slot = slots_[Probe(hash, piece)];
    if (slot.id < 0) slot = {static_cast<uint32_t>(hash >> 32), id};
  }

  // -1 when absent.
  TokenId Find(std::string_view piece) const {
    return slots_.empty() ? -1 : slots_[Probe(HashText(piece), piece)].id;
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    TokenId id = -1;
  };

  // The slot of `piece`, or the free slot where it belongs.
  size_t Probe(uint64_t hash, std::string_view piece) const {
    const auto tag = static_cast<uint32_t>(hash >> 32);
    size_t at = static_cast<size_t>(hash) & (slots_.size() - 1);
    while (slots_[at].id >= 0) {
      if (slots_[at].tag == tag && pieces_[static_cast<size_t>(slots_[at].id)] == piece) break;
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  std::span<const std::string> pieces_;
  std::vector<Slot> slots_;
};

}  // namespace deepinfer
