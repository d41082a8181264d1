#include "backend/cpu/window_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "backend/cpu/lanes.h"
#include "backend/cpu/step_rows.h"
#include "base/check.h"
#include "tensor/fake_quant.h"

namespace deepinfer::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896341F;
constexpr int kHeadsMost = 16;
constexpr int kHeadsLeast = 4;  // that one pass over the rows serves
constexpr int kRopeHalfMax = 256;
constexpr int kEntriesAhead = 8;
constexpr int kQueriesTogether = 8;
constexpr int kListsAtOnce = 8;  // the tokens of a verification

// Heads of one item: fewer where there would be no work for every thread.
int HeadsPerItem(int heads, int queries, int threads) {
  const int most = std::min(heads, kHeadsMost);
  const bool enough = queries * ((heads + most - 1) / most) >= 2 * threads;
  return enough ? most : std::min(heads, kHeadsLeast);
}

void FetchRow(const std::byte* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
  __builtin_prefetch(row + bytes - 1);
}

void RotateTail(const CpuContext& context, const WindowSpec& spec, const float* cos,
                const float* sin, float* x) {
  context.rows->rope_interleaved(x + spec.dim - spec.rope.dim, cos, sin, spec.rope.dim / 2);
}

}  // namespace

void WindowStage::EncodeToken(const WindowSpec& spec, int token, float* q, const float* kv,
                              std::byte* row, float* scratch) const {
  const float* cos = rope_.cos(token);
  const float* sin = rope_.sin(token);
  if (q != nullptr) {
    for (int h = 0; h < spec.heads; ++h) {
      RotateTail(*context_, spec, cos, sin, q + int64_t{h} * spec.dim);
    }
  }
  context_->rows->rms_norm(kv, Cpu(*spec.kv_norm).vector.data(), spec.dim, spec.norm_eps, scratch);
  RotateTail(*context_, spec, cos, sin, scratch);
  EncodeWindowRow(scratch, spec.dim, row);
}

void WindowStage::Encode(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) {
  const int tokens = step.shape.num_tokens;
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.rope.inv_freq, spec.rope.dim / 2,
                1.0F);
  scratch_stride_ = (spec.dim + 15) / 16 * 16;
  scratch_.Reserve(scratch_stride_ * context_->pool->threads());
  const int64_t row_bytes = WindowRowBytes(spec.dim);
  context_->pool->Run(tokens, [&](int t, int thread) {
    if (step.kind[t] == TokenKind::kDead) return;
    float* q = args.q == nullptr ? nullptr : args.q + int64_t{t} * spec.heads * spec.dim;
    EncodeToken(spec, t, q, args.kv + int64_t{t} * spec.dim, args.rows + t * row_bytes,
                scratch_.get() + thread * scratch_stride_);
  });
}

WindowStage::List WindowStage::ListOf(const StepInput& step, const WindowSpec& spec,
                                      const WindowArgs& args, int token) const {
  const int row = step.token_row[token];
  const int first_token = step.query_start[row];
  const int position = step.position[token];
  List list{.fresh = args.rows + first_token * WindowRowBytes(spec.dim),
            .fresh_first = step.position[first_token],
            .row = row,
            .slot = step.slot[row]};
  list.window_first = std::max({position - spec.window + 1, RowValue(args.begin, row), 0});
  list.window = std::max(0, position + 1 - list.window_first);
  list.count = list.window;
  if (spec.entries.group >= 0) {
    list.selected = args.selected + int64_t{token} * args.top_k;
    list.count += args.selected_count[token];
  }
  return list;
}

// Window rows of positions [first, first + count).
void WindowStage::DecodeWindow(const WindowSpec& spec, const StateView& ring, const List& list,
                               int first, int count, float* out) const {
  for (int p = first; p < first + count; ++p, out += spec.dim) {
    const std::byte* from = p >= list.fresh_first
                                ? list.fresh + (p - list.fresh_first) * WindowRowBytes(spec.dim)
                                : ring.At(list.slot, p);
    context_->sparse().decode_window(from, spec.dim, out);
  }
}

// `count` entries of the list. They lie anywhere in the cache: each is fetched some rows ahead,
// those of the next tile too.
void WindowStage::DecodeEntries(const WindowSpec& spec, const HistoryView& entries,
                                const List& list, int first, int count, float* out) const {
  const int total = list.count - list.window;
  const auto at = [&](int i) { return entries.Entry(list.row, list.selected[i]); };
  const int64_t bytes = MainEntryBytes(spec.dim);
  for (int i = 0; first == 0 && i < std::min(total, kEntriesAhead); ++i) FetchRow(at(i), bytes);
  for (int i = first; i < first + count; ++i, out += spec.dim) {
    if (i + kEntriesAhead < total) FetchRow(at(i + kEntriesAhead), bytes);
    context_->sparse().decode_entry(at(i), spec.dim, out);
  }
}

// Rows [64, dim] of the tile.
void WindowStage::DecodeTile(const WindowSpec& spec, const StateView& ring,
                             const HistoryView* entries, const List& list, int tile,
                             float* out) const {
  const int first = tile * kAttendRows;
  const int count = std::min(kAttendRows, list.count - first);
  const int window = std::clamp(list.window - first, 0, count);
  DecodeWindow(spec, ring, list, list.window_first + first, window, out);
  if (window == count) return;
  DecodeEntries(spec, *entries, list, first + window - list.window, count - window,
                out + int64_t{window} * spec.dim);
}

// The reference: the sum in the order of the list.
void WindowStage::AttendPlainly(const WindowSpec& spec, const Query& query, const List& list,
                                const float* tiles, int head, int heads, float* scores) const {
  const float* sinks = Cpu(*spec.sink).vector.data();
  const float* cos = rope_.cos(query.rope);
  float inverse_sin[kRopeHalfMax];
  for (int i = 0; i < spec.rope.dim / 2; ++i) inverse_sin[i] = -rope_.sin(query.rope)[i];
  const auto row = [&](int j) { return tiles + int64_t{j} * spec.dim; };
  for (int h = head; h < head + heads; ++h) {
    const float* q = query.q + int64_t{h} * spec.dim;
    float max = sinks[h];
    for (int j = 0; j < list.count; ++j) {
      scores[j] = DotLanes(q, row(j), spec.dim) * spec.scale;
      max = std::max(max, scores[j]);
    }
    float sum = 0.0F;
    for (int j = 0; j < list.count; ++j) {
      scores[j] = std::exp(scores[j] - max);
      sum += scores[j];
    }
    sum += std::exp(sinks[h] - max);
    float* out = query.out + int64_t{h} * spec.dim;
    std::fill_n(out, spec.dim, 0.0F);
    for (int j = 0; j < list.count; ++j) {
      context_->rows->add_scaled(scores[j] / sum, row(j), spec.dim, out);
    }
    RotateTail(*context_, spec, cos, inverse_sin, out);
  }
}

void WindowStage::StartHeads(const WindowSpec& spec, const Query& query, int head, int heads,
                             const State& state) const {
  const float* sinks = Cpu(*spec.sink).vector.data() + head;
  const float* q = query.q + int64_t{head} * spec.dim;
  const int64_t size = int64_t{heads} * spec.dim;
  const float scale = spec.scale * kLog2E;
  for (int64_t i = 0; i < size; ++i) state.q[i] = q[i] * scale;
  std::fill_n(state.acc, size, 0.0F);
  for (int h = 0; h < heads; ++h) {  // the sink is a key that was seen first and adds no value
    state.max[h] = sinks[h] * kLog2E;
    state.sum[h] = 1.0F;
  }
}

void WindowStage::AttendTile(const WindowSpec& spec, const float* const* rows, int count, int heads,
                             const State& state) const {
  context_->sparse().attend({.q = state.q,
                             .heads = heads,
                             .dim = spec.dim,
                             .rows = rows,
                             .count = count,
                             .max = state.max,
                             .sum = state.sum,
                             .acc = state.acc});
}

void WindowStage::FinishHeads(const WindowSpec& spec, const Query& query, int head, int heads,
                              const State& state) const {
  const float* cos = rope_.cos(query.rope);
  float inverse_sin[kRopeHalfMax];
  for (int i = 0; i < spec.rope.dim / 2; ++i) inverse_sin[i] = -rope_.sin(query.rope)[i];
  for (int h = 0; h < heads; ++h) {
    const float* acc = state.acc + int64_t{h} * spec.dim;
    float* out = query.out + int64_t{head + h} * spec.dim;
    const float scale = 1.0F / state.sum[h];
    for (int i = 0; i < spec.dim; ++i) out[i] = acc[i] * scale;
    RotateTail(*context_, spec, cos, inverse_sin, out);
  }
}

WindowStage::State WindowStage::StateOf(const WindowSpec& spec, int heads, int thread) const {
  float* at = scratch_.get() + thread * scratch_stride_;
  const int64_t size = int64_t{heads} * spec.dim;
  return {.q = at, .acc = at + size, .max = at + 2 * size, .sum = at + 2 * size + heads};
}

// Neighbouring queries of a row share the window rows that they see.
void WindowStage::GroupQueries(int most) {
  groups_.clear();
  for (int i = 0; i < static_cast<int>(lists_.size()); ++i) {
    const List& list = lists_[static_cast<size_t>(i)];
    const int end = list.window_first + list.window;
    Group* group = groups_.empty() ? nullptr : &groups_.back();
    const bool next = group != nullptr && group->count < most &&
                      lists_[static_cast<size_t>(group->first)].fresh == list.fresh &&
                      list.window_first <= group->window_end && list.window > 0 &&
                      list.window_first >= group->window_first && end >= group->window_end;
    if (next) {
      ++group->count;
      group->window_end = end;
    } else {
      groups_.push_back(
          {.first = i, .count = 1, .window_first = list.window_first, .window_end = end});
    }
  }
}

void WindowStage::AttendWithWindow(const WindowSpec& spec, const HistoryView* entries, int query,
                                   const float* window, float* tile_rows,
                                   const State& state) const {
  const List& list = lists_[static_cast<size_t>(query)];
  StartHeads(spec, queries_[static_cast<size_t>(query)], 0, spec.heads, state);
  for (int first = 0; first < list.count; first += kAttendRows) {
    const int count = std::min(kAttendRows, list.count - first);
    const int own = std::clamp(list.window - first, 0, count);
    const float* rows[kAttendRows];
    for (int i = 0; i < own; ++i) rows[i] = window + int64_t{first + i} * spec.dim;
    for (int i = own; i < count; ++i) rows[i] = tile_rows + int64_t{i - own} * spec.dim;
    if (own < count) {
      DecodeEntries(spec, *entries, list, first + own - list.window, count - own, tile_rows);
    }
    AttendTile(spec, rows, count, spec.heads, state);
  }
  FinishHeads(spec, queries_[static_cast<size_t>(query)], 0, spec.heads, state);
}

// A query with all its heads at a time; its tiles pass one after the other.
void WindowStage::AttendWhole(const WindowSpec& spec, const StateView& ring,
                              const HistoryView* entries) {
  const int threads = context_->pool->threads();
  GroupQueries(std::clamp(static_cast<int>(queries_.size()) / (2 * threads), 1, kQueriesTogether));
  int window = 0;
  for (const Group& group : groups_) {
    window = std::max(window, group.window_end - group.window_first);
  }
  const int64_t floats = int64_t{window + kAttendRows} * spec.dim;
  rows_.Reserve(floats * threads);
  context_->pool->Run(static_cast<int>(groups_.size()), [&](int item, int thread) {
    const Group& group = groups_[static_cast<size_t>(item)];
    float* rows = rows_.get() + thread * floats;
    DecodeWindow(spec, ring, lists_[static_cast<size_t>(group.first)], group.window_first,
                 group.window_end - group.window_first, rows);
    for (int i = group.first; i < group.first + group.count; ++i) {
      const int before = lists_[static_cast<size_t>(i)].window_first - group.window_first;
      AttendWithWindow(spec, entries, i, rows + int64_t{before} * spec.dim,
                       rows + int64_t{window} * spec.dim, StateOf(spec, spec.heads, thread));
    }
  });
}

// Attends every query of queries_ over its list.
void WindowStage::AttendLists(const WindowSpec& spec, const StateView& ring,
                              const HistoryView* entries) {
  DI_CHECK(spec.rope.dim / 2 <= kRopeHalfMax && spec.rope.dim <= spec.dim, "rope of {} elements",
           spec.rope.dim);
  if (queries_.empty()) return;
  ComputePool* pool = context_->pool.get();
  const int threads = pool->threads();
  const auto queries = static_cast<int>(queries_.size());
  const auto lists = static_cast<int>(lists_.size());
  const int64_t tile_floats = int64_t{kAttendRows} * spec.dim;
  const bool whole = lists == queries && queries >= 2 * threads && !context_->float32;
  const int heads = whole ? spec.heads : HeadsPerItem(spec.heads, queries, threads);
  int tiles = 0;
  for (const List& list : lists_) tiles = std::max(tiles, TilesOf(list));
  const int64_t state_floats = 2 * int64_t{heads} * spec.dim + 2 * int64_t{heads};
  scratch_stride_ = (std::max<int64_t>(state_floats, tiles * kAttendRows) + 15) / 16 * 16;
  scratch_.Reserve(scratch_stride_ * threads);
  if (whole) return AttendWhole(spec, ring, entries);
  // Few queries, or several to a list: their heads are shared out.
  const int slab = std::min(lists, std::max(2 * threads, kListsAtOnce));
  const int per_list = queries / lists;
  const int groups = (spec.heads + heads - 1) / heads;
  rows_.Reserve(tile_floats * tiles * slab);
  for (int first = 0; first < lists; first += slab) {
    const int count = std::min(slab, lists - first);
    pool->Run(count * tiles, [&](int item, int) {
      const List& list = lists_[static_cast<size_t>(first + item / tiles)];
      const int tile = item % tiles;
      if (tile >= TilesOf(list)) return;
      DecodeTile(spec, ring, entries, list, tile, rows_.get() + item * tile_floats);
    });
    pool->Run(count * per_list * groups, [&](int item, int thread) {
      const int i = first * per_list + item / groups;
      const Query& query = queries_[static_cast<size_t>(i)];
      const int own = i / per_list - first;
      const List& list = lists_[static_cast<size_t>(first + own)];
      const int head = item % groups * heads;
      const int own_heads = std::min(heads, spec.heads - head);
      const float* rows = rows_.get() + int64_t{own} * tiles * tile_floats;
      if (context_->float32) {
        AttendPlainly(spec, query, list, rows, head, own_heads,
                      scratch_.get() + thread * scratch_stride_);
        return;
      }
      const State state = StateOf(spec, heads, thread);
      StartHeads(spec, query, head, own_heads, state);
      for (int at = 0; at < list.count; at += kAttendRows) {
        const float* row[kAttendRows];
        const int own_rows = std::min(kAttendRows, list.count - at);
        for (int r = 0; r < own_rows; ++r) row[r] = rows + int64_t{at + r} * spec.dim;
        AttendTile(spec, row, own_rows, own_heads, state);
      }
      FinishHeads(spec, query, head, own_heads, state);
    });
  }
}

void WindowStage::Attend(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) {
  const int tokens = step.shape.num_tokens;
  rope_.Prepare(context_->pool.get(), step.position, tokens, spec.rope.inv_freq, spec.rope.dim / 2,
                1.0F);
  queries_.clear();
  lists_.clear();
  const int64_t width = int64_t{spec.heads} * spec.dim;
  for (int t = 0; t < tokens; ++t) {
    if (step.kind[t] == TokenKind::kDead) {
      std::fill_n(args.out + t * width, width, 0.0F);
      continue;
    }
    queries_.push_back({.q = args.q + t * width, .out = args.out + t * width, .rope = t});
    lists_.push_back(ListOf(step, spec, args, t));
  }
  const StateView ring(step, spec.ring.group, spec.ring.layer, WindowRowBytes(spec.dim));
  std::optional<HistoryView> entries;
  if (spec.entries.group >= 0) entries.emplace(step, spec.entries, MainEntryBytes(spec.dim));
  AttendLists(spec, ring, entries.has_value() ? &*entries : nullptr);
  StoreRows(step, spec, args);
}

// After all reads: only the newest rows of the step survive in the ring.
void WindowStage::StoreRows(const StepInput& step, const WindowSpec& spec,
                            const WindowArgs& args) const {
  const int64_t row_bytes = WindowRowBytes(spec.dim);
  const StateView ring(step, spec.ring.group, spec.ring.layer, row_bytes);
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int live = LiveTokens(step, row);
    const int end = step.query_start[row] + live;
    for (int t = end - std::min(live, ring.positions()); t < end; ++t) {
      std::memcpy(ring.At(step.slot[row], step.position[t]), args.rows + t * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
}

void WindowStage::Store(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) {
  Encode(step, spec, args);
  StoreRows(step, spec, args);
}

void WindowStage::AttendDraft(const WindowSpec& spec, const DraftWindowArgs& args) {
  const int tokens = args.rows * args.block;
  const int64_t row_bytes = WindowRowBytes(spec.dim);
  positions_.resize(static_cast<size_t>(tokens));
  for (int t = 0; t < tokens; ++t) {
    positions_[static_cast<size_t>(t)] = args.position[t / args.block] + t % args.block;
  }
  rope_.Prepare(context_->pool.get(), positions_.data(), tokens, spec.rope.inv_freq,
                spec.rope.dim / 2, 1.0F);
  scratch_stride_ = (spec.dim + 15) / 16 * 16;
  scratch_.Reserve(scratch_stride_ * context_->pool->threads());
  const int64_t width = int64_t{spec.heads} * spec.dim;
  context_->pool->Run(tokens, [&](int t, int thread) {
    EncodeToken(spec, t, args.q + t * width, args.kv + int64_t{t} * spec.dim,
                args.encoded + t * row_bytes, scratch_.get() + thread * scratch_stride_);
  });
  queries_.clear();
  lists_.clear();
  for (int row = 0; row < args.rows; ++row) {
    const int anchor = args.position[row];
    List list{.fresh = args.encoded + int64_t{row} * args.block * row_bytes,
              .fresh_first = anchor,
              .row = row,
              .slot = args.slot[row]};
    list.window_first =
        std::min(anchor, std::max({anchor - spec.window, RowValue(args.begin, row), 0}));
    list.window = anchor - list.window_first + args.block;
    list.count = list.window;
    lists_.push_back(list);
    for (int t = row * args.block; t < (row + 1) * args.block; ++t) {
      queries_.push_back({.q = args.q + t * width, .out = args.out + t * width, .rope = t});
    }
  }
  const StateView ring(args.cache_slots, *args.layout, spec.ring.group, spec.ring.layer, row_bytes);
  AttendLists(spec, ring, nullptr);
}

}  // namespace deepinfer::cpu
