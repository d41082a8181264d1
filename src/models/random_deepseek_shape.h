// The shape of a scaled DeepSeek V4.1: every proportion of the released model, at a chosen size.
// Plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "deepinfer/status.h"
#include "tensor/dtype.h"
#include "text/engram_map.h"

namespace deepinfer {

struct RandomDeepseekShape {
  int hidden = 0, layers = 0, vocab = 0;
  int heads = 0, q_lora = 0, o_groups = 0, o_lora = 0;
  int index_heads = 0;
  int experts = 0, expert_inner = 0, top_k = 0;
  int draft_experts = 0, draft_top_k = 0;
  int engram_heads = 0, engram_head_dim = 0;
  std::vector<int> engram_layers, ratios, kv_sources, index_sources;
  std::vector<int64_t> engram_rows;
  int64_t engram_table = 0;  // rows of one prime at least
  int candidate_source = 0;
};

// How a tensor is filled.
struct RandomTensorPlan {
  enum class Kind {
    kBf16,       // spread around 0
    kBf16Norm,   // around 1
    kF32,        // spread around 0
    kF32Around,  // around `centre`
    kFp8Codes,
    kFp4Codes,
    kFp8Scales,
    kFp4Scales,
  };
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Kind kind = Kind::kBf16;
  double deviation = 0;  // of the weights
  double centre = 0;     // kF32Around
};

// The largest shape whose tensors outside experts and Engram tables fit their share of `bytes`.
RandomDeepseekShape ChooseDeepseekShape(uint64_t bytes, double expert_share, double engram_share);
// Every tensor, in the order of the layers.
std::vector<RandomTensorPlan> DeepseekTensors(const RandomDeepseekShape& shape);
// config.json. `engram` gives the compressed vocabulary and the rows.
Json DeepseekConfigJson(const RandomDeepseekShape& shape, const EngramSidecar& engram);
// What the sidecar is computed from.
EngramShape EngramShapeOf(const RandomDeepseekShape& shape);

// Ids of the control tokens: bos, eos and pad are 0, 1, 2.
int NoiseTokenOf(const RandomDeepseekShape& shape);
int ImageTokenOf(const RandomDeepseekShape& shape);
// tokenizer.json: byte-level BPE of made-up words, with the control tokens of V4.1 at its end.
std::string DeepseekTokenizerJson(const RandomDeepseekShape& shape);
std::string DeepseekTokenizerConfigJson();

}  // namespace deepinfer
