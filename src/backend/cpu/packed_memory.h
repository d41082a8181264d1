// Mappings behind packed matrices: anonymous memory on huge pages, handed out front to back.
// A piece is unmapped with its last owner (an arena, or a matrix inside); the slots of a cache of
// weights are handed out again and again until the cache is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/cpu/packed_linear.h"

namespace deepinfer::cpu {

struct PackedArena::Piece {
  Piece() = default;
  ~Piece();
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  void* base = nullptr;
  size_t mapped = 0;
  uint8_t* next = nullptr;  // 64-byte aligned
  size_t left = 0;
};

// nullptr when the system refuses the address space.
std::shared_ptr<PackedArena::Piece> MapPiece(size_t bytes);
// The next `bytes` of the piece, rounded up to cache lines; nullptr when too few are left.
uint8_t* TakeBytes(PackedArena::Piece* piece, size_t bytes);

// Bytes packed by one item of work.
constexpr int64_t kPackChunkBytes = int64_t{256} << 10;

// Memory for matrices that come and go. One thread.
class PackedSlots {
 public:
  // A slot of `bytes`, with whatever its last user left in it; nullptr when the system refuses.
  uint8_t* Take(size_t bytes);
  // The slot keeps its pages for the next Take of its size, until Trim.
  void Release(uint8_t* slot, size_t bytes);
  // Gives the pages of free slots back to the system.
  void Trim();
  size_t idle_bytes() const { return idle_bytes_; }  // of free slots that keep their pages

 private:
  struct Free {
    std::vector<uint8_t*> filled;   // with pages
    std::vector<uint8_t*> trimmed;  // without
  };
  std::map<size_t, Free> free_;  // by size
  std::vector<std::shared_ptr<PackedArena::Piece>> pieces_;
  size_t idle_bytes_ = 0;
};

}  // namespace deepinfer::cpu
