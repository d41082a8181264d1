// Counter-based random numbers: a pure function of (key, counter), so any thread, any order and
// any replay gives the same value. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace deepinfer {

inline std::array<uint32_t, 4> Philox4x32(uint64_t key, std::array<uint32_t, 4> counter) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// In the open interval (0, 1): never 0, never 1.
inline double UniformOpen(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

}  // namespace deepinfer
