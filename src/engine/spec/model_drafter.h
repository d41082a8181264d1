// Drafts by the draft layers of the checkpoint (Model::DraftBlock). Their places are sampled like
// the target's, by the same noise, so that a draft equals the target's token wherever both
// distributions lead there. Runner thread; the model must outlive it.
#pragma once

#include <vector>

#include "engine/spec/drafter.h"
#include "models/model.h"

namespace deepinfer {

class ModelDrafter final : public Drafter {
 public:
  // model->draft_info().block > 0; before the model's first Forward.
  explicit ModelDrafter(Model* model);
  bool NeedsHistory() const override { return false; }
  void Propose(std::span<DraftRow> rows, const DraftMemory& memory) override;

 private:
  static int32_t Choose(void* context, int row, int place, float* logits);

  Model* const model_;
  const int block_;
  std::vector<int32_t> anchor_, position_, slot_, suffix_begin_, token_;
  std::vector<float> confidence_;
};

}  // namespace deepinfer
