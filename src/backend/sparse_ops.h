// Stages of models with hyper-connections, window + selected attention over shared compressed
// entries, and n-gram memories (DeepSeek V4.1 and its relatives). A device offers them all or none
// (Backend::sparse_ops). Called like Backend's stages: by the runner thread, in order; a row's
// result depends on nothing but its own sequence. Tokens of kind kDead are skipped: their outputs
// are zero or unset and nothing of theirs is stored. All pointers are device memory.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace deepinfer {

// Interleaved pairs (2i, 2i + 1) of the last `dim` channels are rotated.
struct TailRope {
  const float* inv_freq = nullptr;  // [dim / 2]
  int dim = 0;
};

// ---- hyper-connections: `streams` residual rows of `hidden` per token

struct StreamShape {
  int rows = 0;     // tokens
  int streams = 0;  // at most kStreamsMax
  int hidden = 0;
};
inline constexpr int kStreamsMax = 8;

// Coefficients of a site from raw = fn * flatten(streams), unnormalised, [rows, s (s + 2)]:
//   m = raw / rms(flatten(streams));  pre = sigmoid(m scale0 + base) + hc_eps
//   post = 2 sigmoid(m scale1 + base);  comb = Sinkhorn(softmax of rows(m scale2 + base))
struct StreamMixArgs {
  StreamShape shape;
  const float* x = nullptr;  // [rows, streams, hidden]
  const float* raw = nullptr;
  const Weight* base = nullptr;   // vector [s (s + 2)]
  const Weight* scale = nullptr;  // vector [3]
  int sinkhorn_iters = 1;
  float norm_eps = 0.0F;
  float hc_eps = 0.0F;
  float* pre = nullptr;   // [rows, s]
  float* post = nullptr;  // [rows, s]
  float* comb = nullptr;  // [rows, s, s]
};

// ---- attention

// A ring of window rows (FP8 codes and scales, tensor/fake_quant.h) in a state group.
struct WindowRing {
  int group = 0;  // state group
  int layer = 0;  // in it
};
// A layer of a history group.
struct HistoryRows {
  int group = -1;  // -1: none
  int layer = 0;
};

struct WindowSpec {
  int heads = 0;
  int dim = 0;  // of a head, and of the one shared row that is key and value
  int window = 0;
  TailRope rope;
  float scale = 0.0F;
  const Weight* kv_norm = nullptr;
  float norm_eps = 0.0F;
  const Weight* sink = nullptr;  // vector [heads]: enlarges the denominator
  WindowRing ring;
  HistoryRows entries;  // selected rows, FP4 codes and scales; group -1: window alone
  int ratio = 1;        // tokens per entry
};

struct WindowArgs {
  float* q = nullptr;                 // [tokens, heads, dim], rotated in place by EncodeWindow
  const float* kv = nullptr;          // [tokens, dim] before norm
  std::byte* rows = nullptr;          // [tokens, row bytes] of this step, written by EncodeWindow
  const int32_t* begin = nullptr;     // [num_rows] no window row lies before it; nullptr: 0
  const int32_t* selected = nullptr;  // [tokens, top_k] entry numbers ascending
  const int32_t* selected_count = nullptr;  // [tokens]
  int top_k = 0;
  float* out = nullptr;  // [tokens, heads, dim], rotated back
};

// Queries of a draft block: all see the window before `position` and every row of the block.
struct DraftWindowArgs {
  int rows = 0;
  int block = 0;                      // query tokens of a row
  const int32_t* position = nullptr;  // [rows] of the first query token
  const int32_t* slot = nullptr;      // [rows]
  const int32_t* begin = nullptr;     // [rows] or nullptr: 0
  std::byte* cache_slots = nullptr;
  const CacheLayout* layout = nullptr;
  float* q = nullptr;            // [rows, block, heads, dim]
  const float* kv = nullptr;     // [rows, block, dim] before norm
  std::byte* encoded = nullptr;  // [rows, block, row bytes] scratch
  float* out = nullptr;          // [rows, block, heads, dim]
};

// Latents of groups of `ratio` tokens at absolute positions: softmax over the group of the gates,
// per channel, times k; normed. The rows of an unfinished group wait in `tail`.
struct CompressSpec {
  int dim = 0;
  int ratio = 1;       // 1 or 2
  int tail_group = 0;  // state group of [k, gate] float rows; ratio > 1
  int tail_layer = 0;
  const Weight* norm = nullptr;
  float norm_eps = 0.0F;
};
struct CompressArgs {
  const float* k = nullptr;     // [tokens, dim]
  const float* gate = nullptr;  // [tokens, dim]; ratio > 1
  float* latent = nullptr;      // [tokens, dim]; zero where the token completes no group
};

// Writes the entries and index keys of the groups that complete in this step.
struct EntrySpec {
  int dim = 0;
  int key_dim = 0;
  int ratio = 1;
  TailRope rope;  // of entry and key, at position entry * ratio
  const Weight* key_norm = nullptr;
  float norm_eps = 0.0F;
  HistoryRows entries;
  HistoryRows keys;
};
struct EntryArgs {
  const float* latent = nullptr;  // [tokens, dim]
  float* key = nullptr;           // [tokens, key_dim] Wk latent; overwritten
};

enum class CandidateUse { kNone, kBuild, kLimit };

// Scores of every visible entry: sum over heads of weight * relu(q . key), and the best of them.
struct IndexSpec {
  int heads = 0;
  int dim = 0;
  int ratio = 1;
  int top_k = 0;
  TailRope rope;  // of q
  HistoryRows keys;
  CandidateUse candidates = CandidateUse::kNone;
  int block_size = 1;        // consecutive entries of a candidate block
  int candidate_blocks = 0;  // blocks kept
};
struct IndexArgs {
  float* q = nullptr;                  // [tokens, heads, dim], rotated and quantised in place
  const float* weight = nullptr;       // [tokens, heads]
  int32_t* selected = nullptr;         // [tokens, top_k] ascending; equal scores: the lower first
  int32_t* selected_count = nullptr;   // [tokens]
  int32_t* candidate = nullptr;        // [tokens, candidate_blocks] ascending
  int32_t* candidate_count = nullptr;  // [tokens]
};

// y = concat over groups g of W[g] x_g, into the input of the next linear stage.
struct GroupedLinearArgs {
  const float* x = nullptr;  // [rows, groups, cols]
  int rows = 0;
  const Weight* weight = nullptr;  // experts [groups, out, cols]
  Activation* out = nullptr;       // [rows, groups * out]
};

// ---- n-gram memory

// Hashes of the last `ngram` compressed ids of every token into table rows, per table.
struct NgramTable {
  std::span<const int64_t> multiplier;  // [ngram]
  std::span<const int64_t> prime;       // [ngram - 1, heads]
  std::span<const int64_t> offset;      // [ngram - 1, heads]
};
struct NgramSpec {
  std::span<const int32_t> token_map;  // id -> compressed id
  int32_t pad = 0;                     // compressed
  int ngram = 0;
  int heads = 0;
  int state_group = 0;  // int32 per position: the compressed id, -1 for a dead token
  std::span<const NgramTable> tables;
};

struct NgramGateArgs {
  StreamShape shape;
  float* x = nullptr;                // [rows, streams, hidden]; gate * value is added
  const float* kv = nullptr;         // [rows, (streams + 1) * hidden]: a key per stream, the value
  const Weight* q_weight = nullptr;  // [streams, hidden] as a vector
  const Weight* k_weight = nullptr;
  const TokenKind* kind = nullptr;  // [rows]; image tokens add nothing
  float norm_eps = 0.0F;
};

class SparseOps {
 public:
  virtual ~SparseOps() = default;

  // x[t, i] = embedded[t] for every stream i; pre = 1 for stream 0, 0 for the others.
  virtual void StartStreams(const StreamShape& shape, const float* embedded, float* x,
                            float* pre) = 0;
  virtual void StreamMix(const StreamMixArgs& args) = 0;
  // out [rows, hidden] = sum_i pre_i x_i
  virtual void Collapse(const StreamShape& shape, const float* x, const float* pre, float* out) = 0;
  // x_k = post_k y + sum_j comb[j, k] x_j
  virtual void Expand(const StreamShape& shape, const float* y, const float* post,
                      const float* comb, float* x) = 0;
  // out [rows, stride] columns [0, hidden) = mean of the streams
  virtual void StreamMean(const StreamShape& shape, const float* x, float* out, int64_t stride) = 0;

  // Rotates q; norms, rotates and encodes kv into args.rows.
  virtual void EncodeWindow(const StepInput& step, const WindowSpec& spec,
                            const WindowArgs& args) = 0;
  // Attends over window and selected rows, then stores the step's last rows in the ring.
  virtual void WindowAttention(const StepInput& step, const WindowSpec& spec,
                               const WindowArgs& args) = 0;
  // Norms, rotates and stores kv rows alone (a draft layer's context).
  virtual void StoreWindow(const StepInput& step, const WindowSpec& spec,
                           const WindowArgs& args) = 0;
  virtual void DraftWindowAttention(const WindowSpec& spec, const DraftWindowArgs& args) = 0;

  virtual void Compress(const StepInput& step, const CompressSpec& spec,
                        const CompressArgs& args) = 0;
  virtual void WriteEntries(const StepInput& step, const EntrySpec& spec,
                            const EntryArgs& args) = 0;
  virtual void IndexSelect(const StepInput& step, const IndexSpec& spec, const IndexArgs& args) = 0;
  // Time that IndexSelect has taken so far to score keys and to choose among them: the part of a
  // step that grows with its context. Any thread.
  virtual int64_t index_scan_us() const = 0;
  virtual void GroupedLinear(const GroupedLinearArgs& args) = 0;

  // rows[table] [tokens, (ngram - 1) * heads]; writes the state of the step's tokens.
  virtual void NgramRows(const StepInput& step, const NgramSpec& spec,
                         std::span<int64_t* const> rows) = 0;
  // Rows of a table that stays in its file: starts fetching those of `ids` [count]; later the same
  // ids to out [count, table.cols()].
  virtual void PrefetchRows(RowTable* table, const int64_t* ids, int64_t count) = 0;
  virtual void GatherRows(RowTable* table, const int64_t* ids, int64_t count, float* out) = 0;
  virtual void NgramGate(const NgramGateArgs& args) = 0;

  // The tokens at or after suffix_begin as a step of their own, and their index in `step`: rows
  // keep their number, rows without such a token have none. Valid until the next call.
  struct Suffix {
    StepInput step;
    const int32_t* index = nullptr;  // [step.shape.num_tokens]
  };
  virtual Suffix TakeSuffix(const StepInput& step) = 0;
  // to[i] = from[index[i]]; rows of `cols` floats.
  virtual void Gather(const float* from, const int32_t* index, int rows, int64_t cols,
                      float* to) = 0;
  // All `to_rows` rows of `to` become NaN but to[index[i]] = from[i].
  virtual void Scatter(const float* from, const int32_t* index, int rows, int64_t cols, float* to,
                       int to_rows) = 0;
};

}  // namespace deepinfer
