// Hyper-parameters of a model, read from a Hugging Face config.json or from GGUF metadata and
// checked number by number. Plain data: built by Checkpoint::Open, then read-only on any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

class GgufMetadata;

// kOwn: a family that reads its own configuration and binds its own tensor names; ModelConfig then
// holds the facts common to all models (see below), Checkpoint keeps the configuration.
enum class ModelFamily { kLlama, kQwen2, kQwen3, kQwen3Moe, kOwn };

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeStyle style = RopeStyle::kHalves;
  int dim = 0;  // first elements of a head that are rotated, even
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;            // linear, llama3, yarn
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;         // yarn
  bool truncate = true;           // yarn: round the correction range outwards
  int64_t original_context = 0;   // llama3, yarn
  float attention_factor = 1.0F;  // yarn: multiplies cos and sin; 1 otherwise
  std::vector<float> inv_freq;    // [dim / 2], scaling applied
};

struct MoeConfig {
  int experts = 0;  // 0: a dense model
  int top_k = 0;
  int intermediate = 0;  // of one expert
  bool normalize_top_k = true;
  std::vector<uint8_t> sparse_layer;  // [layers] 1: experts, 0: a dense feed-forward
};

// What the checkpoint's author suggests for sampling; unset where nothing is said.
struct GenerationDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  std::optional<int> max_new_tokens;
};

// A family of kind kOwn has: architecture, name, layers, hidden, vocab, context_max, tied_head, the
// token ids and the generation defaults. Everything else is for the family's own reader.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::string architecture;  // "llama", "qwen2", "qwen3", "qwen3_moe"
  std::string name;          // from the metadata, else the file or directory name
  int layers = 0;
  int hidden = 0;
  int intermediate = 0;  // of dense feed-forward layers
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;  // rows of embedding and head
  int context_max = 0;
  float norm_eps = 1e-6F;
  bool tied_head = false;  // the head is the embedding
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // per-head RMSNorm of q and k before rope
  RopeConfig rope;
  MoeConfig moe;
  std::vector<TokenId> eos_ids;  // config, generation config and GGUF taken together
  TokenId bos_id = -1;
  TokenId pad_id = -1;
  GenerationDefaults generation;

  bool IsSparse(int layer) const {
    return moe.experts > 0 && moe.sparse_layer[static_cast<size_t>(layer)] != 0;
  }
};

// `generation` is generation_config.json, or nullptr. Errors name the key and its value; an unknown
// architecture is refused by name with the known ones.
Result<ModelConfig> ConfigFromHf(const Json& config, const Json* generation);
// What GGUF metadata leaves to the tensors.
struct GgufTensorFacts {
  int64_t vocab = 0;      // rows of token_embd.weight
  bool has_head = false;  // output.weight exists
  bool has_qkv_bias = false;
  bool has_output_bias = false;
  bool has_mlp_bias = false;
  std::vector<uint8_t> sparse_layer;    // [layers] 1 where the layer has a router
  std::span<const float> rope_factors;  // rope_freqs.weight [rope dim / 2], or empty
};
// block_count, checked: needed before the facts can be gathered.
Result<int> GgufLayerCount(const GgufMetadata& metadata);
Result<ModelConfig> ConfigFromGguf(const GgufMetadata& metadata, const GgufTensorFacts& facts);

// Fills rope.inv_freq and rope.attention_factor from the other fields. `factors` (may be empty)
// divide the unscaled frequencies one by one, as rope_freqs.weight of GGUF does.
Status ComputeRope(RopeConfig* rope, std::span<const float> factors);

// "llama, qwen2, qwen3, qwen3_moe": for messages and documentation.
std::string KnownArchitectures();

}  // namespace deepinfer
