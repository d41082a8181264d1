// Launches of the stages of hyper-connections (backend/sparse_ops.h, backend/compressed_ops.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace deepinfer::cuda {

// Streams x [rows, streams, hidden].
struct StreamsAt {
  int rows;
  int streams;
  int hidden;
};
struct StreamMixAt {
  StreamsAt shape;
  const float* x;
  const float* raw;    // [rows, s (s + 2)]
  const float* base;   // [s (s + 2)]
  const float* scale;  // [3]
  int sinkhorn_iters;
  float norm_eps;
  float hc_eps;
  float* pre;   // [rows, s]
  float* post;  // [rows, s]
  float* comb;  // [rows, s, s]
};
struct HeadCollapseAt {
  StreamsAt shape;
  const float* x;
  const float* raw;    // [rows, s]
  const float* base;   // [s]
  const float* scale;  // [1]
  float norm_eps;
  float hc_eps;
  float* out;  // [rows, hidden]
};
struct NgramGateAt {
  StreamsAt shape;
  float* x;
  const float* kv;  // [rows, s + 1, hidden]
  const float* q_weight;
  const float* k_weight;
  const uint8_t* kind;  // [rows]
  float norm_eps;
};

void StartStreams(const StreamsAt& shape, const float* embedded, float* x, float* pre,
                  cudaStream_t stream);
void MixStreams(const StreamMixAt& at, cudaStream_t stream);
void CollapseStreams(const StreamsAt& shape, const float* x, const float* pre, float* out,
                     cudaStream_t stream);
void ExpandStreams(const StreamsAt& shape, const float* y, const float* post, const float* comb,
                   float* x, cudaStream_t stream);
void MeanStreams(const StreamsAt& shape, const float* x, float* out, int64_t stride,
                 cudaStream_t stream);
void CollapseHead(const HeadCollapseAt& at, cudaStream_t stream);
void AddToStreams(const StreamsAt& shape, const float* row, float* x, cudaStream_t stream);
void NgramGate(const NgramGateAt& at, cudaStream_t stream);

}  // namespace deepinfer::cuda
