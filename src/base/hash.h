// Hashing of bytes: XXH3, compiled once in hash.cc. Not for secrets and not against forgery.
// Pure functions, any thread. Values are the same on every machine and in every version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
};

Hash128 HashBytes128(const void* data, size_t bytes, uint64_t seed = 0);
uint64_t HashBytes64(const void* data, size_t bytes, uint64_t seed = 0);

inline uint64_t HashText(std::string_view text, uint64_t seed = 0) {
  return HashBytes64(text.data(), text.size(), seed);
}

// 32 lower-case hex digits, high word first (the canonical form of the XXH3 tools).
std::string HexOf(const Hash128& hash);

}  // namespace deepinfer
