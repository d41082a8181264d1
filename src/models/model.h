// A model family written with backend operators. Built once by models/registry; every call is made
// by the runner thread. No member depends on the rows of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/row_table.h"
#include "backend/step_input.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct ModelInfo {
  std::string architecture;  // "llama", "qwen3_moe", ...
  std::string name;          // from the checkpoint's metadata or its file name
  std::string dtype;         // of most weight bytes: "Q4_1", "BF16"
  int64_t parameters = 0;
  int layers = 0;
  int hidden = 0;
  int vocab = 0;                 // rows of the output head
  int context_max = 0;           // positions the model was made for
  size_t weight_bytes = 0;       // packed
  std::vector<TokenId> eos_ids;  // any of them ends a sample
  TokenId bos_id = -1;
  TokenId image_id = -1;  // placeholder of image spans; -1: the model knows no images
};

// Draft layers that a checkpoint brings along (DSpark). They read rings that Forward fills by
// itself from every token it runs whole, in the row's slot: positional, so that a rejected draft
// needs no call, only its tokens run again from the accepted position.
struct DraftInfo {
  int block = 0;     // tokens per DraftBlock, all of them drafted; 0: the model has no draft layers
  std::string note;  // why there are none although the configuration names them
};

// One row per sequence. `position` is the anchor's: tokens 0..position-1 have been run and
// accepted, the anchor itself (the token sampled last) has not.
struct DraftInput {
  int rows = 0;
  int places = 0;                         // drafts wanted of a row, at most; 0: the whole block
  const int32_t* anchor = nullptr;        // [rows]
  const int32_t* position = nullptr;      // [rows]
  const int32_t* slot = nullptr;          // [rows]
  const int32_t* suffix_begin = nullptr;  // [rows] as in StepInput; nullptr: 0
  std::byte* cache_slots = nullptr;
  const CacheLayout* layout = nullptr;
  // Chooses the token of one place from its logits [vocab], which it may overwrite. Place k of a
  // row stands for absolute position `position + 1 + k`: the noise of that position makes the
  // choice the target's own whenever the logits agree. Called on compute threads, one row at a time
  // each, places ascending. nullptr: the likeliest, the lower id on a tie.
  int32_t (*choose)(void* context, int row, int place, float* logits) = nullptr;
  void* context = nullptr;
};

struct DraftOutput {
  int32_t* token = nullptr;     // [rows, block]
  float* confidence = nullptr;  // [rows, block] logit of: this draft is accepted if all before are
};

// Sums over a model's tables.
struct TableStats {
  int tables = 0;
  RowTableStats rows;
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

  // Values of an embedding, 0: this model or its device gives none.
  virtual int embedding_size() const { return 0; }
  // out [embedding_size]: hidden[row] after the final norm, in host memory. Only with a size.
  virtual void Embed(const float* /*hidden*/, int /*row*/, float* /*out*/) {}

  // Of the tables whose rows are fetched by id. Any thread.
  virtual TableStats table_stats() const { return {}; }

  // Drafting: block 0 means that DraftBlock must not be called. Drafts of more than
  // cache_layout().rollback_max tokens in one step are not allowed, from whatever drafter.
  virtual DraftInfo draft_info() const { return {}; }
  // Off by default: Forward then leaves the draft rings alone and saves their work. Set before the
  // first Forward.
  virtual void EnableDrafting() {}
  virtual void DraftBlock(const DraftInput& input, const DraftOutput& output);
};

}  // namespace deepinfer
