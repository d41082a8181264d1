// Mappings behind PackedArena: anonymous memory on huge pages, handed out front to back.
// A piece is unmapped with its last owner (the arena or a matrix inside).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

}  // namespace deepinfer::cpu
