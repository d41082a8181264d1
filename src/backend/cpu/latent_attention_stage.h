// Attention over a cache of latents (backend/latent_ops.h). Owned by CpuBackend; called on the
// runner thread. A cache row holds [latent, rotated part, zeros up to 16 elements]; it is the value
// as it lies and, transposed a tile at a time, the key, so the kernels and the order of arithmetic
// are those of AttentionStage (row_kernels.h): steps of 64 keys, splits of 256 merged ascending.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/grouped_products.h"
#include "backend/cpu/rope_table.h"
#include "backend/latent_ops.h"

namespace deepinfer::cpu {

class LatentAttentionStage {
 public:
  LatentAttentionStage(const CpuContext* context, ProductStage* products)
      : context_(context), queries_in_(products), values_in_(products) {}
  void Run(const StepInput& step, const LatentAttentionSpec& spec, const LatentAttentionArgs& args);

 private:
  // Query tokens [begin, end) of a row under heads [head, head + heads).
  struct Item {
    int row;
    int begin;
    int end;
    int head;
    int heads;
    int keys;         // that any of them sees
    int first_split;  // of this item in split_item_
    int splits;
  };
  // Of one thread.
  struct Workspace {
    float* total = nullptr;  // states
    float* part = nullptr;
    float* q = nullptr;  // query rows of an item, scaled
    std::byte* keys = nullptr;
    int32_t* visible = nullptr;  // keys of a step that each row sees
  };
  struct State;  // running maximum, sum and output of the rows of an item

  void WriteTokens(const StepInput& step, const LatentAttentionSpec& spec,
                   const LatentAttentionArgs& args);
  void WriteToken(const StepInput& step, const LatentAttentionSpec& spec,
                  const LatentAttentionArgs& args, int token) const;
  void AbsorbQueries(const LatentAttentionSpec& spec, const LatentAttentionArgs& args, int first,
                     int count);
  void Attend(const StepInput& step, const LatentAttentionSpec& spec,
              const LatentAttentionArgs& args, int first, int count);
  void RaiseValues(const StepInput& step, const LatentAttentionSpec& spec,
                   const LatentAttentionArgs& args, int first, int count);

  void PlanItems(const StepInput& step, const LatentAttentionSpec& spec, int first, int count);
  void ReserveWorkspaces(const LatentAttentionSpec& spec);
  void LoadQuery(const LatentAttentionSpec& spec, const LatentAttentionArgs& args, const Item& item,
                 float* out) const;
  void AttendSplit(const StepInput& step, const LatentAttentionSpec& spec, const Item& item,
                   int split, const Workspace& work, const State& state) const;
  void MergeRows(int rows, const State& part, const State& total) const;
  void StoreOutput(const StepInput& step, const LatentAttentionSpec& spec, const Item& item,
                   const State& state);
  void RunWhole(const StepInput& step, const LatentAttentionSpec& spec,
                const LatentAttentionArgs& args, const Item& item, const Workspace& work);
  void RunSplit(const StepInput& step, const LatentAttentionSpec& spec,
                const LatentAttentionArgs& args, int split_item, const Workspace& work);

  const CpuContext* context_;
  RopeTable rope_;

  // The slab of tokens in work: [heads, tokens] rows, as the products of a head read them.
  int slab_first_ = 0;
  int slab_count_ = 0;
  GroupedProducts queries_in_;     // nope_dim each
  GroupedProducts values_in_;      // latent each
  ActRows* value_rows_ = nullptr;  // input of values_in_
  Floats queries_;                 // [heads, tokens, latent]
  Floats values_;                  // [heads, tokens, value_dim]

  int dim_ = 0;  // elements of a cache row
  int64_t row_bytes_ = 0;
  std::vector<Item> items_;
  std::vector<int> split_item_;                      // item of each split
  std::unique_ptr<std::atomic<int>[]> splits_left_;  // [items]
  size_t splits_left_size_ = 0;
  int64_t state_size_ = 0;
  Floats partials_;  // [splits] states
  Floats scratch_;   // behind workspaces_
  std::vector<int32_t> visible_;
  std::vector<Workspace> workspaces_;  // [threads]
};

}  // namespace deepinfer::cpu
