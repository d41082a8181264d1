#include "backend/row_table.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/format.h"
#include "tensor/dequantize.h"

namespace deepinfer {
namespace {

constexpr size_t kSlotsMin = 64;
// A row that was prefetched is kept for this many further calls of Prefetch, gathered or not.
constexpr uint64_t kRoundsKept = 8;
// Rows that the reader finishes before it tells who waits.
constexpr size_t kReadBatch = 32;

int64_t MicrosSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               begin)
      .count();
}

// Rows in memory are slots of stored bytes (codes, then scales). The runner thread gives slots to
// ids, a reader thread fills them: it asks the system for all pages of its batch first, so that
// the device works on many rows at once, and then copies.
class CachedRowTable final : public RowTable {
 public:
  CachedRowTable(const TensorFile& file, const TensorView& view, size_t cache_bytes)
      : RowTable(view.shape[0], view.shape[1]), file_(file), view_(view) {
    const DTypeInfo& info = Info(view.dtype);
    row_bytes_ = static_cast<size_t>(view.shape[1] / info.block_elements * info.block_bytes);
    scale_bytes_ = static_cast<size_t>(view.scale_cols);
    const size_t stride = row_bytes_ + scale_bytes_;
    const size_t wanted = std::max(kSlotsMin, cache_bytes / stride);
    slots_max_ = std::min(wanted, static_cast<size_t>(view.shape[0]));
    reader_ = std::thread([this] { ReadLoop(); });
  }

  ~CachedRowTable() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    reader_.join();
  }

  void Prefetch(std::span<const int64_t> ids) override {
    ++round_;
    {
      const std::lock_guard lock(mutex_);
      for (int64_t id : ids) StartLocked(id);
    }
    changed_.notify_all();
  }

  void Gather(const int64_t* ids, int64_t n, float* out) override {
    ++gather_;
    Count(ids, n);
    Prefetch({ids, static_cast<size_t>(n)});
    for (int64_t i = 0; i < n; ++i, out += cols()) {
      if (ids[i] < 0 || ids[i] >= rows()) {
        std::fill_n(out, cols(), std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      const auto found = slot_of_.find(ids[i]);
      if (found == slot_of_.end()) {  // more rows in one step than slots
        const auto begin = std::chrono::steady_clock::now();
        DequantizeRow(view_, ids[i], out);
        stats_.stall_us += static_cast<uint64_t>(MicrosSince(begin));
        ++stats_.reads;
        continue;
      }
      Wait(found->second);
      TensorView row = view_;
      row.shape[0] = 1;
      row.data = Bytes(found->second);
      if (view_.scale != nullptr) row.scale = row.data + row_bytes_;
      DequantizeRow(row, 0, out);
    }
  }

  RowTableStats stats() const override { return stats_; }

 private:
  struct Slot {
    int64_t id = -1;
    uint64_t round = 0;   // of Prefetch that last asked for it
    uint64_t gather = 0;  // the Gather that last counted it
    bool ready = false;   // guarded by mutex_
    bool again = false;   // asked for since the hand of the clock passed
  };

  std::byte* Bytes(size_t slot) {
    return chunks_[slot / kSlotsMin].get() + slot % kSlotsMin * (row_bytes_ + scale_bytes_);
  }

  // Rows and hits of one Gather, before it starts any read.
  void Count(const int64_t* ids, int64_t n) {
    const std::lock_guard lock(mutex_);
    for (int64_t i = 0; i < n; ++i) {
      if (ids[i] < 0 || ids[i] >= rows()) continue;
      const auto found = slot_of_.find(ids[i]);
      if (found != slot_of_.end()) {
        Slot& slot = slots_[found->second];
        if (slot.gather == gather_) continue;
        slot.gather = gather_;
        stats_.hits += slot.ready ? 1 : 0;
        ++stats_.rows;
      } else {
        StartLocked(ids[i]);
        const auto started = slot_of_.find(ids[i]);
        if (started != slot_of_.end()) slots_[started->second].gather = gather_;
        ++stats_.rows;
      }
    }
  }

  void StartLocked(int64_t id) {
    if (id < 0 || id >= rows()) return;
    const auto found = slot_of_.find(id);
    if (found != slot_of_.end()) {
      Slot& slot = slots_[found->second];
      slot.round = round_;
      slot.again = true;
      return;
    }
    const size_t index = TakeSlotLocked();
    if (index == slots_max_) return;
    Slot& slot = slots_[index];
    slot = {};
    slot.id = id;
    slot.round = round_;
    slot_of_.emplace(id, index);
    queue_.push_back({index, id});
    ++stats_.reads;
  }

  // A slot that is free or may be taken from a row not asked for lately; slots_max_ if none is.
  size_t TakeSlotLocked() {
    if (slots_.size() < slots_max_) {
      if (slots_.size() % kSlotsMin == 0) {
        chunks_.push_back(std::make_unique<std::byte[]>(kSlotsMin * (row_bytes_ + scale_bytes_)));
      }
      slots_.emplace_back();
      return slots_.size() - 1;
    }
    for (size_t tried = 0; tried < 2 * slots_max_; ++tried) {
      const size_t index = hand_;
      hand_ = hand_ + 1 == slots_max_ ? 0 : hand_ + 1;
      Slot& slot = slots_[index];
      if (!slot.ready || slot.round + kRoundsKept > round_) continue;
      if (slot.again) {
        slot.again = false;
        continue;
      }
      slot_of_.erase(slot.id);
      return index;
    }
    return slots_max_;
  }

  void Wait(size_t index) {
    std::unique_lock lock(mutex_);
    if (slots_[index].ready) return;
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return slots_[index].ready; });
    stats_.stall_us += static_cast<uint64_t>(MicrosSince(begin));
  }

  struct Read {
    size_t slot;
    int64_t id;
    std::byte* to = nullptr;
  };

  void ReadLoop() {
    std::vector<Read> batch;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        batch.swap(queue_);
        for (Read& read : batch) read.to = Bytes(read.slot);  // chunks_ may grow meanwhile
      }
      for (const Read& read : batch) file_.Prefetch(StoredRow(read.id));
      for (size_t begin = 0; begin < batch.size(); begin += kReadBatch) {
        const size_t end = std::min(batch.size(), begin + kReadBatch);
        for (size_t i = begin; i < end; ++i) Copy(batch[i]);
        {
          const std::lock_guard lock(mutex_);
          for (size_t i = begin; i < end; ++i) slots_[batch[i].slot].ready = true;
          if (stopping_) return;
        }
        changed_.notify_all();
      }
      batch.clear();
    }
  }

  TensorView StoredRow(int64_t id) const {
    TensorView row = view_;
    row.shape[0] = 1;
    row.data = view_.data + static_cast<size_t>(id) * row_bytes_;
    row.bytes = row_bytes_;
    row.scale_rows = 1;
    if (view_.scale != nullptr) row.scale = view_.scale + static_cast<size_t>(id) * scale_bytes_;
    return row;
  }

  void Copy(const Read& read) const {
    const TensorView row = StoredRow(read.id);
    memcpy(read.to, row.data, row_bytes_);
    if (row.scale != nullptr) memcpy(read.to + row_bytes_, row.scale, scale_bytes_);
  }

  const TensorFile& file_;
  TensorView view_;
  size_t row_bytes_ = 0;
  size_t scale_bytes_ = 0;
  size_t slots_max_ = 0;
  // Of the runner thread, but for Slot::ready and what the next block guards.
  std::unordered_map<int64_t, size_t> slot_of_;
  size_t hand_ = 0;
  uint64_t round_ = 0;
  uint64_t gather_ = 0;
  RowTableStats stats_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::vector<Read> queue_;
  bool stopping_ = false;
  std::thread reader_;
};

}  // namespace

Result<std::unique_ptr<RowTable>> RowTable::Open(const TensorFile& file, const TensorView& view,
                                                 const RowTableOptions& options) {
  const int64_t block = Info(view.dtype).block_elements;
  if (view.shape.size() != 2 || view.shape[0] < 1 || view.shape[1] < 1 ||
      view.shape[1] % block != 0 || HasScaleTensor(view.dtype) != (view.scale != nullptr) ||
      (view.scale != nullptr && view.scale_block_rows != 1 && view.shape[0] > 1)) {
    return Invalid(Format("tensor {}: a table of rows needs two dimensions and, for codes, scales "
                          "by row",
                          view.name))
        .WithParam(view.name);
  }
  return std::unique_ptr<RowTable>(new CachedRowTable(file, view, options.cache_bytes));
}

}  // namespace deepinfer
