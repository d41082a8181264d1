#include "backend/cpu/weight_cache.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/format.h"
#include "base/logging.h"

namespace deepinfer::cpu {
namespace {

// Counters have one writer: no locked instruction is needed.
void Bump(std::atomic<int64_t>* counter, int64_t amount) {
  counter->store(counter->load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

template <typename Body>
void RunOn(ComputePool* pool, int count, const Body& body) {
  if (pool != nullptr) return pool->Run(count, [&](int i, int) { body(i); });
  for (int i = 0; i < count; ++i) body(i);
}

}  // namespace

int64_t WeightCacheLimit(int64_t asked, const WeightCacheFacts& facts) {
  // Files up to this size are packed whole: a matter of two seconds.
  constexpr int64_t kPackedAtOnceMax = int64_t{4} << 30;
  if (asked != kWeightCacheAuto) return asked;
  const bool fits =
      facts.available_bytes == 0 || facts.file_bytes <= facts.available_bytes / 10 * 8;
  if (!fits) return facts.available_bytes / 10 * 4;
  if (!facts.scaled || facts.file_bytes <= kPackedAtOnceMax) return 0;
  return facts.file_bytes + facts.file_bytes / 8;  // all of them: packing adds a little
}

WeightCacheStats WeightCache::stats() const {
  const auto read = [](const Counter& counter) { return counter.load(std::memory_order_relaxed); };
  return {.limit_bytes = static_cast<int64_t>(limit_),
          .known_bytes = read(known_bytes_),
          .touched_bytes = read(touched_bytes_),
          .bytes = read(bytes_),
          .lookups = read(lookups_),
          .hits = read(hits_),
          .streams = read(streams_),
          .loads = read(loads_),
          .evictions = read(evictions_),
          .load_us = read(load_us_)};
}

void WeightCache::Add(PackedMatrix* matrix, const TensorFile* file, const TensorView& view) {
  int32_t index = 0;
  if (free_.empty()) {
    index = static_cast<int32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Entry& entry = entries_[static_cast<size_t>(index)];
  entry = {};
  entry.matrix = matrix;
  entry.file = file;
  entry.view = view;
  matrix->cache_entry_ = index;
  Bump(&known_bytes_, static_cast<int64_t>(matrix->bytes()));
}

void WeightCache::Remove(PackedMatrix* matrix) {
  const int32_t index = matrix->cache_entry_;
  if (index < 0) return;
  if (matrix->loaded()) Evict(index);
  std::erase(streaming_, index);
  Bump(&known_bytes_, -static_cast<int64_t>(matrix->bytes()));
  entries_[static_cast<size_t>(index)] = {};
  free_.push_back(index);
  matrix->cache_entry_ = -1;
}

void WeightCache::Unlink(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  (entry.older >= 0 ? entries_[static_cast<size_t>(entry.older)].newer : oldest_) = entry.newer;
  (entry.newer >= 0 ? entries_[static_cast<size_t>(entry.newer)].older : newest_) = entry.older;
  entry.older = entry.newer = -1;
}

void WeightCache::PutNewest(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  entry.older = newest_;
  entry.newer = -1;
  (newest_ >= 0 ? entries_[static_cast<size_t>(newest_)].newer : oldest_) = index;
  newest_ = index;
}

bool WeightCache::MayStream(const Entry& entry, int64_t rows) const {
  return stream_limit_ > 0 && entry.streamed < kStreamsMax && !entry.matrix->loaded() &&
         rows <= PackedMatrix::row_block();
}

void WeightCache::AddWanted(const PackedMatrix* matrix, int64_t rows, Bytes* bytes) const {
  if (matrix == nullptr || matrix->cache_entry_ < 0) return;
  const Entry& entry = entries_[static_cast<size_t>(matrix->cache_entry_)];
  if (entry.used == round_) return;
  (MayStream(entry, rows) ? bytes->streamed : bytes->packed) += matrix->bytes();
}

WeightCache::Bytes WeightCache::Wanted(const Need& need) const {
  Bytes bytes;
  AddWanted(need.matrix, need.rows, &bytes);
  if (need.pair != need.matrix) AddWanted(need.pair, need.rows, &bytes);
  return bytes;
}

void WeightCache::Hold(const PackedMatrix* matrix, int64_t rows) {
  if (matrix == nullptr || matrix->cache_entry_ < 0) return;
  const int32_t index = matrix->cache_entry_;
  Entry& entry = entries_[static_cast<size_t>(index)];
  if (entry.used == round_) return;
  entry.used = round_;
  Bump(&lookups_, 1);
  if (!entry.touched) Bump(&touched_bytes_, static_cast<int64_t>(matrix->bytes()));
  entry.touched = true;
  if (matrix->loaded()) {
    Bump(&hits_, 1);
    Unlink(index);
    PutNewest(index);
  } else if (MayStream(entry, rows) && entry.matrix->Stream(&entry.view)) {
    ++entry.streamed;
    streaming_.push_back(index);
  } else {
    missing_.push_back(index);
  }
}

void WeightCache::Evict(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  Unlink(index);
  Bump(&bytes_, -static_cast<int64_t>(entry.matrix->bytes()));
  entry.matrix->Unload();
  slots_.Release(entry.slot, entry.matrix->bytes());
  entry.slot = nullptr;
}

// What this round holds is newer than everything else and fits, so the oldest may go.
bool WeightCache::GiveSlot(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  const size_t bytes = entry.matrix->bytes();
  const auto used = [this] { return static_cast<size_t>(bytes_.load(std::memory_order_relaxed)); };
  while (used() + bytes > limit_ && oldest_ >= 0) {
    if (entries_[static_cast<size_t>(oldest_)].used == round_) break;  // one product alone is over
    Evict(oldest_);
    Bump(&evictions_, 1);
  }
  entry.slot = slots_.Take(bytes);
  if (entry.slot == nullptr) return false;
  // Slots of other sizes lie idle: their memory belongs to the limit, too.
  if (used() + bytes + slots_.idle_bytes() > limit_) slots_.Trim();
  entry.matrix->Place(entry.slot);
  Bump(&bytes_, static_cast<int64_t>(bytes));
  PutNewest(index);
  return true;
}

void WeightCache::Report(Entry* entry, const Status& status) {
  if (entry->reported) return;
  entry->reported = true;
  LogError("{}; requests that need it fail", status.message());
}

// Packs missing_ straight from the files, on all threads at once.
void WeightCache::Load(ComputePool* pool) {
  const auto begin = std::chrono::steady_clock::now();
  const auto missing = [this](int i) -> Entry& {
    return entries_[static_cast<size_t>(missing_[static_cast<size_t>(i)])];
  };
  const auto count = static_cast<int>(missing_.size());
  chunks_.clear();
  if (damaged_.size() < missing_.size()) {
    damaged_ = std::vector<std::atomic<bool>>(2 * missing_.size());
  }
  for (int i = 0; i < count; ++i) {
    Entry& entry = missing(i);
    damaged_[static_cast<size_t>(i)].store(false, std::memory_order_relaxed);
    if (!GiveSlot(missing_[static_cast<size_t>(i)])) {
      Report(&entry, Exhausted(Format("tensor {}: no address space for {} packed bytes",
                                      entry.view.name, entry.matrix->bytes())));
      continue;
    }
    const int64_t panels = entry.matrix->panels();
    const int64_t parts =
        std::max<int64_t>(1, static_cast<int64_t>(entry.matrix->bytes()) / kPackChunkBytes);
    const int64_t step = (panels + parts - 1) / parts;
    for (int64_t at = 0; at < panels; at += step) {
      chunks_.push_back({i, at, std::min(panels, at + step)});
    }
  }
  RunOn(pool, count, [&](int i) { missing(i).file->Prefetch(missing(i).view); });
  RunOn(pool, static_cast<int>(chunks_.size()), [&](int c) {
    const Chunk& chunk = chunks_[static_cast<size_t>(c)];
    const Entry& entry = missing(chunk.missing);
    if (!entry.matrix->PackPanels(entry.view, chunk.begin, chunk.end)) {
      damaged_[static_cast<size_t>(chunk.missing)].store(true, std::memory_order_relaxed);
    }
  });
  RunOn(pool, count, [&](int i) { missing(i).file->Drop(missing(i).view); });
  for (int i = 0; i < count; ++i) {
    if (!damaged_[static_cast<size_t>(i)].load(std::memory_order_relaxed)) continue;
    Report(&missing(i), missing(i).matrix->Fail(missing(i).view));
  }
  Bump(&loads_, count);
  Bump(&load_us_, std::chrono::duration_cast<std::chrono::microseconds>(
                      std::chrono::steady_clock::now() - begin)
                      .count());
}

bool WeightCache::Release(ComputePool* pool) {
  RunOn(pool, static_cast<int>(streaming_.size()), [&](int i) {
    const Entry& entry = entries_[static_cast<size_t>(streaming_[static_cast<size_t>(i)])];
    entry.file->Drop(entry.view);
  });
  bool damaged = false;
  for (const int32_t index : streaming_) {
    Entry& entry = entries_[static_cast<size_t>(index)];
    entry.matrix->Stream(nullptr);
    if (!entry.matrix->damaged()) continue;
    damaged = true;
    Report(&entry, entry.matrix->Fail(entry.view));
  }
  Bump(&streams_, static_cast<int64_t>(streaming_.size()));
  streaming_.clear();
  return damaged;
}

size_t WeightCache::Prepare(std::span<const Need> needs, ComputePool* pool) {
  DI_CHECK(!needs.empty(), "nothing to prepare");
  Release(pool);
  ++round_;
  missing_.clear();
  Bytes held;
  size_t count = 0;
  for (const Need& need : needs) {
    const Bytes bytes = Wanted(need);
    held.packed += bytes.packed;
    held.streamed += bytes.streamed;
    if (count > 0 && (held.packed > limit_ || held.streamed > stream_limit_)) break;
    Hold(need.matrix, need.rows);
    Hold(need.pair, need.rows);
    ++count;
  }
  RunOn(pool, static_cast<int>(streaming_.size()), [&](int i) {
    const Entry& entry = entries_[static_cast<size_t>(streaming_[static_cast<size_t>(i)])];
    entry.file->Prefetch(entry.view);
  });
  if (!missing_.empty()) Load(pool);
  return count;
}

}  // namespace deepinfer::cpu
