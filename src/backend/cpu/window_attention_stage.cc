#include "backend/cpu/window_attention_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "backend/cpu/step_rows.h"
#include "backend/cpu/stored_rows.h"

namespace deepinfer::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896341F;
// Heads that share the gathered keys: more when tokens alone keep the threads busy.
constexpr int kHeadsMany = 64;
constexpr int kHeadsFew = 16;

}  // namespace

struct WindowAttentionStage::Workspace {
  float* q;    // [heads, dim] scaled
  float* acc;  // [heads, dim]
  float* max;  // [heads]
  float* sum;
  int32_t* visible;
  std::byte* values;  // [64, dim]
  std::byte* keys;    // 4 tiles [dim, 16]
};

struct WindowAttentionStage::Keys {
  const HistoryView* entries;  // nullptr: none
  const StateView* ring;
  const std::byte* step_rows;  // of the row's first live token
  int64_t step_row_bytes;
  const int32_t* selected;  // nullptr: entry i is i
  int num_entries;
  int ratio;
  int row;
  int slot;
  int window_first;  // position
  int step_first;    // position

  const std::byte* operator()(int index) const {
    if (index < num_entries) {
      const int entry = selected != nullptr ? selected[index] : index;
      return entries->Entry(row, EntryRow(entry, ratio));
    }
    const int position = window_first + index - num_entries;
    if (position >= step_first) return step_rows + (position - step_first) * step_row_bytes;
    return ring->At(slot, position);
  }
};

void WindowAttentionStage::PrepareToken(const StepInput& step, const WindowAttentionSpec& spec,
                                        const WindowAttentionArgs& args, int token) const {
  if (step.kind[token] == TokenKind::kDead) return;
  const RowKernels& kernels = *context_->rows;
  const int half = spec.rope.dim / 2;
  const int tail = spec.head_dim - spec.rope.dim;
  float* q = args.q != nullptr ? args.q + int64_t{token} * spec.heads * spec.head_dim : nullptr;
  for (int head = 0; q != nullptr && head < spec.heads; ++head, q += spec.head_dim) {
    if (spec.query_norm == WindowAttentionSpec::QueryNorm::kRms) {
      kernels.rms_norm(q, ones_.data(), spec.head_dim, spec.norm_eps, q);
    }
    kernels.rope_interleaved(q + tail, rope_.cos(token), rope_.sin(token), half);
  }
  float* kv = args.kv + int64_t{token} * spec.head_dim;
  kernels.rms_norm(kv, Cpu(*spec.kv_norm).vector.data(), spec.head_dim, spec.norm_eps, kv);
  kernels.rope_interleaved(kv + tail, rope_.cos(token), rope_.sin(token), half);
  RoundRow(spec.rounding, spec.head_dim, spec.rope.dim, kv);
  auto* rows = const_cast<std::byte*>(step_rows_.data());
  StoreRow(context_->float32, kv, spec.head_dim, dim_, rows + int64_t{token} * dim_ * element_);
}

// Keys [first, first + count) of the list into the workspace; a last tile is filled with zeros.
void WindowAttentionStage::GatherStep(const Keys& keys, int first, int count,
                                      const Workspace& work) const {
  const int64_t row_bytes = int64_t{dim_} * element_;
  const int whole = (count + kCacheTile - 1) / kCacheTile * kCacheTile;
  for (int i = 0; i < whole; ++i) {
    std::byte* to = work.values + i * row_bytes;
    if (i < count) {
      memcpy(to, keys(first + i), static_cast<size_t>(row_bytes));
    } else {
      memset(to, 0, static_cast<size_t>(row_bytes));
    }
  }
  for (int i = 0; i < whole; i += kCacheTile) {
    TransposeTile(work.values + i * row_bytes, dim_, element_, work.keys + i * row_bytes);
  }
}

void WindowAttentionStage::Attend(const StepInput& step, const WindowAttentionSpec& spec,
                                  const WindowAttentionArgs& args, int token, int head, int heads,
                                  const Workspace& work) const {
  const int row = step.token_row[token];
  const int row_first = step.query_start[row];
  const int position = step.position[token];
  const int64_t row_bytes = int64_t{dim_} * element_;
  const StateView ring(step, spec.ring.group, spec.ring.layer, row_bytes);
  std::optional<HistoryView> entries;
  if (spec.entries.group >= 0) entries.emplace(step, spec.entries, row_bytes);
  int num_entries = entries.has_value() ? (position + 1) / spec.ratio : 0;
  if (args.selected != nullptr) num_entries = args.selected_count[token];
  const int window = std::min(spec.window, position + 1);
  const Keys keys{.entries = entries.has_value() ? &*entries : nullptr,
                  .ring = &ring,
                  .step_rows = step_rows_.data() + row_first * row_bytes,
                  .step_row_bytes = row_bytes,
                  .selected = args.selected != nullptr
                                  ? args.selected + int64_t{token} * args.selected_stride
                                  : nullptr,
                  .num_entries = num_entries,
                  .ratio = std::max(1, spec.ratio),
                  .row = row,
                  .slot = step.slot[row],
                  .window_first = position + 1 - window,
                  .step_first = step.position[row_first]};
  const float* sinks = spec.sinks != nullptr ? Cpu(*spec.sinks).vector.data() + head : nullptr;
  for (int h = 0; h < heads; ++h) {
    const float* q = args.q + (int64_t{token} * spec.heads + head + h) * spec.head_dim;
    float* to = work.q + int64_t{h} * dim_;
    for (int i = 0; i < spec.head_dim; ++i) to[i] = q[i] * (spec.scale * kLog2E);
    std::fill(to + spec.head_dim, to + dim_, 0.0F);
    // The sink is a key that was seen first and adds no value.
    work.max[h] = sinks != nullptr ? sinks[h] * kLog2E : kNoMax;
    work.sum[h] = sinks != nullptr ? 1.0F : 0.0F;
  }
  std::fill(work.acc, work.acc + int64_t{heads} * dim_, 0.0F);
  AttentionStep args_step{.q = work.q,
                          .rows = heads,
                          .head_dim = dim_,
                          .visible = work.visible,
                          .k = {},
                          .v = {},
                          .soon = {},
                          .max = work.max,
                          .sum = work.sum,
                          .acc = work.acc};
  const auto attend = context_->rows->attention[context_->float32 ? kCacheF32 : kCacheF16];
  const int total = num_entries + window;
  for (int first = 0; first < total; first += kKeyTile) {
    const int count = std::min(kKeyTile, total - first);
    GatherStep(keys, first, count, work);
    std::fill(work.visible, work.visible + heads, count);
    for (int i = 0; i < kTilesPerStep; ++i) {
      const int64_t at = int64_t{i} * kCacheTile * dim_ * element_;
      args_step.k[i] = i * kCacheTile < count ? work.keys + at : nullptr;
      args_step.v[i] = i * kCacheTile < count ? work.values + at : nullptr;
    }
    attend(args_step);
  }
  StoreOutput(spec, args, token, head, heads, work);
}

void WindowAttentionStage::StoreOutput(const WindowAttentionSpec& spec,
                                       const WindowAttentionArgs& args, int token, int head,
                                       int heads, const Workspace& work) const {
  const int half = spec.rope.dim / 2;
  // The queries are done with: their memory holds the sines of the way back.
  float* back = work.q;
  for (int i = 0; i < half; ++i) back[i] = -rope_.sin(token)[i];
  for (int h = 0; h < heads; ++h) {
    float* out = args.out + (int64_t{token} * spec.heads + head + h) * spec.head_dim;
    const float* acc = work.acc + int64_t{h} * dim_;
    const float scale = 1.0F / work.sum[h];
    for (int i = 0; i < spec.head_dim; ++i) out[i] = acc[i] * scale;
    context_->rows->rope_interleaved(out + spec.head_dim - spec.rope.dim, rope_.cos(token), back,
                                     half);
  }
}

void WindowAttentionStage::WriteRing(const StepInput& step, const WindowAttentionSpec& spec,
                                     int row) const {
  const int64_t row_bytes = int64_t{dim_} * element_;
  const StateView ring(step, spec.ring.group, spec.ring.layer, row_bytes);
  const int count = LiveTokens(step, row);
  for (int i = std::max(0, count - ring.positions()); i < count; ++i) {
    const int token = step.query_start[row] + i;
    if (step.kind[token] == TokenKind::kDead) continue;
    memcpy(ring.At(step.slot[row], step.position[token]), step_rows_.data() + token * row_bytes,
           static_cast<size_t>(row_bytes));
  }
}

void WindowAttentionStage::Begin(const StepInput& step, const WindowAttentionSpec& spec) {
  const int tokens = step.shape.num_tokens;
  dim_ = EntryElements(spec.head_dim);
  element_ = context_->float32 ? 4 : 2;
  if (ones_.size() < static_cast<size_t>(spec.head_dim)) {
    ones_.resize(static_cast<size_t>(spec.head_dim), 1.0F);
  }
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.rope.inv_freq, spec.rope.dim / 2,
                1.0F);
  const size_t step_bytes = static_cast<size_t>(int64_t{tokens} * dim_ * element_);
  if (step_rows_.size() < step_bytes) step_rows_.resize(step_bytes);
}

void WindowAttentionStage::Store(const StepInput& step, const WindowAttentionSpec& spec,
                                 float* kv) {
  Begin(step, spec);
  const WindowAttentionArgs args{.kv = kv};
  context_->pool->Run(step.shape.num_tokens,
                      [&](int token, int) { PrepareToken(step, spec, args, token); });
  context_->pool->Run(step.shape.num_rows, [&](int row, int) { WriteRing(step, spec, row); });
}

void WindowAttentionStage::Run(const StepInput& step, const WindowAttentionSpec& spec,
                               const WindowAttentionArgs& args) {
  const int tokens = step.shape.num_tokens;
  ComputePool* pool = context_->pool.get();
  Begin(step, spec);
  const int64_t row_bytes = int64_t{dim_} * element_;
  pool->Run(tokens, [&](int token, int) { PrepareToken(step, spec, args, token); });

  const int few = std::min(spec.heads, kHeadsFew);
  const int heads = tokens >= 4 * pool->threads() ? std::min(spec.heads, kHeadsMany) : few;
  const int blocks = (spec.heads + heads - 1) / heads;
  const int64_t floats = 2 * int64_t{heads} * dim_ + 3 * int64_t{heads} + 16;
  float* memory = scratch_.Reserve(floats * pool->threads());
  const int64_t key_bytes = 2 * kKeyTile * row_bytes;
  key_rows_.resize(static_cast<size_t>(key_bytes * pool->threads()));
  pool->Run(tokens * blocks, [&](int item, int thread) {
    const int token = item / blocks;
    const int head = item % blocks * heads;
    const int count = std::min(heads, spec.heads - head);
    if (step.kind[token] == TokenKind::kDead) {
      float* out = args.out + (int64_t{token} * spec.heads + head) * spec.head_dim;
      std::fill(out, out + int64_t{count} * spec.head_dim, 0.0F);
      return;
    }
    float* at = memory + thread * floats;
    std::byte* rows = key_rows_.data() + thread * key_bytes;
    const Workspace work{
        .q = at,
        .acc = at + int64_t{heads} * dim_,
        .max = at + 2 * int64_t{heads} * dim_,
        .sum = at + 2 * int64_t{heads} * dim_ + heads,
        .visible = reinterpret_cast<int32_t*>(at + 2 * int64_t{heads} * dim_ + 2 * int64_t{heads}),
        .values = rows,
        .keys = rows + kKeyTile * row_bytes};
    Attend(step, spec, args, token, head, count, work);
  });
  pool->Run(step.shape.num_rows, [&](int row, int) { WriteRing(step, spec, row); });
}

}  // namespace deepinfer::cpu
