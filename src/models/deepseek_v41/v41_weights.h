// The bound weights of a DeepSeek-V4.1 model in the order of execution, under the release's names.
// Built while loading; owned by the model afterwards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/row_table.h"
#include "models/checkpoint.h"
#include "models/deepseek_v41/v41_config.h"
#include "models/registry.h"

namespace deepinfer {

// Coefficients of one hyper-connection site.
struct V41Site {
  std::unique_ptr<Weight> fn, base, scale;
};

// What main and draft layers have in common.
struct V41Block {
  std::unique_ptr<Weight> attn_norm, ffn_norm;
  V41Site attn_site, ffn_site;
  std::unique_ptr<Weight> wq_a, q_norm, wq_b, wkv, kv_norm, sink, wo_a, wo_b;
  std::unique_ptr<Weight> router, bias, image_bias, w1, w3, w2;
  std::unique_ptr<Weight> shared_w1, shared_w3, shared_w2;
};

// Absent tensors are nullptr: only sources have a compressor, an index, keys.
struct V41Layer : V41Block {
  std::unique_ptr<Weight> pool_kv, pool_gate, pool_norm;
  std::unique_ptr<Weight> index_q, index_weights, index_k, index_k_norm;
  std::unique_ptr<RowTable> table;  // n-gram memory
  std::unique_ptr<Weight> table_kv, table_q, table_k;
};

struct V41DraftWeights {
  std::vector<V41Block> layers;  // empty: no draft layers
  std::unique_ptr<Weight> main_proj, main_norm, norm, markov_embed, markov_head;
  std::vector<float> confidence;  // [hidden + markov rank]
};

struct V41Weights {
  std::shared_ptr<const TensorFile> file;  // tables stay in it
  std::unique_ptr<Weight> embedding;
  std::vector<V41Layer> layers;
  std::unique_ptr<Weight> norm, head;
  V41DraftWeights draft;
  std::string draft_note;  // why a configured draft is missing
  size_t packed_bytes = 0;
  int64_t parameters = 0;
};

// Checks every tensor by name before the first is bound.
Result<V41Weights> BindV41(const Checkpoint& checkpoint, const V41Config& config, Backend* backend,
                           const LoadProgress& progress);

}  // namespace deepinfer
