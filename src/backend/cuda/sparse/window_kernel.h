// Launches of the stages that bring rows into the caches of sparse models: windows, groups of
// tokens that become entries, index keys (backend/sparse_ops.h, backend/compressed_ops.h).
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sparse/row_views.h"

namespace deepinfer::cuda {

struct EncodeWindowAt {
  int tokens;
  const int32_t* position;  // [tokens / block]: token t stands at position[t / block] + t % block
  int block;
  const uint8_t* kind;  // [tokens] or nullptr: all live
  RopeAt rope;
  float* q;         // [tokens, heads, dim] or nullptr
  const float* kv;  // [tokens, dim]
  const float* norm;
  int heads;
  int dim;
  float norm_eps;
  std::byte* rows;  // [tokens, row bytes]
};
// Rotates q, norms, rotates and encodes kv.
void EncodeWindow(const EncodeWindowAt& at, cudaStream_t stream);

// Copies rows [tokens, ring.position_bytes] of what survives of the step into the ring; `second`
// (or nullptr) holds the other half of each position.
void StoreRing(const StepAt& step, const StateAt& ring, const void* rows, const void* second,
               cudaStream_t stream);

struct PlainRowsAt {  // tokens to rows of plain elements
  StepAt step;
  RopeAt rope;
  float* q;   // [tokens, heads, dim] or nullptr; normed if norm_q, rotated in place
  float* kv;  // [tokens, dim]; normed, rotated, rounded in place
  const float* norm;
  int heads;
  int dim;
  float norm_eps;
  bool norm_q;
  int rounding;
  bool float32;
  int padded;       // elements of a stored row
  std::byte* rows;  // [tokens, padded]
};
void PreparePlainRows(const PlainRowsAt& at, cudaStream_t stream);

struct CompressAt {
  StepAt step;
  StateAt tail;  // ratio 2: [k, gate]
  int dim;
  int ratio;
  const float* norm;
  float norm_eps;
  const float* k;
  const float* gate;
  float* latent;
};
// Latents, then what waits for its second token.
void CompressPairs(const CompressAt& at, cudaStream_t stream);

struct WriteEntriesAt {
  StepAt step;
  const int32_t* write_floor;  // [rows] or nullptr
  HistoryAt entries;
  HistoryAt keys;
  RopeAt rope;
  int dim;
  int key_dim;
  int ratio;
  const float* key_norm;
  float norm_eps;
  const float* latent;
  float* key;
};
void WriteEntries(const WriteEntriesAt& at, cudaStream_t stream);

struct CompressorAt {  // windows of tokens to entries of plain elements
  StepAt step;
  StateAt ring;  // [2, width] float32
  HistoryAt entries;
  RopeAt rope;
  int dim;
  int width;
  int ratio;
  bool window_before;
  const float* bias;  // [ratio, width]
  const float* norm;
  float norm_eps;
  int rounding;
  bool float32;
  int padded;
  int entry_ratio;  // tokens of a history row
  const float* kv;
  const float* gate;
};
void WriteCompressed(const CompressorAt& at, cudaStream_t stream);

struct LatentRowsAt {
  StepAt step;
  HistoryAt rows;
  RopeAt rope;
  bool halves;     // pairs (i, i + half), else (2i, 2i + 1)
  float* q;        // [tokens, heads, nope + rope]; the last part rotated in place
  float* rotated;  // the same part again, in rows of latent + rope
  float* kv;       // [tokens, latent + rope]; normed and rotated in place
  const float* norm;
  int heads;
  int nope_dim;
  int latent;
  float norm_eps;
  bool float32;
  int padded;
};
void WriteLatents(const LatentRowsAt& at, cudaStream_t stream);

}  // namespace deepinfer::cuda
