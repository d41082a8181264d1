#include "backend/cpu/latent_attention_stage.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/step_rows.h"
#include "backend/cpu/stored_rows.h"
#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896341F;
// Query rows (tokens x heads) of one item: a transposed tile of keys serves all of them.
constexpr int kRowsPerItem = 64;
// Tokens in work at once: bounds the absorbed queries, and rows see no difference.
constexpr int kSlabTokens = 128;
constexpr int64_t kSerialWork = 40'000;
constexpr int64_t kElementsPerChunk = 4096;

int SplitsOf(int keys) { return (keys + kSplitKeys - 1) / kSplitKeys; }
int64_t Padded(int64_t count) { return (count + 15) / 16 * 16; }

}  // namespace

struct LatentAttentionStage::State {
  State(float* memory, int rows)
      : max(memory), sum(memory + rows), acc(memory + Padded(int64_t{2} * rows)) {}
  void Clear(int rows, int dim) const {
    std::fill(max, max + rows, kNoMax);
    std::fill(sum, sum + rows, 0.0F);
    std::fill(acc, acc + int64_t{rows} * dim, 0.0F);
  }
  static int64_t Size(int rows, int dim) { return Padded(int64_t{2} * rows) + int64_t{rows} * dim; }
  float* max;
  float* sum;
  float* acc;
};

void LatentAttentionStage::Run(const StepInput& step, const LatentAttentionSpec& spec,
                               const LatentAttentionArgs& args) {
  const int tokens = step.shape.num_tokens;
  dim_ = LatentRowElements(spec.latent, spec.rope_dim);
  row_bytes_ = int64_t{dim_} * (context_->float32 ? 4 : 2);
  DI_CHECK(step.layout->block_tokens % kCacheTile == 0, "blocks of {} tokens",
           step.layout->block_tokens);
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.inv_freq, spec.rope_dim / 2,
                spec.rope_factor);
  WriteTokens(step, spec, args);
  for (int first = 0; first < tokens; first += kSlabTokens) {
    const int count = std::min(kSlabTokens, tokens - first);
    AbsorbQueries(spec, args, first, count);
    Attend(step, spec, args, first, count);
    RaiseValues(step, spec, args, first, count);
  }
}

void LatentAttentionStage::WriteTokens(const StepInput& step, const LatentAttentionSpec& spec,
                                       const LatentAttentionArgs& args) {
  const int tokens = step.shape.num_tokens;
  const int64_t elements = dim_ + int64_t{spec.heads} * spec.rope_dim;
  const auto per_chunk = static_cast<int>(std::max<int64_t>(1, kElementsPerChunk / elements));
  context_->pool->Run((tokens + per_chunk - 1) / per_chunk, [&](int chunk, int) {
    const int end = std::min(tokens, (chunk + 1) * per_chunk);
    for (int token = chunk * per_chunk; token < end; ++token) {
      if (step.kind[token] != TokenKind::kDead) WriteToken(step, spec, args, token);
    }
  });
}

void LatentAttentionStage::WriteToken(const StepInput& step, const LatentAttentionSpec& spec,
                                      const LatentAttentionArgs& args, int token) const {
  const RowKernels& kernels = *context_->rows;
  const auto rope =
      spec.rope_style == RopeStyle::kHalves ? kernels.rope_halves : kernels.rope_interleaved;
  const int half = spec.rope_dim / 2;
  const int head_dim = spec.nope_dim + spec.rope_dim;
  float* q = args.q + int64_t{token} * spec.heads * head_dim + spec.nope_dim;
  for (int head = 0; head < spec.heads; ++head, q += head_dim) {
    rope(q, rope_.cos(token), rope_.sin(token), half);
  }
  float* kv = args.kv + int64_t{token} * (spec.latent + spec.rope_dim);
  kernels.rms_norm(kv, Cpu(*spec.latent_norm).vector.data(), spec.latent, spec.norm_eps, kv);
  rope(kv + spec.latent, rope_.cos(token), rope_.sin(token), half);

  const HistoryView rows(step, {spec.group, spec.layer}, row_bytes_);
  StoreRow(context_->float32, kv, spec.latent + spec.rope_dim, dim_,
           rows.Entry(step.token_row[token], step.position[token]));
}

void LatentAttentionStage::AbsorbQueries(const LatentAttentionSpec& spec,
                                         const LatentAttentionArgs& args, int first, int count) {
  ActRows* rows = queries_in_.Input(*spec.key_up, count);
  const int head_dim = spec.nope_dim + spec.rope_dim;
  context_->pool->Run(count, [&](int i, int) {
    const float* q = args.q + int64_t{first + i} * spec.heads * head_dim;
    for (int head = 0; head < spec.heads; ++head) {
      rows->SetRow(context_->isa, int64_t{head} * count + i, q + int64_t{head} * head_dim);
    }
  });
  slab_first_ = first;
  slab_count_ = count;
  float* queries = queries_.Reserve(int64_t{spec.heads} * count * spec.latent);
  queries_in_.Run(*spec.key_up, count, queries);
}

void LatentAttentionStage::PlanItems(const StepInput& step, const LatentAttentionSpec& spec,
                                     int first, int count) {
  items_.clear();
  split_item_.clear();
  const int heads = std::min(spec.heads, kRowsPerItem);
  const int block = std::max(1, kRowsPerItem / heads);
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int row_end = std::min(step.query_start[row + 1], first + count);
    for (int begin = std::max(step.query_start[row], first); begin < row_end; begin += block) {
      const int end = std::min(row_end, begin + block);
      int keys = 0;
      for (int t = begin; t < end; ++t) {
        if (step.kind[t] != TokenKind::kDead) keys = std::max(keys, step.position[t] + 1);
      }
      for (int head = 0; head < spec.heads; head += heads) {
        items_.push_back({row, begin, end, head, std::min(heads, spec.heads - head), keys,
                          static_cast<int>(split_item_.size()), SplitsOf(keys)});
        split_item_.insert(split_item_.end(), static_cast<size_t>(SplitsOf(keys)),
                           static_cast<int>(items_.size()) - 1);
      }
    }
  }
}

void LatentAttentionStage::ReserveWorkspaces(const LatentAttentionSpec& spec) {
  const int rows = std::max(kRowsPerItem, std::min(spec.heads, kRowsPerItem));
  state_size_ = State::Size(rows, dim_);
  const int64_t query_size = int64_t{rows} * dim_;
  const int64_t keys_size = int64_t{kKeyTile} * dim_;  // room for float32
  const int64_t size = 2 * state_size_ + query_size + keys_size;
  const int threads = context_->pool->threads();
  float* floats = scratch_.Reserve(size * threads);
  visible_.resize(static_cast<size_t>(rows) * static_cast<size_t>(threads));
  workspaces_.resize(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    float* memory = floats + i * size;
    workspaces_[static_cast<size_t>(i)] = {
        .total = memory,
        .part = memory + state_size_,
        .q = memory + 2 * state_size_,
        .keys = reinterpret_cast<std::byte*>(memory + 2 * state_size_ + query_size),
        .visible = visible_.data() + int64_t{i} * rows};
  }
}

// Rows [token, head] of the item: absorbed part, rotated part, zeros.
void LatentAttentionStage::LoadQuery(const LatentAttentionSpec& spec,
                                     const LatentAttentionArgs& args, const Item& item,
                                     float* out) const {
  const float scale = spec.scale * kLog2E;
  const int head_dim = spec.nope_dim + spec.rope_dim;
  for (int token = item.begin; token < item.end; ++token) {
    for (int head = item.head; head < item.head + item.heads; ++head, out += dim_) {
      const float* absorbed =
          queries_.get() + (int64_t{head} * slab_count_ + token - slab_first_) * spec.latent;
      const float* rotated =
          args.q + (int64_t{token} * spec.heads + head) * head_dim + spec.nope_dim;
      for (int i = 0; i < spec.latent; ++i) out[i] = absorbed[i] * scale;
      for (int i = 0; i < spec.rope_dim; ++i) out[spec.latent + i] = rotated[i] * scale;
      std::fill(out + spec.latent + spec.rope_dim, out + dim_, 0.0F);
    }
  }
}

// All steps of one split, ascending, into `state`.
void LatentAttentionStage::AttendSplit(const StepInput& step, const LatentAttentionSpec& spec,
                                       const Item& item, int split, const Workspace& work,
                                       const State& state) const {
  const int element = context_->float32 ? 4 : 2;
  const HistoryView rows(step, {spec.group, spec.layer}, row_bytes_);
  const auto attend = context_->rows->attention[context_->float32 ? kCacheF32 : kCacheF16];
  AttentionStep args{.q = work.q,
                     .rows = (item.end - item.begin) * item.heads,
                     .head_dim = dim_,
                     .visible = work.visible,
                     .k = {},
                     .v = {},
                     .soon = {},
                     .max = state.max,
                     .sum = state.sum,
                     .acc = state.acc};
  const int split_end = std::min(item.keys, (split + 1) * kSplitKeys);
  for (int key = split * kSplitKeys; key < split_end; key += kKeyTile) {
    for (int token = item.begin; token < item.end; ++token) {
      const int seen = step.kind[token] == TokenKind::kDead
                           ? 0
                           : std::clamp(step.position[token] + 1 - key, 0, kKeyTile);
      std::fill_n(work.visible + (token - item.begin) * item.heads, item.heads, seen);
    }
    for (int i = 0; i < kTilesPerStep; ++i) {
      const int at = key + i * kCacheTile;
      args.k[i] = nullptr;
      args.v[i] = nullptr;
      if (at >= item.keys) continue;
      const std::byte* from = rows.Entry(item.row, at);
      std::byte* to = work.keys + int64_t{i} * kCacheTile * dim_ * element;
      TransposeTile(from, dim_, element, to);
      args.k[i] = to;
      args.v[i] = from;
    }
    attend(args);
  }
}

void LatentAttentionStage::MergeRows(int rows, const State& part, const State& total) const {
  for (int r = 0; r < rows; ++r) {
    const int64_t at = int64_t{r} * dim_;
    context_->rows->merge(part.max[r], part.sum[r], part.acc + at, dim_, total.max + r,
                          total.sum + r, total.acc + at);
  }
}

void LatentAttentionStage::StoreOutput(const StepInput& step, const LatentAttentionSpec& spec,
                                       const Item& item, const State& state) {
  int row = 0;
  for (int token = item.begin; token < item.end; ++token) {
    const bool dead = step.kind[token] == TokenKind::kDead;
    for (int head = item.head; head < item.head + item.heads; ++head, ++row) {
      float* acc = state.acc + int64_t{row} * dim_;
      const float scale = dead ? 0.0F : 1.0F / state.sum[row];
      for (int i = 0; i < spec.latent; ++i) acc[i] *= scale;
      value_rows_->SetRow(context_->isa, int64_t{head} * slab_count_ + token - slab_first_, acc);
    }
  }
}

void LatentAttentionStage::RunWhole(const StepInput& step, const LatentAttentionSpec& spec,
                                    const LatentAttentionArgs& args, const Item& item,
                                    const Workspace& work) {
  const int rows = (item.end - item.begin) * item.heads;
  LoadQuery(spec, args, item, work.q);
  const State total(work.total, rows);
  total.Clear(rows, dim_);
  if (item.splits == 1) AttendSplit(step, spec, item, 0, work, total);
  for (int split = 0; item.splits > 1 && split < item.splits; ++split) {
    const State part(work.part, rows);
    part.Clear(rows, dim_);
    AttendSplit(step, spec, item, split, work, part);
    MergeRows(rows, part, total);
  }
  StoreOutput(step, spec, item, total);
}

// One split of one item; whoever ends the last split of the item merges them in order.
void LatentAttentionStage::RunSplit(const StepInput& step, const LatentAttentionSpec& spec,
                                    const LatentAttentionArgs& args, int split_item,
                                    const Workspace& work) {
  const auto index = static_cast<size_t>(split_item_[static_cast<size_t>(split_item)]);
  const Item& item = items_[index];
  const int rows = (item.end - item.begin) * item.heads;
  LoadQuery(spec, args, item, work.q);
  const State part(partials_.get() + split_item * state_size_, rows);
  part.Clear(rows, dim_);
  AttendSplit(step, spec, item, split_item - item.first_split, work, part);
  if (splits_left_[index].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const State total(work.total, rows);
  total.Clear(rows, dim_);
  for (int split = 0; split < item.splits; ++split) {
    MergeRows(rows, State(partials_.get() + (item.first_split + split) * state_size_, rows), total);
  }
  StoreOutput(step, spec, item, total);
}

void LatentAttentionStage::Attend(const StepInput& step, const LatentAttentionSpec& spec,
                                  const LatentAttentionArgs& args, int first, int count) {
  value_rows_ = values_in_.Input(*spec.value_up, count);
  PlanItems(step, spec, first, count);
  ReserveWorkspaces(spec);
  int64_t work = 0;
  for (const Item& item : items_) {
    work += 2 * int64_t{item.keys} * (item.end - item.begin) * item.heads * dim_;
  }
  const auto items = static_cast<int>(items_.size());
  const auto run_whole = [&](int item, int thread) {
    RunWhole(step, spec, args, items_[static_cast<size_t>(item)],
             workspaces_[static_cast<size_t>(thread)]);
  };
  if (work <= kSerialWork) {
    for (int item = 0; item < items; ++item) run_whole(item, 0);
    return;
  }
  if (items >= 4 * context_->pool->threads() || split_item_.size() <= items_.size()) {
    context_->pool->Run(items, run_whole);
    return;
  }
  if (splits_left_size_ < items_.size()) {
    splits_left_size_ = items_.size();
    splits_left_ = std::make_unique<std::atomic<int>[]>(splits_left_size_);
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    splits_left_[i].store(items_[i].splits, std::memory_order_relaxed);
    if (items_[i].splits == 0) run_whole(static_cast<int>(i), 0);
  }
  const auto splits = static_cast<int>(split_item_.size());
  partials_.Reserve(state_size_ * splits);
  context_->pool->Run(splits, [&](int split, int thread) {
    RunSplit(step, spec, args, split, workspaces_[static_cast<size_t>(thread)]);
  });
}

void LatentAttentionStage::RaiseValues(const StepInput& step, const LatentAttentionSpec& spec,
                                       const LatentAttentionArgs& args, int first, int count) {
  float* values = values_.Reserve(int64_t{spec.heads} * count * spec.value_dim);
  values_in_.Run(*spec.value_up, count, values);
  context_->pool->Run(count, [&](int i, int) {
    float* out = args.out + int64_t{first + i} * spec.heads * spec.value_dim;
    const bool dead = step.kind[first + i] == TokenKind::kDead;
    for (int head = 0; head < spec.heads; ++head, out += spec.value_dim) {
      const float* from = values + (int64_t{head} * count + i) * spec.value_dim;
      if (dead) {
        std::fill(out, out + spec.value_dim, 0.0F);
      } else {
        std::copy(from, from + spec.value_dim, out);
      }
    }
  });
}

}  // namespace deepinfer::cpu
