// The tile unit of AMX: configuration and barriers shared by the files of this folder. Everything
// is internal to the including file.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace deepinfer::cpu {
namespace {

// One palette-1 configuration: rows and bytes a row of the eight tiles.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The tile intrinsics do not tell the compiler which memory they read.
[[gnu::always_inline]] inline void MemoryBarrier() { __asm__ volatile("" ::: "memory"); }

[[gnu::always_inline]] inline void ConfigureTiles(const TileConfig& config) {
  MemoryBarrier();
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace deepinfer::cpu
