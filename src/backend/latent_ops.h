// Attention over a latent cache (multi-head latent attention): of each token the cache keeps one
// normed latent and one rotated key part that all heads share, and every head sees them through its
// own up projections. The projections are absorbed into query and output, for one row and for
// hundreds alike, so that no key or value of a head is ever built.
#pragma once

#include "backend/backend.h"

namespace deepinfer {

struct LatentAttentionSpec {
  int layer = 0;  // index into the history group
  int group = 0;  // index of the history group
  int heads = 0;
  int latent = 0;      // elements of a latent
  int nope_dim = 0;    // of a query head: elements that meet the latent
  int rope_dim = 0;    // of a query head, after them: rotated, even
  int value_dim = 0;   // of an output head
  float scale = 0.0F;  // multiplies q . k
  RopeStyle rope_style = RopeStyle::kInterleaved;
  const float* inv_freq = nullptr;  // [rope_dim / 2], host memory, scaling already applied
  float rope_factor = 1.0F;         // multiplies cos and sin
  const Weight* latent_norm = nullptr;
  float norm_eps = 1e-6F;
  const Weight* key_up = nullptr;    // experts [heads, latent, nope_dim]
  const Weight* value_up = nullptr;  // experts [heads, value_dim, latent]
};

struct LatentAttentionArgs {
  float* q = nullptr;    // [tokens, heads, nope_dim + rope_dim]; the rope part is rotated in place
  float* kv = nullptr;   // [tokens, latent + rope_dim]; normed and rotated in place
  float* out = nullptr;  // [tokens, heads, value_dim]; zero for dead tokens
};

// Elements of a cache row; its bytes are this times Backend::kv_element_bytes.
constexpr int LatentRowElements(int latent, int rope_dim) {
  return (latent + rope_dim + 15) / 16 * 16;
}

}  // namespace deepinfer
