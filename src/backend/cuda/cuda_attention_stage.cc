#include "backend/cuda/cuda_attention_stage.h"

#include "backend/cuda/attention/attention_kernel.h"
#include "backend/cuda/sparse/step_views.h"
#include "base/check.h"

namespace deepinfer::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896341F;

HistoryAt RowsOf(const StepInput& step, const AttentionSpec& spec, bool float32) {
  DI_CHECK(spec.head_dim % 8 == 0 && spec.head_dim <= kHeadDimMost && spec.rope_dim % 2 == 0,
           "heads of {} elements", spec.head_dim);
  return HistoryView(step, {.group = 0, .layer = spec.layer},
                     int64_t{2} * spec.kv_heads * spec.head_dim * (float32 ? 4 : 2));
}

}  // namespace

void CudaAttentionStage::RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q,
                                      float* k, const float* v) {
  RopeAndCacheRows({.step = ViewOf(step),
                    .rows = RowsOf(step, spec, context_->float32),
                    .rope = RopeView(spec.inv_freq, spec.rope_dim / 2, spec.rope_factor),
                    .halves = spec.rope_style == RopeStyle::kHalves,
                    .heads = spec.heads,
                    .kv_heads = spec.kv_heads,
                    .head_dim = spec.head_dim,
                    .q_norm = Vector(spec.q_norm),
                    .k_norm = Vector(spec.k_norm),
                    .norm_eps = spec.norm_eps,
                    .float32 = context_->float32,
                    .q = q,
                    .k = k,
                    .v = v},
                   context_->stream);
}

void CudaAttentionStage::Attention(const StepInput& step, const AttentionSpec& spec, const float* q,
                                   float* out) {
  AttendAt at{.step = ViewOf(step),
              .rows = RowsOf(step, spec, context_->float32),
              .heads = spec.heads,
              .kv_heads = spec.kv_heads,
              .head_dim = spec.head_dim,
              .scale = spec.scale * kLog2E,
              .float32 = context_->float32,
              .splits_max = (step.shape.kv_len_max + kSplitKeys - 1) / kSplitKeys,
              .query_len_max = step.shape.query_len_max,
              .q = q,
              .partial = nullptr,
              .out = out};
  if (const int64_t floats = AttendScratch(at); floats > 0) at.partial = partial_.Floats(floats);
  AttendHeads(at, context_->stream);
}

}  // namespace deepinfer::cuda
