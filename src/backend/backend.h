// The device seam: memory, weights and operators (stages) of one device.
// A stage is the work between two points where all rows meet; a backend fuses inside a stage.
// Every call is made by one runner thread, in order; nothing above backend/ knows which device
// runs. Numeric contract (ARCHITECTURE.md): the result of a row depends on configuration and
// absolute position alone, never on the other rows of the step, chunking or thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "backend/row_table.h"
#include "backend/step_input.h"
#include "deepinfer/status.h"
#include "tensor/tensor_file.h"

namespace deepinfer {

// Arithmetic of the whole forward. kAuto: the fast path of the device; kFloat32: reference
// arithmetic everywhere (weights decoded to float32, float32 KV).
enum class ComputeDtype { kAuto, kFloat32 };

enum class WeightRole {
  kLinear,     // [out, in] matrix read by Linear and Head
  kEmbedding,  // [vocab, hidden] read by row
  kVector,     // norm or bias, kept as float32
  kExperts,    // [experts, out, in]
  kGroups,     // the same, and every row uses all of them: BindGroups
};

// Handle of a bound weight. Models never see packed bytes.
class Weight {
 public:
  virtual ~Weight() = default;
  int64_t rows = 0;  // out (of one expert)
  int64_t cols = 0;  // in; 1 for vectors
  int64_t experts = 1;
  size_t packed_bytes = 0;
};

// Rows prepared as input of linear stages: the normed rows, quantised once into every format that
// the weights named at creation read. Grown to the largest row count seen; owned by the model.
class Activation {
 public:
  virtual ~Activation() = default;
};

enum class Epilogue {
  kStore,    // out = y (+ bias)
  kAdd,      // out += y (+ bias)
  kSiluMul,  // weights = {gate, up}: out = silu(gate) * up, one output
};

// y[i] = input * weights[i]^T for every weight, as one stage.
struct LinearArgs {
  const Activation* input = nullptr;
  int rows = 0;
  std::span<const Weight* const> weights = {};
  std::span<const Weight* const> biases = {};  // empty, or one per weight (nullptr: none)
  std::span<float* const> outputs = {};        // [rows, weight.rows], stride weight.rows
  Epilogue epilogue = Epilogue::kStore;
  float gate_limit = 0.0F;  // kSiluMul, > 0: gate at most this, up within +-this
};

enum class RopeStyle {
  kHalves,       // pairs (i, i + d/2): Hugging Face layout
  kInterleaved,  // pairs (2i, 2i + 1): GGUF llama layout
};

struct AttentionSpec {
  int layer = 0;  // index into the history group
  int heads = 0;  // query heads, a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;    // even
  float scale = 0.0F;  // multiplies q . k
  RopeStyle rope_style = RopeStyle::kHalves;
  int rope_dim = 0;                 // first rope_dim elements of a head are rotated
  const float* inv_freq = nullptr;  // [rope_dim / 2], host memory, scaling already applied
  float rope_factor = 1.0F;         // multiplies cos and sin (YaRN attention factor)
  const Weight* q_norm = nullptr;   // per-head RMSNorm before rope (Qwen3), or nullptr
  const Weight* k_norm = nullptr;
  float norm_eps = 1e-6F;
};

enum class RouterScoring {
  kSoftmax,       // over all experts
  kSigmoid,       // of each logit
  kSqrtSoftplus,  // sqrt(ln(1 + e^x))
};

// How the router's logits become experts and weights, beyond the softmax top-k of MoeArgs.
struct RouterSpec {
  RouterScoring scoring = RouterScoring::kSoftmax;
  const Weight* bias = nullptr;  // [experts] added to the scores for the choice alone
  // The bias of rows whose kind is kImage; both nullptr: `bias` for all.
  const Weight* image_bias = nullptr;
  const TokenKind* kind = nullptr;  // [rows]
  // Experts in groups of equal size: only those of the group_top_k best groups, by the sum of a
  // group's two best biased scores, can be chosen.
  int groups = 1;
  int group_top_k = 1;
  float normalize_eps = 0.0F;  // added to the sum that normalize_top_k divides by
  float scale = 1.0F;          // multiplies the weights
  // The choice is a function of the token instead; ids within the range of the router.
  const int32_t* token_experts = nullptr;  // [token_count, top_k], host memory
  int32_t token_count = 0;
  const int32_t* token = nullptr;  // [rows]
};

// Router and its experts; adds the result to `out`. The plain router is a softmax top-k.
struct MoeArgs {
  const Activation* input = nullptr;  // prepared for router, gate and up
  int rows = 0;
  const Weight* router = nullptr;  // [experts, hidden]
  const Weight* gate = nullptr;    // experts [E, inter, hidden]
  const Weight* up = nullptr;
  const Weight* down = nullptr;  // experts [E, hidden, inter]
  int top_k = 0;
  bool normalize_top_k = true;  // weights of the chosen experts sum to one
  float* out = nullptr;         // [rows, hidden], added to
  RouterSpec routing = {};
  float gate_limit = 0.0F;  // > 0: gate at most this, up within +-this, before silu(gate) * up
};

struct BackendInfo {
  std::string name;  // "cpu"
  std::string isa;   // "scalar", "avx2", "avx512", "amx"
  int threads = 1;
  RowIo row_io = RowIo::kAuto;  // how models fetch rows of tables
  bool host_memory = true;      // stages work on any memory of the host
};

// Of weights that are packed at first use; all zero when there are none.
struct WeightCacheStats {
  int64_t limit_bytes = 0;
  int64_t known_bytes = 0;    // packed size of all that may come
  int64_t touched_bytes = 0;  // packed size of all that were ever needed
  int64_t bytes = 0;          // packed now
  int64_t lookups = 0;        // matrices that products needed
  int64_t hits = 0;           // of these, packed already
  int64_t streams = 0;        // of these, packed for one product and forgotten
  int64_t loads = 0;          // of these, packed to stay
  int64_t evictions = 0;      // matrices that made room
  int64_t load_us = 0;        // time that products waited for packing
};

class SparseOps;             // backend/sparse_ops.h
class CompressedOps;         // backend/compressed_ops.h
struct LatentAttentionSpec;  // backend/latent_ops.h
struct LatentAttentionArgs;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  // Zeroed memory of the device. On a CPU it costs physical pages only once touched; elsewhere the
  // host may not look into it. Freed by the destructor of the returned pointer, which must not
  // outlive the backend.
  struct FreeBuffer {
    size_t bytes = 0;
    void (*free)(std::byte* data, size_t bytes) = nullptr;
    void operator()(std::byte* data) const {
      if (data != nullptr) free(data, bytes);
    }
  };
  using Buffer = std::unique_ptr<std::byte, FreeBuffer>;
  virtual Result<Buffer> Allocate(size_t bytes) = 0;
  // The same, for small arrays that host and stages both read and write. The host touches them only
  // while no stage that uses them can be running: after Synchronize.
  virtual Result<Buffer> AllocateShared(size_t bytes) { return Allocate(bytes); }
  // Memory that Allocate can still give; -1: what the host has.
  virtual int64_t free_bytes() const { return -1; }
  // Copies between any two memories, as a stage. They do not overlap.
  virtual void Copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
  // Returns when all stages called so far are done.
  virtual void Synchronize() {}

  // Packs `view` for this device in call order and drops its source pages from `file`.
  // Errors: a shape or type that the device does not support, NaN scales.
  virtual Result<std::unique_ptr<Weight>> Bind(const TensorFile& file, const TensorView& view,
                                               WeightRole role) = 0;
  // The same for the experts of one MoE matrix given one by one, [out, in] each, of one shape and
  // type: checkpoints store them apart or stacked, and Checkpoint::Experts yields views of either.
  // The result is a kExperts weight, expert i from experts[i].
  virtual Result<std::unique_ptr<Weight>> BindExperts(const TensorFile& file,
                                                      std::span<const TensorView> experts) = 0;
  // As BindExperts, for matrices that every row uses: packed at once whatever the limit of experts.
  virtual Result<std::unique_ptr<Weight>> BindGroups(const TensorFile& file,
                                                     std::span<const TensorView> groups) {
    return BindExperts(file, groups);
  }

  // Any thread.
  virtual WeightCacheStats weight_cache_stats() const { return {}; }

  // A thread beside the runner needs a core for a moment: a device that computes on all of them
  // leaves one from LendCore (runner thread) to ReturnCore (any thread).
  virtual void LendCore() {}
  virtual void ReturnCore() {}

  // Bytes of one cache row element of history groups (K and V each): 2 (f16) or 4 (float32 mode).
  virtual int kv_element_bytes() const = 0;

  // An input of `cols` columns for exactly these readers.
  virtual std::unique_ptr<Activation> CreateActivation(int64_t cols,
                                                       std::span<const Weight* const> readers) = 0;

  // out[t] = embedding row of token[t]; out [tokens, hidden].
  virtual void Embed(const Weight& embedding, const int32_t* token, int tokens, float* out) = 0;
  // Prepares rows x[row_index[i]] (row_index nullptr: x[i]) of [*, cols], RMS-normed by `norm`
  // (nullptr: as they are).
  virtual void NormQuantize(const float* x, const int32_t* row_index, int rows, const Weight* norm,
                            float eps, Activation* out) = 0;
  // out [cols] in host memory: row x[row] of [*, cols], RMS-normed by `norm`. False: this device
  // has no such operator, and then it has none for any arguments; cols 0 asks for just that.
  virtual bool NormRow(const float* /*x*/, int /*row*/, int64_t /*cols*/, const Weight& /*norm*/,
                       float /*eps*/, float* /*out*/) {
    return false;
  }
  virtual void Linear(const LinearArgs& args) = 0;
  // Norms and rotates q and k in place, writes k and v to the cache at each token's position.
  // q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]. Dead tokens are skipped.
  virtual void RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q, float* k,
                            const float* v) = 0;
  // Causal attention of every query token over its row's cache; out [tokens, heads, head_dim].
  virtual void Attention(const StepInput& step, const AttentionSpec& spec, const float* q,
                         float* out) = 0;
  // Writes the latents of the step's tokens to the cache and attends over them, absorbed up
  // projections included.
  virtual void LatentAttention(const StepInput& step, const LatentAttentionSpec& spec,
                               const LatentAttentionArgs& args) = 0;
  virtual void Moe(const MoeArgs& args) = 0;
  // The stages of sparse models; nullptr where the device has none.
  virtual SparseOps* sparse_ops() { return nullptr; }
  virtual CompressedOps* compressed_ops() { return nullptr; }
  // Copies whole blocks inside the pool: pairs (source, destination).
  virtual void CopyBlocks(const StepInput& step,
                          std::span<const std::pair<int32_t, int32_t>> pairs) = 0;
  // Runs body(i) for i in [0, count) on the device's host threads (sampling rows).
  virtual void ParallelRows(int count, void (*body)(void* context, int i), void* context) = 0;
};

constexpr int64_t kWeightCacheAuto = -1;

struct BackendOptions {
  std::string device = "auto";  // auto | cpu | cuda
  int threads = 0;              // 0: one per available core
  ComputeDtype dtype = ComputeDtype::kAuto;
  // Limit of packed experts (BindExperts): 0 packs all when bound; more packs an expert when it is
  // first chosen and lets the least used go; kWeightCacheAuto: by the size of the files, the type
  // of the experts and the memory that is free (DecideWeightCache).
  int64_t weight_cache_bytes = 0;
  RowIo row_io = RowIo::kAuto;
  std::string cpu_isa = {};  // "", scalar, avx2, avx512, amx (DEEPINFER_CPU_ISA)
  // For tests that look into the memory of a device: all of it is the host's, if slow.
  enum class Memory { kDevice, kHost } memory = Memory::kDevice;
};

// The explicit table of devices. Errors name what was asked and what this machine has.
Result<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace deepinfer
