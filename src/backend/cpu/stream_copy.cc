#include "backend/cpu/stream_copy.h"

#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace deepinfer::cpu {

void StreamCopy(const std::byte* from, int64_t bytes, std::byte* to) {
  int64_t done = 0;
#if defined(__SSE2__)
  // Streaming stores need 16-byte alignment of the destination.
  const auto head = static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(to) % 16) % 16);
  if (head < bytes) {
    memcpy(to, from, static_cast<size_t>(head));
    for (done = head; done + 64 <= bytes; done += 64) {
      const auto* in = reinterpret_cast<const __m128i*>(from + done);
      auto* out = reinterpret_cast<__m128i*>(to + done);
      const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
      const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    _mm_sfence();
  }
#endif
  memcpy(to + done, from + done, static_cast<size_t>(bytes - done));
}

}  // namespace deepinfer::cpu
