// Hyper-parameters of DeepSeek-V4.1: text part of config.json, checked number by number, and the
// constants of the n-gram memory from its side file. Plain data, read-only after loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// Experts of a kind of layer.
struct V41Experts {
  int experts = 0;
  int top_k = 0;
};

// Constants of one table of the n-gram memory.
struct V41NgramTable {
  int layer = 0;
  int64_t rows = 0;
  std::vector<int64_t> multiplier, prime, offset;
};

struct V41Ngram {
  int ngram = 0;  // 0: the model has no n-gram memory
  int heads = 0;
  int head_dim = 0;
  int32_t pad = 0;                 // compressed
  std::vector<int32_t> token_map;  // id -> compressed id
  std::vector<V41NgramTable> tables;

  int columns() const { return (ngram - 1) * heads; }
};

struct V41Draft {
  int layers = 0;  // 0: none
  int block = 0;
  TokenId noise_id = -1;
  std::vector<int> target_layers;
  int markov_rank = 0;
  V41Experts experts;
};

// What a layer does with the shared compressed entries.
struct V41LayerRole {
  int ratio = 0;          // 0: window alone
  int kv_source = -1;     // layer whose entries are read
  int index_source = -1;  // layer whose selection is read
};

struct V41Config {
  int vocab = 0, hidden = 0, layers = 0, context_max = 0;
  int heads = 0, head_dim = 0, rope_dim = 0;
  int q_rank = 0, groups = 0, o_rank = 0;
  int window = 0;
  std::vector<float> main_rope, compress_rope;  // inverse frequencies [rope_dim / 2]
  double norm_eps = 0.0;
  std::vector<V41LayerRole> roles;  // [layers]
  std::vector<int> kv_sources, index_sources;
  int boundary = -1;  // first layer that reads entries of ratio 1: the decoder's; -1: none
  int candidate_source = -1, candidate_blocks = 0, candidate_block_size = 0;
  int index_heads = 0, index_dim = 0, index_top_k = 0;
  V41Experts experts;
  int expert_hidden = 0;
  bool shared_expert = false;
  double route_scale = 1.0;
  bool normalize_top_k = true;
  double swiglu_limit = 0.0;  // 0: none
  int streams = 0, sinkhorn_iters = 0;
  double hc_eps = 0.0;
  TokenId image_id = -1;
  V41Ngram ngram;
  V41Draft draft;

  bool IsKvSource(int layer) const { return roles_of(layer).kv_source == layer; }
  bool IsIndexSource(int layer) const { return roles_of(layer).index_source == layer; }
  const V41LayerRole& roles_of(int layer) const { return roles[static_cast<size_t>(layer)]; }
};

// Errors name the field. The n-gram side file is not read here.
Result<V41Config> ReadV41Config(const Json& config);

// Reads engram.json (token map, multipliers, primes, offsets) and holds it against the
// configuration: counts, ranges, products that would overflow, rows that the tables lack.
Status ReadV41Ngram(const std::string& directory, const Json& config_json, V41Config* config);

}  // namespace deepinfer
