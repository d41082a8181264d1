// Quantise-dequantise of activations as DeepSeek-V4.1 was trained with, and the stored rows that
// hold the same values: window rows (FP8), compressed entries and index keys (FP4). Bit-exact
// float32 reference: scales of powers of two (or e4m3), codes rounded to nearest even.
// Plain functions, any thread. A NaN or infinity makes its whole block NaN.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer {

// The smallest power of two that is not below t; t > 0 and finite.
float PowerOfTwoCeil(float t);

// out[i] = the value that the code of x[i] stands for; out may be x. `count` is a multiple of
// `block`, the elements that share a scale.
void FakeQuantFp8(const float* x, int64_t count, int64_t block, float* out);      // e4m3, e8m0
void FakeQuantFp4E8m0(const float* x, int64_t count, int64_t block, float* out);  // e2m1, e8m0
void FakeQuantFp4E4m3(const float* x, int64_t count, int64_t block, float* out);  // e2m1, e4m3

// Rows: the codes of `count` elements (FP4: two a byte, the low nibble is the even element), then
// the scales of its blocks. Decoded values equal those above, bit for bit.
//   window row  FP8, e8m0 scale per 32      512 elements: 528 bytes
//   index key   FP4, e8m0 scale per 32      128 elements:  68 bytes
//   main entry  FP4, e4m3 scale per 16      512 elements: 288 bytes
constexpr int64_t kWindowBlock = 32;
constexpr int64_t kIndexKeyBlock = 32;
constexpr int64_t kMainEntryBlock = 16;
constexpr int64_t WindowRowBytes(int64_t count) { return count + count / kWindowBlock; }
constexpr int64_t IndexKeyBytes(int64_t count) { return count / 2 + count / kIndexKeyBlock; }
constexpr int64_t MainEntryBytes(int64_t count) { return count / 2 + count / kMainEntryBlock; }

// `count` is a multiple of the row's block.
void EncodeWindowRow(const float* x, int64_t count, std::byte* out);
void DecodeWindowRow(const std::byte* row, int64_t count, float* out);
void EncodeIndexKey(const float* x, int64_t count, std::byte* out);
void DecodeIndexKey(const std::byte* row, int64_t count, float* out);
void EncodeMainEntry(const float* x, int64_t count, std::byte* out);
void DecodeMainEntry(const std::byte* row, int64_t count, float* out);

}  // namespace deepinfer
