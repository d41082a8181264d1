// A copy of large blocks that bypasses the caches: the destination is not read soon.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::cpu {

void StreamCopy(const std::byte* from, int64_t bytes, std::byte* to);

}  // namespace deepinfer::cpu
