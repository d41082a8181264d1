// The bound weights of DeepSeek V4, in the order of execution.
// Built while loading; owned by the model afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "models/checkpoint.h"
#include "models/deepseek_v4/config.h"
#include "models/registry.h"

namespace deepinfer {

struct HyperWeights {
  std::unique_ptr<Weight> fn, base, scale;  // fn: float32 product over all streams
};

// A compressor of entries, or of index keys.
struct CompressorWeights {
  std::unique_ptr<Weight> kv, gate, bias, norm;
};

// Absent tensors are nullptr.
struct DeepseekV4Layer {
  HyperWeights attn_hyper, ffn_hyper;
  std::unique_ptr<Weight> attn_norm, q_a, q_norm, q_b, kv, kv_norm, sinks, o_a, o_b;
  CompressorWeights entries, keys;
  std::unique_ptr<Weight> index_q, index_weights;
  std::unique_ptr<Weight> ffn_norm, router, router_bias;
  std::vector<int32_t> token_experts;  // [vocab, top_k] of hashed layers
  std::unique_ptr<Weight> expert_gate, expert_up, expert_down;
  std::unique_ptr<Weight> shared_gate, shared_up, shared_down;
};

// The layer that drafts the token after next from a token's streams and the next one.
struct DeepseekV4Draft {
  std::unique_ptr<Weight> token_norm, token_proj, stream_norm, stream_proj, output_norm;
  DeepseekV4Layer layer;  // sees its window alone
  HyperWeights head_hyper;
};

struct DeepseekV4Weights {
  std::unique_ptr<Weight> embedding;  // nullptr when the head is tied: Embed reads the head
  std::vector<DeepseekV4Layer> layers;
  HyperWeights head_hyper;
  std::unique_ptr<Weight> output_norm, head;
  std::unique_ptr<DeepseekV4Draft> draft;  // nullptr: the checkpoint has none
  size_t packed_bytes = 0;

  const Weight& embedding_or_head() const { return embedding != nullptr ? *embedding : *head; }
};

// Reads the names of the release (no `model.` before them) and those of transformers. Errors name
// every tensor that is missing, left over, misshapen or of a wrong type.
Result<DeepseekV4Weights> BindDeepseekV4(const Checkpoint& checkpoint,
                                         const DeepseekV4Config& config, Backend* backend,
                                         const LoadProgress& progress);

}  // namespace deepinfer
