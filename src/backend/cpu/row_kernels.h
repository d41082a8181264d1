// Vector code of the stages between products (norms, rope, cache writes, activation functions,
// attention) and the seam between stages and the files of each ISA. Plain data and C types alone:
// the ISA files must not instantiate library code that the linker could choose for an older
// processor. Every function treats rows alone, so a row's result never depends on its company.
//
// Cache layout of one layer inside a block: per 16 tokens (a tile) and kv head, K [head_dim, 16]
// and V [16, head_dim]: scores have a lane per key, outputs a lane per dimension.
#pragma once

#include <stdint.h>

namespace deepinfer::cpu {

constexpr int kCacheTile = 16;  // tokens
constexpr int kKeyTile = 64;    // keys of one online-softmax step, at absolute positions
constexpr int kTilesPerStep = kKeyTile / kCacheTile;
constexpr int kSplitKeys = 256;  // keys of one split, at absolute positions

// One step of attention: `rows` queries of one kv head against up to 64 consecutive keys.
struct AttentionStep {
  const float* q;  // [rows, head_dim], scaled by softmax scale * log2(e)
  int rows;
  int head_dim;                  // a multiple of 16, or the scalar kernel is used
  const int32_t* visible;        // [rows] leading keys of this step that the row sees, 0..64
  const void* k[kTilesPerStep];  // [head_dim, 16] each; tiles beyond every visible are not read
  const void* v[kTilesPerStep];  // [16, head_dim] each; only visible keys are read
  // Tiles of the size of k that are read soon (or nullptr): fetched behind the arithmetic.
  const void* soon[kTilesPerStep];
  float* max;  // [rows] running maximum, kNoMax before the first step
  float* sum;  // [rows]
  float* acc;  // [rows, head_dim]
};
constexpr float kNoMax = -1e30F;  // finite: a row that sees no key of a step stays as it is

// One token's keys and values into its cache tile.
struct CacheWrite {
  const float* k;  // [kv_heads, head_dim]
  const float* v;
  int kv_heads;
  int head_dim;
  int lane;    // token within the tile
  void* tile;  // K part, then V part
};

enum CacheType : int { kCacheF16, kCacheF32, kCacheTypes };

struct RowKernels {
  // out = x / rms(x) * weight; x may be out.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // Rotates pairs (i, i + half) of x[0, 2 half); cos and sin [half].
  void (*rope_halves)(float* x, const float* cos, const float* sin, int half);
  // Rotates pairs (2i, 2i + 1).
  void (*rope_interleaved)(float* x, const float* cos, const float* sin, int half);
  // out = silu(gate) * up; out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  // out += x
  void (*add)(const float* x, int64_t n, float* out);
  // out += scale * x
  void (*add_scaled)(float scale, const float* x, int64_t n, float* out);
  // f16 saturates at its largest number: an infinity in the cache would poison masked lanes.
  void (*write_cache[kCacheTypes])(const CacheWrite& write);
  void (*attention[kCacheTypes])(const AttentionStep& step);
  // Folds split state (max, sum, acc) into the total, ascending; the first split is copied.
  void (*merge)(float max, float sum, const float* acc, int head_dim, float* total_max,
                float* total_sum, float* total_acc);
};

extern const RowKernels kScalarRows;
#if defined(__x86_64__)
extern const RowKernels kAvx2Rows;
extern const RowKernels kAvx512Rows;
#endif

}  // namespace deepinfer::cpu
