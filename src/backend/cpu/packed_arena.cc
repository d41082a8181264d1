#include <sys/mman.h>

#include <algorithm>

#include "backend/cpu/packed_linear.h"
#include "backend/cpu/packed_memory.h"

namespace deepinfer::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = size_t{4} << 10;
constexpr size_t kSlotPieceBytes = size_t{1} << 30;  // of address space

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

PackedArena::Piece::~Piece() {
  if (base != nullptr) munmap(base, mapped);
}

std::shared_ptr<PackedArena::Piece> MapPiece(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  // One huge page more than asked, so that the first one starts on its boundary.
  const size_t mapped = huge ? RoundUp(bytes, kHugePage) + kHugePage : RoundUp(bytes, kSmallPage);
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  auto piece = std::make_shared<PackedArena::Piece>();
  piece->base = base;
  piece->mapped = mapped;
  const auto address = reinterpret_cast<uintptr_t>(base);
  const size_t skip = huge ? RoundUp(address, kHugePage) - address : 0;
  if (huge) madvise(base, mapped, MADV_HUGEPAGE);  // a hint: small pages work as well
  piece->next = static_cast<uint8_t*>(base) + skip;
  piece->left = mapped - skip;
  return piece;
}

uint8_t* TakeBytes(PackedArena::Piece* piece, size_t bytes) {
  bytes = RoundUp(bytes, 64);
  if (piece->left < bytes) return nullptr;
  uint8_t* taken = piece->next;
  piece->next += bytes;
  piece->left -= bytes;
  return taken;
}

uint8_t* PackedSlots::Take(size_t bytes) {
  Free& free = free_[bytes];
  for (std::vector<uint8_t*>* slots : {&free.filled, &free.trimmed}) {
    if (slots->empty()) continue;
    uint8_t* slot = slots->back();
    slots->pop_back();
    if (slots == &free.filled) idle_bytes_ -= bytes;
    return slot;
  }
  uint8_t* slot = pieces_.empty() ? nullptr : TakeBytes(pieces_.back().get(), bytes);
  if (slot != nullptr) return slot;
  std::shared_ptr<PackedArena::Piece> piece = MapPiece(std::max(bytes, kSlotPieceBytes));
  if (piece == nullptr) return nullptr;
  pieces_.push_back(piece);
  return TakeBytes(piece.get(), bytes);
}

void PackedSlots::Release(uint8_t* slot, size_t bytes) {
  free_[bytes].filled.push_back(slot);
  idle_bytes_ += bytes;
}

void PackedSlots::Trim() {
  if (idle_bytes_ == 0) return;
  for (auto& [bytes, free] : free_) {
    for (uint8_t* slot : free.filled) {
      // Whole pages inside the slot: others hold parts of neighbours.
      const size_t begin = RoundUp(reinterpret_cast<uintptr_t>(slot), kSmallPage);
      const size_t end = (reinterpret_cast<uintptr_t>(slot) + bytes) / kSmallPage * kSmallPage;
      if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
    free.trimmed.insert(free.trimmed.end(), free.filled.begin(), free.filled.end());
    free.filled.clear();
  }
  idle_bytes_ = 0;
}

PackedArena::PackedArena() = default;
PackedArena::~PackedArena() = default;
size_t PackedArena::used_bytes() const { return used_bytes_; }

}  // namespace deepinfer::cpu
