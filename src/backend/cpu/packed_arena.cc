#include <sys/mman.h>

#include "backend/cpu/packed_linear.h"
#include "backend/cpu/packed_memory.h"

namespace deepinfer::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = size_t{4} << 10;

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

PackedArena::PackedArena() = default;
PackedArena::~PackedArena() = default;
size_t PackedArena::used_bytes() const { return used_bytes_; }

}  // namespace deepinfer::cpu
