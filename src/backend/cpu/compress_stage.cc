#include "backend/cpu/compress_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/step_rows.h"
#include "base/check.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

bool Completes(const StepInput& step, int token, int ratio) {
  return step.kind[token] != TokenKind::kDead && (step.position[token] + 1) % ratio == 0;
}

}  // namespace

// Softmax over the two tokens of a group, per channel.
void CompressStage::Pool(const StepInput& step, const CompressSpec& spec, const CompressArgs& args,
                         int token) const {
  const int row = step.token_row[token];
  const int64_t at = int64_t{token} * spec.dim;
  float* latent = args.latent + at;
  const float* k[2] = {nullptr, args.k + at};
  const float* gate[2] = {nullptr, args.gate + at};
  if (token > step.query_start[row]) {
    k[0] = k[1] - spec.dim;
    gate[0] = gate[1] - spec.dim;
  } else {
    const int64_t tail_bytes = int64_t{2} * spec.dim * static_cast<int64_t>(sizeof(float));
    const StateView tail(step, spec.tail_group, spec.tail_layer, tail_bytes);
    k[0] = reinterpret_cast<const float*>(tail.At(step.slot[row], step.position[token] - 1));
    gate[0] = k[0] + spec.dim;
  }
  const SparseKernels& kernels = context_->float32 ? kScalarSparse : context_->sparse();
  kernels.pool_pair(k, gate, spec.dim, latent);
}

void CompressStage::Compress(const StepInput& step, const CompressSpec& spec,
                             const CompressArgs& args) {
  DI_CHECK(spec.ratio == 1 || spec.ratio == 2, "groups of {} tokens", spec.ratio);
  const float* norm = Cpu(*spec.norm).vector.data();
  context_->pool->Run(step.shape.num_tokens, [&](int t, int) {
    float* latent = args.latent + int64_t{t} * spec.dim;
    if (!Completes(step, t, spec.ratio)) {
      std::fill_n(latent, spec.dim, 0.0F);
      return;
    }
    if (spec.ratio == 1) {
      std::copy_n(args.k + int64_t{t} * spec.dim, spec.dim, latent);
    } else {
      Pool(step, spec, args, t);
    }
    context_->rows->rms_norm(latent, norm, spec.dim, spec.norm_eps, latent);
  });
  if (spec.ratio == 1) return;
  // What waits for its second token, after every reader.
  const size_t half = static_cast<size_t>(spec.dim) * sizeof(float);
  const StateView tail(step, spec.tail_group, spec.tail_layer, static_cast<int64_t>(2 * half));
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int end = step.query_start[row] + LiveTokens(step, row);
    for (int t = std::max(step.query_start[row], end - tail.positions()); t < end; ++t) {
      if (Completes(step, t, spec.ratio)) continue;
      std::byte* to = tail.At(step.slot[row], step.position[t]);
      std::memcpy(to, args.k + int64_t{t} * spec.dim, half);
      std::memcpy(to + half, args.gate + int64_t{t} * spec.dim, half);
    }
  }
}

void CompressStage::WriteEntries(const StepInput& step, const EntrySpec& spec,
                                 const EntryArgs& args) {
  const int tokens = step.shape.num_tokens;
  const HistoryView entries(step, spec.entries, MainEntryBytes(spec.dim));
  const HistoryView keys(step, spec.keys, IndexKeyBytes(spec.key_dim));
  positions_.resize(static_cast<size_t>(tokens));
  for (int t = 0; t < tokens; ++t) {
    positions_[static_cast<size_t>(t)] = step.position[t] / spec.ratio * spec.ratio;
  }
  const int half = spec.rope.dim / 2;
  rope_.Prepare(context_->pool.get(), positions_.data(), tokens, spec.rope.inv_freq, half, 1.0F);
  const int64_t stride = (spec.dim + 15) / 16 * 16;
  scratch_.Reserve(stride * context_->pool->threads());
  const float* key_norm = Cpu(*spec.key_norm).vector.data();
  context_->pool->Run(tokens, [&](int t, int thread) {
    if (!Completes(step, t, spec.ratio)) return;
    const int row = step.token_row[t];
    const int entry = step.position[t] / spec.ratio;
    if (entry < RowValue(step.write_floor, row) / spec.ratio) return;  // in the cache already
    float* value = scratch_.get() + thread * stride;
    std::copy_n(args.latent + int64_t{t} * spec.dim, spec.dim, value);
    context_->rows->rope_interleaved(value + spec.dim - spec.rope.dim, rope_.cos(t), rope_.sin(t),
                                     half);
    EncodeMainEntry(value, spec.dim, entries.Entry(row, entry));
    float* key = args.key + int64_t{t} * spec.key_dim;
    context_->rows->rms_norm(key, key_norm, spec.key_dim, spec.norm_eps, key);
    context_->rows->rope_interleaved(key + spec.key_dim - spec.rope.dim, rope_.cos(t), rope_.sin(t),
                                     half);
    EncodeIndexKey(key, spec.key_dim, keys.Entry(row, entry));
  });
}

}  // namespace deepinfer::cpu
