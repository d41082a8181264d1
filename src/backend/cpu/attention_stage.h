// Rope, cache write and attention over paged blocks. Owned by CpuBackend; called on the runner
// thread. Layout and order of the arithmetic are in row_kernels.h: keys in steps of 64, splits of
// 256 keys at absolute positions merged ascending, whatever the batch, chunking or threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_context.h"

namespace deepinfer::cpu {

class AttentionStage {
 public:
  explicit AttentionStage(const CpuContext* context) : context_(context) {}
  void RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q, float* k,
                    const float* v);
  void Attention(const StepInput& step, const AttentionSpec& spec, const float* q, float* out);

 private:
  // Query tokens [begin, end) of a row, under all query heads of one kv head.
  struct Item {
    int row;
    int kv_head;
    int begin;
    int end;
    int keys;         // that any of them sees
    int first_split;  // of this item in split_* below
    int splits;
  };
  // Keys of an item, to be fetched early.
  struct Place {
    const Item* item = nullptr;
    int key = 0;
  };
  // Of one thread.
  struct Workspace {
    float* total = nullptr;  // states
    float* part = nullptr;
    float* q = nullptr;          // scaled query rows of an item
    int32_t* visible = nullptr;  // keys of a step that each row sees
  };
  struct State;  // running maximum, sum and output of the rows of an item

  const RowKernels& Kernels(int head_dim) const;
  void PrepareRope(const StepInput& step, const AttentionSpec& spec);
  void RopeToken(const StepInput& step, const AttentionSpec& spec, int token, float* q, float* k,
                 const float* v) const;
  void PlanItems(const StepInput& step, const AttentionSpec& spec);
  void ReserveWorkspaces(const AttentionSpec& spec);
  void RunWhole(const StepInput& step, const AttentionSpec& spec, size_t index, const float* q,
                float* out, const Workspace& work) const;
  void RunSplits(const StepInput& step, const AttentionSpec& spec, const float* q, float* out);
  void RunSplit(const StepInput& step, const AttentionSpec& spec, int split_item, const float* q,
                float* out, const Workspace& work);
  void AttendSplit(const StepInput& step, const AttentionSpec& spec, const Item& item, int split,
                   const Place& after, const Workspace& work, const State& state) const;
  void MergeRows(const AttentionSpec& spec, int rows, const State& part, const State& total) const;
  void LoadQuery(const AttentionSpec& spec, const Item& item, const float* q, float* out) const;
  void StoreOutput(const StepInput& step, const AttentionSpec& spec, const Item& item,
                   const State& state, float* out) const;

  const CpuContext* context_;

  // cos and sin [tokens, half] each, for the positions and frequencies they were computed from.
  std::vector<float> cos_, sin_;
  std::vector<int32_t> rope_positions_;
  std::vector<float> rope_freq_;
  float rope_factor_ = 0.0F;

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
