#include "engine/spec/model_drafter.h"

#include <algorithm>

#include "engine/sampler.h"

namespace deepinfer {

ModelDrafter::ModelDrafter(Model* model) : model_(model), block_(model->draft_info().block) {
  model->EnableDrafting();
}

int32_t ModelDrafter::Choose(void* context, int row, int place, float* logits) {
  const DraftRow& draft = static_cast<const DraftRow*>(context)[row];
  if (place >= draft.drafts_max) return 0;  // not verified
  const TokenId id = draft.sampler->Propose(logits, int64_t{draft.position} + 1 + place);
  draft.drafts->ids[static_cast<size_t>(place)] = id;
  draft.drafts->count = place + 1;
  return id;
}

void ModelDrafter::Propose(std::span<DraftRow> rows, const DraftMemory& memory) {
  const size_t count = rows.size();
  if (count == 0) return;
  for (std::vector<int32_t>* array : {&anchor_, &position_, &slot_, &suffix_begin_}) {
    array->resize(count);
  }
  token_.resize(count * static_cast<size_t>(block_));
  confidence_.resize(token_.size());
  int places = 0;
  for (size_t i = 0; i < count; ++i) {
    anchor_[i] = rows[i].anchor;
    position_[i] = rows[i].position;
    slot_[i] = rows[i].slot;
    suffix_begin_[i] = rows[i].suffix_begin;
    rows[i].drafts_max = std::min(rows[i].drafts_max, block_);
    places = std::max(places, rows[i].drafts_max);
  }
  DraftInput input;
  input.rows = static_cast<int>(count);
  input.places = places;
  input.anchor = anchor_.data();
  input.position = position_.data();
  input.slot = slot_.data();
  input.suffix_begin = suffix_begin_.data();
  input.cache_slots = memory.cache_slots;
  input.layout = memory.layout;
  input.choose = Choose;
  input.context = rows.data();
  model_->DraftBlock(input, {token_.data(), confidence_.data()});
  for (DraftRow& row : rows) {
    for (int i = row.drafts->count; i-- > 0;) {
      row.sampler->Forget(row.drafts->ids[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace deepinfer
