// The bound weights of DeepSeek V3, in the order of execution.
// Built while loading; owned by the model afterwards.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "models/checkpoint.h"
#include "models/deepseek_v3/config.h"
#include "models/registry.h"

namespace deepinfer {

// Absent tensors are nullptr: the low-rank query of models without one, the other feed-forward.
struct DeepseekV3Layer {
  std::unique_ptr<Weight> attn_norm, q_a, q_norm, q, kv_a, kv_norm, o;  // q: from q_a or hidden
  std::unique_ptr<Weight> key_up, value_up;                             // per head, of kv_b
  std::unique_ptr<Weight> ffn_norm, gate, up, down;                     // dense
  std::unique_ptr<Weight> router, router_bias, expert_gate, expert_up, expert_down;
  std::unique_ptr<Weight> shared_gate, shared_up, shared_down;
};

struct DeepseekV3Weights {
  std::unique_ptr<Weight> embedding;  // nullptr when the head is tied: Embed reads the head
  std::vector<DeepseekV3Layer> layers;
  std::unique_ptr<Weight> output_norm, head;
  size_t packed_bytes = 0;

  const Weight& embedding_or_head() const { return embedding != nullptr ? *embedding : *head; }
};

// Errors name every tensor that is missing, left over, misshapen or of a wrong type.
Result<DeepseekV3Weights> BindDeepseekV3(const Checkpoint& checkpoint,
                                         const DeepseekV3Config& config, Backend* backend,
                                         const LoadProgress& progress);

}  // namespace deepinfer
