#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/format.h"

namespace deepinfer {

Hash128 HashBytes128(const void* data, size_t bytes, uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);
  return {hash.low64, hash.high64};
}

uint64_t HashBytes64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

std::string HexOf(const Hash128& hash) { return Format("{:016x}{:016x}", hash.high, hash.low); }

}  // namespace deepinfer
