// What the kernels of sparse models share: sums of a block in a fixed order, rotations, and the
// stored rows of tensor/fake_quant.h. Device code alone.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "backend/cuda/sparse/row_views.h"

namespace deepinfer::cuda {

constexpr unsigned kWholeWarp = 0xffffffffU;

__device__ inline float WarpSum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  return x;
}

// A NaN is passed over.
__device__ inline float WarpMax(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, step));
  return x;
}

// The sum over all threads of the block, for each of them; the order is fixed by the block's size.
__device__ inline float BlockSum(float x) {
  __shared__ float of_warp[32];
  x = WarpSum(x);
  __syncthreads();  // of_warp may still be read from an earlier call
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  const int warps = (static_cast<int>(blockDim.x) + 31) / 32;
  return WarpSum(static_cast<int>(threadIdx.x % 32) < warps ? of_warp[threadIdx.x % 32] : 0.0F);
}

__device__ inline float SigmoidOf(float x) { return 1.0F / (1.0F + expf(-x)); }

// The angle in float, as the models were trained; its functions exactly.
__device__ inline float2 CosSin(const RopeAt& rope, int position, int i) {
  const float angle = __fmul_rn(static_cast<float>(position), rope.inv_freq[i]);
  double sine, cosine;
  sincos(static_cast<double>(angle), &sine, &cosine);
  return {static_cast<float>(cosine) * rope.factor, static_cast<float>(sine) * rope.factor};
}

__device__ inline void Rotate(float2 cos_sin, float* a, float* b) {
  const float x = *a;
  const float y = *b;
  *a = x * cos_sin.x - y * cos_sin.y;
  *b = y * cos_sin.x + x * cos_sin.y;
}

// ---- codes

__device__ inline float E8M0Value(uint32_t code) {
  if (code == 255) return __uint_as_float(0x7fc00000U);
  return __uint_as_float(code == 0 ? 0x00400000U : code << 23);
}

__device__ inline float E4M3Value(uint32_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3);
  return __half2float(__half(half));
}

__device__ inline uint32_t E4M3Code(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

__device__ inline float E2M1Value(uint32_t code) {
  const uint32_t m = code & 7U;
  const uint32_t bits = m < 2 ? m * 0x3f000000U : ((m >> 1) + 126U) << 23 | (m & 1U) << 22;
  return __uint_as_float(bits | (code & 8U) << 28);
}

// The nearest code, ties to even; not for NaN.
__device__ inline uint32_t E2M1Code(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  uint32_t code;
  if (magnitude < 0x3f800000U) {  // below 1: 2^22 has the spacing of the codes, 0.5
    code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0x1p22F)) - 0x4a800000U;
  } else {
    code = ((magnitude + 0x1fffffU + ((magnitude >> 22) & 1U)) >> 22) - 252U;
  }
  return (bits >> 28 & 8U) | (code > 7 ? 7U : code);
}

__device__ inline uint32_t PowerCodeCeil(float t) {
  const uint32_t bits = __float_as_uint(t);
  return (bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1U : 0U);
}

// Magnitudes are ordered like their bits, NaN above all.
__device__ inline uint32_t MagnitudeBits(float x) { return __float_as_uint(x) & 0x7fffffffU; }

// The largest of the `width` lanes (16 or 32) around this one.
__device__ inline uint32_t LanesMax(uint32_t x, int width) {
  for (int step = width / 2; step > 0; step /= 2) {
    x = max(x, __shfl_xor_sync(kWholeWarp, x, step));
  }
  return x;
}

// Scale codes for the largest magnitude of a block.
__device__ inline uint32_t Fp8ScaleCode(uint32_t top) {
  if (top >= 0x7f800000U) return 255;
  return PowerCodeCeil(__fmul_rn(fmaxf(__uint_as_float(top), 1e-4F), 1.0F / 448.0F));
}
__device__ inline uint32_t Fp4ScaleCode(uint32_t top) {
  if (top >= 0x7f800000U) return 255;
  return PowerCodeCeil(__fmul_rn(fmaxf(__uint_as_float(top), 0x6p-126F), 1.0F / 6.0F));
}
__device__ inline uint32_t Fp4E4M3ScaleCode(uint32_t top) {
  if (top >= 0x7f800000U) return 0x7f;
  return E4M3Code(__fdiv_rn(fmaxf(__uint_as_float(top), 0x6p-9F), 6.0F));
}
__device__ inline uint32_t Fp8Code(float x, float scale) {
  if (isnan(scale)) return 0;
  return E4M3Code(fminf(fmaxf(__fdiv_rn(x, scale), -448.0F), 448.0F));
}
__device__ inline uint32_t Fp4Code(float x, float scale) {
  if (isnan(scale)) return 0;
  return E2M1Code(fminf(fmaxf(__fdiv_rn(x, scale), -6.0F), 6.0F));
}

// ---- rows: called by all threads of a block, whose size is a multiple of 32. x in shared memory.

// FP8 with a scale per 32.
__device__ inline void StoreWindowRow(const float* x, int count, std::byte* out) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const uint32_t code = Fp8ScaleCode(LanesMax(MagnitudeBits(x[i]), 32));
    out[i] = static_cast<std::byte>(Fp8Code(x[i], E8M0Value(code)));
    if (i % 32 == 0) out[count + i / 32] = static_cast<std::byte>(code);
  }
}

// FP4 pairs with an E4M3 scale per 16.
__device__ inline void StoreMainEntry(const float* x, int count, std::byte* out) {
  for (int i = static_cast<int>(threadIdx.x); i < (count + 31) / 32 * 32;
       i += static_cast<int>(blockDim.x)) {
    const float value = i < count ? x[i] : 0.0F;
    const uint32_t code = Fp4E4M3ScaleCode(LanesMax(MagnitudeBits(value), 16));
    const uint32_t own = Fp4Code(value, E4M3Value(code));
    const uint32_t next = __shfl_down_sync(kWholeWarp, own, 1);
    if (i >= count) continue;
    if (i % 2 == 0) out[i / 2] = static_cast<std::byte>(own | next << 4);
    if (i % 16 == 0) out[count / 2 + i / 16] = static_cast<std::byte>(code);
  }
}

// FP4 pairs with an E8M0 scale per 32.
__device__ inline void StoreIndexKey(const float* x, int count, std::byte* out) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const uint32_t code = Fp4ScaleCode(LanesMax(MagnitudeBits(x[i]), 32));
    const uint32_t own = Fp4Code(x[i], E8M0Value(code));
    const uint32_t next = __shfl_down_sync(kWholeWarp, own, 1);
    if (i % 2 == 0) out[i / 2] = static_cast<std::byte>(own | next << 4);
    if (i % 32 == 0) out[count / 2 + i / 32] = static_cast<std::byte>(code);
  }
}

__device__ inline uint32_t ByteAt(const std::byte* at) {
  return static_cast<uint32_t>(*reinterpret_cast<const uint8_t*>(at));
}
__device__ inline float WindowElement(const std::byte* row, int count, int i) {
  return E4M3Value(ByteAt(row + i)) * E8M0Value(ByteAt(row + count + i / 32));
}
__device__ inline float MainElement(const std::byte* row, int count, int i) {
  const uint32_t code = ByteAt(row + i / 2) >> (4 * (i & 1));
  return E2M1Value(code & 15U) * E4M3Value(ByteAt(row + count / 2 + i / 16));
}

// Words of state rows, which stand wherever the groups before them end.
__device__ inline uint32_t WordAt(const std::byte* row, int i) {
  const auto* at = reinterpret_cast<const uint8_t*>(row) + int64_t{4} * i;
  if (reinterpret_cast<uintptr_t>(at) % 4 == 0) return *reinterpret_cast<const uint32_t*>(at);
  return at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24;
}
__device__ inline void StoreWord(uint32_t word, int i, std::byte* row) {
  auto* at = reinterpret_cast<uint8_t*>(row) + int64_t{4} * i;
  if (reinterpret_cast<uintptr_t>(at) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(at) = word;
    return;
  }
  for (int b = 0; b < 4; ++b) at[b] = static_cast<uint8_t>(word >> (8 * b));
}

// ---- elements of plain rows: float32, or f16 that saturates

__device__ inline void StoreElement(float x, int i, bool float32, std::byte* row) {
  if (float32) {
    reinterpret_cast<float*>(row)[i] = x;
  } else {
    // A NaN stays one.
    const float bounded = x > 65504.0F ? 65504.0F : (x < -65504.0F ? -65504.0F : x);
    reinterpret_cast<__half*>(row)[i] = __float2half_rn(bounded);
  }
}
__device__ inline float LoadElement(const std::byte* row, int i, bool float32) {
  return float32 ? reinterpret_cast<const float*>(row)[i]
                 : __half2float(reinterpret_cast<const __half*>(row)[i]);
}

// ---- a row in shared memory, by all threads of the block

// x = x / rms(x) * weight (nullptr: 1). The sum is in a fixed order.
__device__ inline void NormRow(const float* from, const float* weight, int count, float eps,
                               float* x) {
  float sum = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    sum += from[i] * from[i];
  }
  const float scale = 1.0F / sqrtf(BlockSum(sum) / static_cast<float>(count) + eps);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    x[i] = from[i] * scale * (weight != nullptr ? weight[i] : 1.0F);
  }
  __syncthreads();
}

// Rotates interleaved pairs of the last 2 * half elements.
__device__ inline void RotateTail(const float2* cos_sin, int half, int count, float* x) {
  for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
    float* at = x + count - 2 * half + 2 * i;
    Rotate(cos_sin[i], at, at + 1);
  }
  __syncthreads();
}

__device__ inline void LoadCosSin(const RopeAt& rope, int position, float2* cos_sin) {
  for (int i = static_cast<int>(threadIdx.x); i < rope.half; i += static_cast<int>(blockDim.x)) {
    cos_sin[i] = CosSin(rope, position, i);
  }
  __syncthreads();
}

// FakeQuantFp8 in blocks of 64 elements: two for each lane of a warp.
__device__ inline void RoundFp8Blocks64(int count, float* x) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int begin = static_cast<int>(threadIdx.x) / 32 * 64; begin < count; begin += warps * 64) {
    const float a = x[begin + lane];
    const float b = x[begin + 32 + lane];
    const float scale =
        E8M0Value(Fp8ScaleCode(LanesMax(max(MagnitudeBits(a), MagnitudeBits(b)), 32)));
    x[begin + lane] = E4M3Value(Fp8Code(a, scale)) * scale;
    x[begin + 32 + lane] = E4M3Value(Fp8Code(b, scale)) * scale;
  }
  __syncthreads();
}

// FakeQuantFp4E8m0 in blocks of 32.
__device__ inline void RoundFp4Blocks32(int count, float* x) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const float scale = E8M0Value(Fp4ScaleCode(LanesMax(MagnitudeBits(x[i]), 32)));
    x[i] = E2M1Value(Fp4Code(x[i], scale)) * scale;
  }
  __syncthreads();
}

// x = H x / sqrt(count), count a power of two.
__device__ inline void HadamardRow(int count, float* x) {
  for (int half = 1; half < count; half *= 2) {
    for (int i = static_cast<int>(threadIdx.x); i < count / 2; i += static_cast<int>(blockDim.x)) {
      const int at = i / half * 2 * half + i % half;
      const float a = x[at];
      const float b = x[at + half];
      x[at] = a + b;
      x[at + half] = a - b;
    }
    __syncthreads();
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(count));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    x[i] *= scale;
  }
  __syncthreads();
}

__device__ inline void RoundRow(int rounding, int count, int tail, float* x) {
  if (rounding == kRoundFp8Blocks64) RoundFp8Blocks64(count - tail, x);
  if (rounding == kRoundHadamardFp4) {
    HadamardRow(count, x);
    RoundFp4Blocks32(count, x);
  }
}

}  // namespace deepinfer::cuda
