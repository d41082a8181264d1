// Stages of models that keep a window of recent rows and a compressed past as plain elements
// (DeepSeek V4), beside those of sparse_ops.h: windows of tokens to entries, with or without the
// window before; the choice among entries; attention over window and entries with a sink; the
// streams' last collapse. Called like Backend's stages.
#pragma once

#include <numeric>

#include "backend/sparse_ops.h"

namespace deepinfer {

// How values are rounded that a model was trained to round. kNone: not at all.
enum class StoredRounding {
  kNone,
  kFp8Blocks64,  // e4m3 with power-of-two scales per 64, the rotated tail left alone
  kHadamardFp4,  // turned by a Hadamard matrix, then e2m1 with power-of-two scales per 32
};

// The streams of the last layer to one row, by coefficients of their own.
struct HeadCollapseArgs {
  StreamShape shape;
  const float* x = nullptr;       // [rows, streams, hidden]
  const float* raw = nullptr;     // [rows, streams] product with the flattened, unnormed streams
  const Weight* base = nullptr;   // vector [streams]
  const Weight* scale = nullptr;  // vector [1]
  float norm_eps = 0.0F;
  float hc_eps = 0.0F;
  float* out = nullptr;  // [rows, hidden]
};

// Tokens of one window of `ratio` become one history entry: a softmax over them, per channel.
struct CompressorSpec {
  WindowRing ring;  // [2, width] float32 per position
  HistoryRows entries;
  int dim = 0;    // of an entry
  int ratio = 0;  // tokens of a window; entry w stands for positions w * ratio and on
  // Entries also see the window before: the first half of `width` of its tokens, and the second
  // half of their own.
  enum class Reach { kOwnWindow, kWindowBefore } reach = Reach::kOwnWindow;
  bool float32_entries = false;  // else of Backend::kv_element_bytes
  const Weight* bias = nullptr;  // [ratio, width] added to the gates
  const Weight* norm = nullptr;  // [dim]
  float norm_eps = 1e-6F;
  TailRope rope;  // at the window's first position
  StoredRounding rounding = StoredRounding::kNone;

  int width() const { return reach == Reach::kOwnWindow ? dim : 2 * dim; }
  // Positions before a window's last one that its entry reads.
  int lookback() const { return (reach == Reach::kOwnWindow ? 1 : 2) * ratio - 1; }
};

// The top_k visible entries of each token by sum_h weight_h relu(q_h . key), the lower on a tie.
struct EntryChoiceSpec {
  HistoryRows keys;  // float32
  int ratio = 0;
  int heads = 0;
  int dim = 0;
  int top_k = 0;
  float scale = 1.0F;  // multiplies the scores
  TailRope rope;
  StoredRounding rounding = StoredRounding::kNone;  // of the queries
};

struct WindowAttentionSpec {
  int heads = 0;  // queries; keys and values are one row for all of them
  int head_dim = 0;
  int window = 0;  // positions that a token sees uncompressed, itself included
  float scale = 0.0F;
  TailRope rope;  // undone on the output, at the token's position
  enum class QueryNorm { kNone, kRms } query_norm = QueryNorm::kNone;  // per head, no weight
  const Weight* kv_norm = nullptr;
  const Weight* sinks = nullptr;  // [heads] logits of a key without value
  float norm_eps = 1e-6F;
  StoredRounding rounding = StoredRounding::kNone;
  WindowRing ring;      // rows of Backend::kv_element_bytes per element
  HistoryRows entries;  // group -1: the window is all there is
  int ratio = 0;
};
struct WindowAttentionArgs {
  float* q = nullptr;   // [tokens, heads, head_dim]; normed and rotated in place
  float* kv = nullptr;  // [tokens, head_dim]; normed, rotated and rounded in place
  // Entries of each token [tokens, selected_stride], ascending; nullptr: every visible one.
  const int32_t* selected = nullptr;
  const int32_t* selected_count = nullptr;  // [tokens]
  int selected_stride = 0;
  float* out = nullptr;  // [tokens, heads, head_dim]; zero for dead tokens
};

// History rows hold an entry for each 16 tokens at most, so that a block of any size holds whole
// rows: the entry of a longer window lies in the row of its last tokens, the others stay unused.
constexpr int EntryRatio(int ratio) { return std::gcd(ratio, 16); }
constexpr int EntryRow(int entry, int ratio) {
  return ((entry + 1) * ratio - 1) / EntryRatio(ratio);
}
// Elements of a stored row of `dim`.
constexpr int EntryElements(int dim) { return (dim + 15) / 16 * 16; }

// The neighbouring tokens (t, t + 1) of a step as a step of their own, for a draft layer that takes
// the streams of t and the embedding of t + 1: position of t, id of t + 1. A row's first pair
// starts at the token before the step, if there is one.
struct PairStep {
  StepInput step;
  const int32_t* source = nullptr;  // [tokens] t in the step, -1: before it; nullptr: all before it
};

class CompressedOps {
 public:
  virtual ~CompressedOps() = default;
  virtual void CollapseHead(const HeadCollapseArgs& args) = 0;
  // Writes the entries that the step completes, then its last rows into the ring; kv and gate
  // [tokens, width].
  virtual void WriteWindows(const StepInput& step, const CompressorSpec& spec, const float* kv,
                            const float* gate) = 0;
  // q [tokens, heads, dim] is rotated and rounded in place; weight [tokens, heads]; selected
  // [tokens, top_k] ascending, count [tokens].
  virtual void ChooseEntries(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                             const float* weight, int32_t* selected, int32_t* count) = 0;
  // Attends, then writes the step's last rows into the ring.
  virtual void Attend(const StepInput& step, const WindowAttentionSpec& spec,
                      const WindowAttentionArgs& args) = 0;
  // Norms, rotates and rounds kv rows and writes them into the ring, nothing else.
  virtual void StoreWindow(const StepInput& step, const WindowAttentionSpec& spec, float* kv) = 0;

  // Valid until the next call.
  virtual PairStep TakePairs(const StepInput& step) = 0;
  // out [pairs, width] = rows of x [tokens of the step, width] by source, or of the ring (float32).
  virtual void GatherPairs(const PairStep& pairs, const WindowRing& ring, int64_t width,
                           const float* x, float* out) = 0;
  // The last rows of x into the ring.
  virtual void StorePairs(const StepInput& step, const WindowRing& ring, int64_t width,
                          const float* x) = 0;
  // x[t, i] += row[t] for every stream i.
  virtual void AddToStreams(const StreamShape& shape, const float* row, float* x) = 0;
};

}  // namespace deepinfer
