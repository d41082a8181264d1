// The bound weights of a decoder, in the order of execution.
// Built while loading; owned by the model afterwards.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "models/checkpoint.h"
#include "models/registry.h"

namespace deepinfer {

// Absent tensors are nullptr: biases, per-head norms, the other kind of feed-forward.
struct DecoderLayer {
  std::unique_ptr<Weight> attn_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, o, o_bias;
  std::unique_ptr<Weight> ffn_norm, gate, up, down, gate_bias, up_bias, down_bias;
  std::unique_ptr<Weight> router, expert_gate, expert_up, expert_down;
};

struct DecoderWeights {
  std::unique_ptr<Weight> embedding;  // nullptr when the head is tied: Embed reads the head
  std::vector<DecoderLayer> layers;
  std::unique_ptr<Weight> output_norm, head;
  size_t packed_bytes = 0;

  const Weight& embedding_or_head() const { return embedding != nullptr ? *embedding : *head; }
};

Result<DecoderWeights> BindDecoder(const Checkpoint& checkpoint, Backend* backend,
                                   const LoadProgress& progress);

}  // namespace deepinfer
