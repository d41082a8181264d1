#include "backend/cpu/attention_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896341F;
// Query rows (tokens x heads) of one item: enough to reuse cached keys, few enough to balance.
constexpr int kRowsPerItem = 48;
// Below this many multiply-adds a fork costs more than it saves.
constexpr int64_t kSerialWork = 40'000;
constexpr int64_t kElementsPerChunk = 4096;

// Where the cache tiles of one layer are.
class CacheTiles {
 public:
  CacheTiles(const StepInput& step, const AttentionSpec& spec, int element_bytes)
      : step_(step), tiles_per_block_(step.layout->block_tokens / kCacheTile) {
    const HistoryGroup& group = step.layout->history.front();
    head_bytes_ = int64_t{spec.head_dim} * kCacheTile * element_bytes;
    tile_bytes_ = 2 * spec.kv_heads * head_bytes_;
    DI_CHECK(step.layout->block_tokens % kCacheTile == 0 &&
                 group.row_bytes * kCacheTile == tile_bytes_ && spec.layer < group.layers,
             "cache rows of {} bytes in blocks of {} tokens, layer {} of {}", group.row_bytes,
             step.layout->block_tokens, spec.layer, group.layers);
    block_bytes_ = step.layout->block_bytes();
    layer_offset_ = int64_t{spec.layer} * tiles_per_block_ * tile_bytes_;
  }

  std::byte* Tile(int row, int tile) const {
    const int32_t* table = step_.block_table + int64_t{row} * step_.block_table_stride;
    return step_.cache_blocks + table[tile / tiles_per_block_] * block_bytes_ + layer_offset_ +
           tile % tiles_per_block_ * tile_bytes_;
  }
  int64_t KOffset(int kv_head) const { return 2 * kv_head * head_bytes_; }
  int64_t VOffset(int kv_head) const { return (2 * kv_head + 1) * head_bytes_; }

 private:
  const StepInput& step_;
  int tiles_per_block_;
  int64_t head_bytes_, tile_bytes_, block_bytes_, layer_offset_;
};

CacheType CacheTypeOf(const CpuContext& context) { return context.float32 ? kCacheF32 : kCacheF16; }
int ElementBytes(const CpuContext& context) { return context.float32 ? 4 : 2; }

int SplitsOf(int keys) { return (keys + kSplitKeys - 1) / kSplitKeys; }

}  // namespace

struct AttentionStage::State {
  State(float* memory, int rows, int head_dim)
      : max(memory), sum(memory + rows), acc(memory + Padded(rows)) {
    std::fill(max, max + rows, kNoMax);
    std::fill(sum, sum + rows, 0.0F);
    std::fill(acc, acc + int64_t{rows} * head_dim, 0.0F);
  }
  // A view of a state that was computed before.
  State(float* memory, int rows) : max(memory), sum(memory + rows), acc(memory + Padded(rows)) {}
  static int64_t Padded(int rows) { return (2 * int64_t{rows} + 15) / 16 * 16; }
  static int64_t Size(int rows, int head_dim) {
    return Padded(rows) + (int64_t{rows} * head_dim + 15) / 16 * 16;
  }
  float* max;
  float* sum;
  float* acc;
};

const RowKernels& AttentionStage::Kernels(int head_dim) const {
  return head_dim % kCacheTile == 0 ? *context_->rows : kScalarRows;
}

void AttentionStage::PrepareRope(const StepInput& step, const AttentionSpec& spec) {
  const auto tokens = static_cast<size_t>(step.shape.num_tokens);
  const auto half = static_cast<size_t>(spec.rope_dim / 2);
  if (rope_positions_.size() == tokens && rope_freq_.size() == half &&
      rope_factor_ == spec.rope_factor &&
      memcmp(rope_positions_.data(), step.position, tokens * sizeof(int32_t)) == 0 &&
      memcmp(rope_freq_.data(), spec.inv_freq, half * sizeof(float)) == 0) {
    return;  // the layers of a step share the angles
  }
  rope_positions_.assign(step.position, step.position + tokens);
  rope_freq_.assign(spec.inv_freq, spec.inv_freq + half);
  rope_factor_ = spec.rope_factor;
  cos_.resize(tokens * half);
  sin_.resize(tokens * half);
  const int64_t per_chunk =
      std::max<int64_t>(1, 1024 / static_cast<int64_t>(std::max<size_t>(half, 1)));
  const auto chunks = static_cast<int>((static_cast<int64_t>(tokens) + per_chunk - 1) / per_chunk);
  context_->pool->Run(chunks, [&](int chunk, int) {
    const auto end = std::min(tokens, static_cast<size_t>((chunk + 1) * per_chunk));
    for (auto t = static_cast<size_t>(chunk * per_chunk); t < end; ++t) {
      for (size_t i = 0; i < half; ++i) {
        // The angle in float, as the models were trained; its functions exactly.
        const float angle = static_cast<float>(rope_positions_[t]) * rope_freq_[i];
        cos_[t * half + i] = static_cast<float>(std::cos(double{angle})) * rope_factor_;
        sin_[t * half + i] = static_cast<float>(std::sin(double{angle})) * rope_factor_;
      }
    }
  });
}

void AttentionStage::RopeToken(const StepInput& step, const AttentionSpec& spec, int token,
                               float* q, float* k, const float* v) const {
  const RowKernels& rows = *context_->rows;
  const int half = spec.rope_dim / 2;
  const float* cos = cos_.data() + int64_t{token} * half;
  const float* sin = sin_.data() + int64_t{token} * half;
  const auto rope =
      spec.rope_style == RopeStyle::kHalves ? rows.rope_halves : rows.rope_interleaved;
  const auto turn = [&](float* x, int heads, const Weight* norm) {
    for (int head = 0; head < heads; ++head, x += spec.head_dim) {
      if (norm != nullptr) {
        rows.rms_norm(x, Cpu(*norm).vector.data(), spec.head_dim, spec.norm_eps, x);
      }
      rope(x, cos, sin, half);
    }
  };
  float* k_token = k + int64_t{token} * spec.kv_heads * spec.head_dim;
  turn(q + int64_t{token} * spec.heads * spec.head_dim, spec.heads, spec.q_norm);
  turn(k_token, spec.kv_heads, spec.k_norm);
  const CacheTiles tiles(step, spec, ElementBytes(*context_));
  const int position = step.position[token];
  Kernels(spec.head_dim)
      .write_cache[CacheTypeOf(*context_)](
          {.k = k_token,
           .v = v + int64_t{token} * spec.kv_heads * spec.head_dim,
           .kv_heads = spec.kv_heads,
           .head_dim = spec.head_dim,
           .lane = position % kCacheTile,
           .tile = tiles.Tile(step.token_row[token], position / kCacheTile)});
}

void AttentionStage::RopeAndCache(const StepInput& step, const AttentionSpec& spec, float* q,
                                  float* k, const float* v) {
  PrepareRope(step, spec);
  const int tokens = step.shape.num_tokens;
  const int64_t elements = int64_t{spec.heads + 2 * spec.kv_heads} * spec.head_dim;
  const auto per_chunk = static_cast<int>(std::max<int64_t>(1, kElementsPerChunk / elements));
  context_->pool->Run((tokens + per_chunk - 1) / per_chunk, [&](int chunk, int) {
    const int end = std::min(tokens, (chunk + 1) * per_chunk);
    for (int token = chunk * per_chunk; token < end; ++token) {
      if (step.kind[token] != TokenKind::kDead) RopeToken(step, spec, token, q, k, v);
    }
  });
}

void AttentionStage::PlanItems(const StepInput& step, const AttentionSpec& spec) {
  items_.clear();
  split_item_.clear();
  const int block = std::max(1, kRowsPerItem / (spec.heads / spec.kv_heads));
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int row_end = step.query_start[row + 1];
    for (int begin = step.query_start[row]; begin < row_end; begin += block) {
      const int end = std::min(row_end, begin + block);
      int keys = 0;
      for (int t = begin; t < end; ++t) {
        if (step.kind[t] != TokenKind::kDead) keys = std::max(keys, step.position[t] + 1);
      }
      for (int head = 0; head < spec.kv_heads; ++head) {
        items_.push_back(
            {row, head, begin, end, keys, static_cast<int>(split_item_.size()), SplitsOf(keys)});
        split_item_.insert(split_item_.end(), static_cast<size_t>(SplitsOf(keys)),
                           static_cast<int>(items_.size()) - 1);
      }
    }
  }
}

void AttentionStage::LoadQuery(const AttentionSpec& spec, const Item& item, const float* q,
                               float* out) const {
  const int group = spec.heads / spec.kv_heads;
  const float scale = spec.scale * kLog2E;
  const int64_t count = int64_t{group} * spec.head_dim;
  for (int token = item.begin; token < item.end; ++token) {
    const float* in =
        q + (int64_t{token} * spec.heads + int64_t{item.kv_head} * group) * spec.head_dim;
    for (int64_t i = 0; i < count; ++i) *out++ = in[i] * scale;
  }
}

// All steps of one split, ascending, into `state`; the keys of `after` are fetched meanwhile.
void AttentionStage::AttendSplit(const StepInput& step, const AttentionSpec& spec, const Item& item,
                                 int split, const Place& after, const Workspace& work,
                                 const State& state) const {
  const int group = spec.heads / spec.kv_heads;
  const CacheTiles tiles(step, spec, ElementBytes(*context_));
  const auto attend = Kernels(spec.head_dim).attention[CacheTypeOf(*context_)];
  AttentionStep args{.q = work.q,
                     .rows = (item.end - item.begin) * group,
                     .head_dim = spec.head_dim,
                     .visible = work.visible,
                     .k = {},
                     .v = {},
                     .soon = {},
                     .max = state.max,
                     .sum = state.sum,
                     .acc = state.acc};
  const auto set_keys = [&](const Item& of, int key, const void** k, const void** v) {
    for (int i = 0; i < kTilesPerStep; ++i) {
      const int first = key + i * kCacheTile;
      const std::byte* tile = first < of.keys ? tiles.Tile(of.row, first / kCacheTile) : nullptr;
      k[i] = tile != nullptr ? tile + tiles.KOffset(of.kv_head) : nullptr;
      if (v != nullptr) v[i] = tile != nullptr ? tile + tiles.VOffset(of.kv_head) : nullptr;
    }
  };
  const int split_end = std::min(item.keys, (split + 1) * kSplitKeys);
  for (int key = split * kSplitKeys; key < split_end; key += kKeyTile) {
    for (int token = item.begin; token < item.end; ++token) {
      const int seen = step.kind[token] == TokenKind::kDead
                           ? 0
                           : std::clamp(step.position[token] + 1 - key, 0, kKeyTile);
      std::fill_n(work.visible + (token - item.begin) * group, group, seen);
    }
    set_keys(item, key, args.k, args.v);
    if (key + kKeyTile < split_end) {
      set_keys(item, key + kKeyTile, args.soon, nullptr);
    } else if (after.item != nullptr) {
      set_keys(*after.item, after.key, args.soon, nullptr);
    } else {
      std::fill_n(args.soon, kTilesPerStep, nullptr);
    }
    attend(args);
  }
}

void AttentionStage::StoreOutput(const StepInput& step, const AttentionSpec& spec, const Item& item,
                                 const State& state, float* out) const {
  const int group = spec.heads / spec.kv_heads;
  int row = 0;
  for (int token = item.begin; token < item.end; ++token) {
    float* to = out + (int64_t{token} * spec.heads + int64_t{item.kv_head} * group) * spec.head_dim;
    const bool dead = step.kind[token] == TokenKind::kDead;
    for (int head = 0; head < group; ++head, ++row, to += spec.head_dim) {
      const float scale = dead ? 0.0F : 1.0F / state.sum[row];
      const float* acc = state.acc + int64_t{row} * spec.head_dim;
      for (int d = 0; d < spec.head_dim; ++d) to[d] = acc[d] * scale;
    }
  }
}

void AttentionStage::MergeRows(const AttentionSpec& spec, int rows, const State& part,
                               const State& total) const {
  const auto merge = Kernels(spec.head_dim).merge;
  for (int r = 0; r < rows; ++r) {
    const int64_t at = int64_t{r} * spec.head_dim;
    merge(part.max[r], part.sum[r], part.acc + at, spec.head_dim, total.max + r, total.sum + r,
          total.acc + at);
  }
}

void AttentionStage::RunWhole(const StepInput& step, const AttentionSpec& spec, size_t index,
                              const float* q, float* out, const Workspace& work) const {
  const Item& item = items_[index];
  // Likely, not surely, the next of this thread.
  const Place next{.item = index + 1 < items_.size() ? &items_[index + 1] : nullptr, .key = 0};
  const int rows = (item.end - item.begin) * (spec.heads / spec.kv_heads);
  LoadQuery(spec, item, q, work.q);
  const State total(work.total, rows, spec.head_dim);
  if (item.splits == 1) AttendSplit(step, spec, item, 0, next, work, total);  // no need to copy
  for (int split = 0; item.splits > 1 && split < item.splits; ++split) {
    const State part(work.part, rows, spec.head_dim);
    const Place after{.item = &item, .key = (split + 1) * kSplitKeys};
    AttendSplit(step, spec, item, split, split + 1 < item.splits ? after : next, work, part);
    MergeRows(spec, rows, part, total);
  }
  StoreOutput(step, spec, item, total, out);
}

// One split of one item; whoever ends the last split of the item merges them in order.
void AttentionStage::RunSplit(const StepInput& step, const AttentionSpec& spec, int split_item,
                              const float* q, float* out, const Workspace& work) {
  const auto index = static_cast<size_t>(split_item_[static_cast<size_t>(split_item)]);
  const Item& item = items_[index];
  const int rows = (item.end - item.begin) * (spec.heads / spec.kv_heads);
  LoadQuery(spec, item, q, work.q);
  const State part(partials_.get() + split_item * state_size_, rows, spec.head_dim);
  AttendSplit(step, spec, item, split_item - item.first_split, {}, work, part);
  if (splits_left_[index].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const State total(work.total, rows, spec.head_dim);
  for (int split = 0; split < item.splits; ++split) {
    const State from(partials_.get() + (item.first_split + split) * state_size_, rows);
    MergeRows(spec, rows, from, total);
  }
  StoreOutput(step, spec, item, total, out);
}

// Items of many splits and few items: each split is a chunk.
void AttentionStage::RunSplits(const StepInput& step, const AttentionSpec& spec, const float* q,
                               float* out) {
  if (splits_left_size_ < items_.size()) {
    splits_left_size_ = items_.size();
    splits_left_ = std::make_unique<std::atomic<int>[]>(splits_left_size_);
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    splits_left_[i].store(items_[i].splits, std::memory_order_relaxed);
    if (items_[i].splits == 0) RunWhole(step, spec, i, q, out, workspaces_[0]);
  }
  const auto splits = static_cast<int>(split_item_.size());
  partials_.Reserve(state_size_ * splits);
  context_->pool->Run(splits, [&](int split, int thread) {
    RunSplit(step, spec, split, q, out, workspaces_[static_cast<size_t>(thread)]);
  });
}

void AttentionStage::ReserveWorkspaces(const AttentionSpec& spec) {
  const int rows = std::max(kRowsPerItem, spec.heads / spec.kv_heads);
  state_size_ = State::Size(rows, spec.head_dim);
  const int64_t query_size = (int64_t{rows} * spec.head_dim + 15) / 16 * 16;
  const int64_t size = 2 * state_size_ + query_size;
  const int threads = context_->pool->threads();
  float* floats = scratch_.Reserve(size * threads);
  visible_.resize(static_cast<size_t>(rows) * static_cast<size_t>(threads));
  workspaces_.resize(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    float* memory = floats + i * size;
    workspaces_[static_cast<size_t>(i)] = {.total = memory,
                                           .part = memory + state_size_,
                                           .q = memory + 2 * state_size_,
                                           .visible = visible_.data() + int64_t{i} * rows};
  }
}

void AttentionStage::Attention(const StepInput& step, const AttentionSpec& spec, const float* q,
                               float* out) {
  PlanItems(step, spec);
  ReserveWorkspaces(spec);
  int64_t keys = 0;
  for (const Item& item : items_) keys += int64_t{item.end - item.begin} * item.splits * kSplitKeys;
  keys = std::min(keys, int64_t{step.shape.num_tokens} * spec.kv_heads * step.shape.kv_len_max);
  const int64_t work = 2 * keys * (spec.heads / spec.kv_heads) * spec.head_dim;
  const auto items = static_cast<int>(items_.size());
  const auto run_whole = [&](int item, int thread) {
    RunWhole(step, spec, static_cast<size_t>(item), q, out,
             workspaces_[static_cast<size_t>(thread)]);
  };
  if (work <= kSerialWork) {
    for (int item = 0; item < items; ++item) run_whole(item, 0);
  } else if (items < 4 * context_->pool->threads() && split_item_.size() > items_.size()) {
    RunSplits(step, spec, q, out);
  } else {
    context_->pool->Run(items, run_whole);
  }
}

}  // namespace deepinfer::cpu
