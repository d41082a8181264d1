#include "backend/cuda/cuda_latent_stage.h"

#include <algorithm>

#include "backend/cuda/sparse/step_views.h"
#include "backend/cuda/sparse/window_kernel.h"

namespace deepinfer::cuda {

void CudaLatentStage::Run(const StepInput& step, const LatentAttentionSpec& spec,
                          const LatentAttentionArgs& args) {
  const int tokens = step.shape.num_tokens;
  if (tokens == 0) return;
  const int padded = LatentRowElements(spec.latent, spec.rope_dim);
  const int q_dim = spec.latent + spec.rope_dim;
  const StepAt at = ViewOf(step);
  const HistoryAt rows =
      HistoryView(step, {spec.group, spec.layer}, int64_t{padded} * (context_->float32 ? 4 : 2));
  float* queries = queries_.Floats(int64_t{tokens} * spec.heads * q_dim);
  WriteLatents({.step = at,
                .rows = rows,
                .rope = RopeView(spec.inv_freq, spec.rope_dim / 2, spec.rope_factor),
                .halves = spec.rope_style == RopeStyle::kHalves,
                .q = args.q,
                .rotated = queries + spec.latent,
                .kv = args.kv,
                .norm = Vector(spec.latent_norm),
                .heads = spec.heads,
                .nope_dim = spec.nope_dim,
                .latent = spec.latent,
                .norm_eps = spec.norm_eps,
                .float32 = context_->float32,
                .padded = padded},
               context_->stream);
  absorb_.Run(*spec.key_up, args.q, spec.nope_dim + spec.rope_dim, tokens, queries, q_dim);
  RowAttentionAt attend{};
  attend.kind = kListHistory;
  attend.step = at;
  attend.q = queries;
  attend.out = values_.Floats(int64_t{tokens} * spec.heads * spec.latent);
  attend.heads = spec.heads;
  attend.q_dim = q_dim;
  attend.row_dim = padded;
  attend.value_dim = spec.latent;
  attend.scale = spec.scale;
  attend.float32 = context_->float32;
  attend.entries = rows;
  attend.ratio = 1;
  attend.entry_ratio = 1;
  attend.block = 1;
  attend.rows_max = std::max(1, step.shape.kv_len_max);
  attention_.Attend(attend, context_->stream);
  raise_.Run(*spec.value_up, attend.out, spec.latent, tokens, args.out, spec.value_dim);
}

}  // namespace deepinfer::cuda
