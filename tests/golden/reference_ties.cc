#include "tests/golden/reference_ties.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "backend/compressed_ops.h"
#include "backend/latent_ops.h"
#include "base/check.h"

namespace deepinfer {
namespace {

class TiedChoice final : public CompressedOps {
 public:
  explicit TiedChoice(CompressedOps* real) : real_(real) {}
  void CollapseHead(const HeadCollapseArgs& args) override { real_->CollapseHead(args); }
  void WriteWindows(const StepInput& step, const CompressorSpec& spec, const float* kv,
                    const float* gate) override {
    real_->WriteWindows(step, spec, kv, gate);
  }
  void Attend(const StepInput& step, const WindowAttentionSpec& spec,
              const WindowAttentionArgs& args) override {
    real_->Attend(step, spec, args);
  }
  void StoreWindow(const StepInput& step, const WindowAttentionSpec& spec, float* kv) override {
    real_->StoreWindow(step, spec, kv);
  }
  PairStep TakePairs(const StepInput& step) override { return real_->TakePairs(step); }
  void GatherPairs(const PairStep& pairs, const WindowRing& ring, int64_t width, const float* x,
                   float* out) override {
    real_->GatherPairs(pairs, ring, width, x, out);
  }
  void StorePairs(const StepInput& step, const WindowRing& ring, int64_t width,
                  const float* x) override {
    real_->StorePairs(step, ring, width, x);
  }
  void AddToStreams(const StreamShape& shape, const float* row, float* x) override {
    real_->AddToStreams(shape, row, x);
  }
  void ChooseEntries(const StepInput& step, const EntryChoiceSpec& spec, float* q,
                     const float* weight, int32_t* selected, int32_t* count) override {
    real_->ChooseEntries(step, spec, q, weight, selected, count);
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      const int visible = (step.position[t] + 1) / spec.ratio;
      if (visible <= spec.top_k) continue;
      const int64_t cols = int64_t{spec.heads} * spec.dim;
      Exchange(step, spec, t, q + t * cols, weight + int64_t{t} * spec.heads,
               selected + int64_t{t} * spec.top_k);
    }
  }

 private:
  struct Scored {
    float score;
    int32_t entry;
  };

  const float* Key(const StepInput& step, const EntryChoiceSpec& spec, int row, int entry) const {
    const HistoryGroup& group = step.layout->history[static_cast<size_t>(spec.keys.group)];
    const int per_block = step.layout->block_tokens / group.ratio;
    const int index = EntryRow(entry, spec.ratio);
    const int32_t block = step.block_table[row * step.block_table_stride + index / per_block];
    return reinterpret_cast<const float*>(
        step.cache_blocks + block * step.layout->block_bytes() +
        step.layout->history_offset(static_cast<size_t>(spec.keys.group), spec.keys.layer) +
        index % per_block * group.row_bytes);
  }

  void Exchange(const StepInput& step, const EntryChoiceSpec& spec, int token, const float* q,
                const float* weight, int32_t* selected) const {
    const int row = step.token_row[token];
    const int visible = (step.position[token] + 1) / spec.ratio;
    std::vector<Scored> scored;
    for (int entry = 0; entry < step.kv_len[row] / spec.ratio; ++entry) {
      double score = -std::numeric_limits<double>::infinity();
      if (entry < visible) {
        const float* key = Key(step, spec, row, entry);
        score = 0.0;
        for (int head = 0; head < spec.heads; ++head) {
          double dot = 0.0;
          for (int i = 0; i < spec.dim; ++i) dot += double{q[head * spec.dim + i]} * double{key[i]};
          score += double{weight[head]} * std::max(0.0, dot);
        }
      }
      scored.push_back({static_cast<float>(score), entry});
    }
    ExpectBest(scored, visible, selected, spec.top_k);
    std::nth_element(scored.begin(), scored.begin() + spec.top_k - 1, scored.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    for (int i = 0; i < spec.top_k; ++i) selected[i] = scored[static_cast<size_t>(i)].entry;
    std::sort(selected, selected + spec.top_k);
  }

  // No entry left out scores more than one taken, but for rounding.
  static void ExpectBest(const std::vector<Scored>& scored, int visible, const int32_t* selected,
                         int top_k) {
    float worst_taken = std::numeric_limits<float>::infinity();
    float best_left = -std::numeric_limits<float>::infinity();
    for (int entry = 0; entry < visible; ++entry) {
      const float score = scored[static_cast<size_t>(entry)].score;
      if (std::binary_search(selected, selected + top_k, entry)) {
        worst_taken = std::min(worst_taken, score);
      } else {
        best_left = std::max(best_left, score);
      }
    }
    DI_CHECK(worst_taken >= best_left - 1e-5F, "entry of score {} taken, {} left", worst_taken,
             best_left);
  }

  CompressedOps* real_;
};

class TiesBackend final : public Backend {
 public:
  explicit TiesBackend(std::unique_ptr<Backend> real)
      : real_(std::move(real)), choice_(real_->compressed_ops()) {}
  const BackendInfo& info() const override { return real_->info(); }
  Result<Buffer> Allocate(size_t bytes) override { return real_->Allocate(bytes); }
  Result<std::unique_ptr<Weight>> Bind(const TensorFile& file, const TensorView& view,
                                       WeightRole role) override {
    return real_->Bind(file, view, role);
  }
  Result<std::unique_ptr<Weight>> BindExperts(const TensorFile& file,
                                              std::span<const TensorView> experts) override {
    return real_->BindExperts(file, experts);
  }
  int kv_element_bytes() const override { return real_->kv_element_bytes(); }
  std::unique_ptr<Activation> CreateActivation(int64_t cols,
                                               std::span<const Weight* const> readers) override {
    return real_->CreateActivation(cols, readers);
  }
  void Embed(const Weight& embedding, const int32_t* token, int tokens, float* out) override {
    real_->Embed(embedding, token, tokens, out);
  }
  void NormQuantize(const float* x, const int32_t* row_index, int rows, const Weight* norm,
                    float eps, Activation* out) override {
    real_->NormQuantize(x, row_index, rows, norm, eps, out);
  }
  void Linear(const LinearArgs& args) override { real_->Linear(args); }
  void RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q, float* k,
                    const float* v) override {
    real_->RopeAndCache(step, spec, q, k, v);
  }
  void Attention(const StepInput& step, const AttentionSpec& spec, const float* q,
                 float* out) override {
    real_->Attention(step, spec, q, out);
  }
  void LatentAttention(const StepInput& step, const LatentAttentionSpec& spec,
                       const LatentAttentionArgs& args) override {
    real_->LatentAttention(step, spec, args);
  }
  void Moe(const MoeArgs& args) override { real_->Moe(args); }
  SparseOps* sparse_ops() override { return real_->sparse_ops(); }
  CompressedOps* compressed_ops() override { return &choice_; }
  void CopyBlocks(const StepInput& step,
                  std::span<const std::pair<int32_t, int32_t>> pairs) override {
    real_->CopyBlocks(step, pairs);
  }
  void ParallelRows(int count, void (*body)(void* context, int i), void* context) override {
    real_->ParallelRows(count, body, context);
  }

 private:
  std::unique_ptr<Backend> real_;
  TiedChoice choice_;
};

}  // namespace

std::unique_ptr<Backend> WithReferenceTies(std::unique_ptr<Backend> real) {
  return std::make_unique<TiesBackend>(std::move(real));
}

}  // namespace deepinfer
