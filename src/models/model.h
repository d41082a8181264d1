// A model family written with backend operators. Built once by models/registry; every call is made
// by the runner thread. No member depends on the rows of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/step_input.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct ModelInfo {
  std::string architecture;      // "llama", "qwen3_moe", ...
  std::string name;              // from the checkpoint's metadata or its file name
  std::string dtype;             // of most weight bytes: "Q4_1", "BF16"
  int64_t parameters = 0;
  int layers = 0;
  int hidden = 0;
  int vocab = 0;                 // rows of the output head
  int context_max = 0;           // positions the model was made for
  size_t weight_bytes = 0;       // packed
  std::vector<TokenId> eos_ids;  // any of them ends a sample
  TokenId bos_id = -1;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  virtual const CacheLayout& cache_layout() const = 0;

  // Runs all layers for the step and writes its cache rows. Returns hidden [num_tokens, hidden],
  // before the final norm, valid until the next Forward.
  virtual const float* Forward(const StepInput& step) = 0;
  // logits [rows, vocab] of hidden[row_index[i]]; row_index in device memory.
  virtual void Head(const float* hidden, const int32_t* row_index, int rows, float* logits) = 0;
};

}  // namespace deepinfer
