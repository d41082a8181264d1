// Router, experts and combine of one sparse layer. Tokens are sorted by expert; each row adds its
// experts in ascending order. Owned by CpuBackend; called on the runner thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/product_stage.h"

namespace deepinfer::cpu {

class MoeStage {
 public:
  MoeStage(const CpuContext* context, ProductStage* products)
      : context_(context), products_(products) {}
  void Run(const MoeArgs& args);

 private:
  struct Choice {
    int32_t expert;
    float weight;
    int32_t entry;  // place in the order by expert
  };

  void Route(const MoeArgs& args);
  void Score(const MoeArgs& args, float* logits) const;
  void KeepBestGroups(const MoeArgs& args, float* scores) const;
  static void TakeLargest(const float* values, int64_t experts, int top_k, Choice* choices);
  void ChooseExperts(const MoeArgs& args, int row, float* biased);
  void WeighChoices(const MoeArgs& args, const float* scores, Choice* choices) const;
  void SortByExpert(const MoeArgs& args);
  void RunExperts(const MoeArgs& args);
  void SpoilDamaged(std::span<const Product> products);
  void RunList();
  void Combine(const MoeArgs& args);
  ActRows* HiddenOf(const PackedMatrix& down);

  const CpuContext* context_;
  ProductStage* products_;
  Floats logits_;                      // [rows, experts], then scores
  Floats biased_;                      // [threads, experts]
  std::vector<Choice> choices_;        // [rows, top_k], experts ascending
  std::vector<int32_t> expert_begin_;  // [experts + 1] entries of each expert
  std::vector<int32_t> next_entry_;    // [experts]
  std::vector<int32_t> entry_row_;     // [rows * top_k]
  std::vector<int32_t> entry_index_;   // 0, 1, 2, ...
  std::vector<Product> list_;
  std::vector<WeightCache::Need> needs_;               // of list_
  Floats hidden_;                                      // [entries, inter]
  Floats outputs_;                                     // [entries, hidden]
  std::vector<std::unique_ptr<ActRows>> hidden_rows_;  // one per shape and format of down
};

}  // namespace deepinfer::cpu
