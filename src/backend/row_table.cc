#include "backend/row_table.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/row_reader.h"
#include "base/format.h"
#include "tensor/dequantize.h"

namespace deepinfer {
namespace {

constexpr size_t kSlotsMin = 64;
// A row that was prefetched is kept for this many further calls of Prefetch, gathered or not.
constexpr uint64_t kRoundsKept = 8;
// Rows that the reader finishes before it tells who waits.
constexpr size_t kReadBatch = 256;

uint64_t MicrosSince(std::chrono::steady_clock::time_point begin) {
  const auto time = std::chrono::steady_clock::now() - begin;
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

// Rows in memory are slots of stored bytes (codes, then scales). The runner thread gives slots to
// ids, a reader thread fills them, many reads in flight at once.
class CachedRowTable final : public RowTable {
 public:
  CachedRowTable(std::unique_ptr<TensorView> view, std::unique_ptr<RowReader> source,
                 size_t cache_bytes)
      : RowTable(view->shape[0], view->shape[1]),
        view_(std::move(view)),
        source_(std::move(source)),
        row_bytes_(source_->row_bytes()),
        spare_(row_bytes_) {
    const size_t wanted = std::max(kSlotsMin, cache_bytes / row_bytes_);
    slots_max_ = std::min(wanted, static_cast<size_t>(view_->shape[0]));
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
      const bool good = found != slot_of_.end() ? Wait(found->second) : ReadSpare(ids[i]);
      if (!good) {
        std::fill_n(out, cols(), std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      TensorView row = *view_;
      row.shape[0] = 1;
      row.data = found != slot_of_.end() ? Bytes(found->second) : spare_.data();
      row.bytes = source_->code_bytes();
      row.scale_rows = 1;
      if (row.scale != nullptr) row.scale = row.data + source_->code_bytes();
      DequantizeRow(row, 0, out);
    }
  }

  RowTableStats stats() const override {
    const auto read = [](const Counter& counter) {
      return counter.load(std::memory_order_relaxed);
    };
    return {.rows = read(rows_),
            .hits = read(hits_),
            .reads = read(reads_),
            .read_bytes = read(reads_) * row_bytes_,
            .errors = read(errors_),
            .stall_us = read(stall_us_)};
  }
  std::string_view io() const override { return source_->io(); }

 private:
  struct Slot {
    int64_t id = -1;
    uint64_t round = 0;   // of Prefetch that last asked for it
    uint64_t gather = 0;  // the Gather that last counted it
    bool ready = false;   // guarded by mutex_
    bool failed = false;  // guarded by mutex_: the read
    bool again = false;   // asked for since the hand of the clock passed
  };

  using Counter = std::atomic<uint64_t>;
  static void Add(Counter* counter, uint64_t amount) {
    counter->fetch_add(amount, std::memory_order_relaxed);
  }

  std::byte* Bytes(size_t slot) {
    return chunks_[slot / kSlotsMin].get() + slot % kSlotsMin * row_bytes_;
  }

  // More rows in one step than slots. False when it cannot be read.
  bool ReadSpare(int64_t id) {
    const auto begin = std::chrono::steady_clock::now();
    RowReader::Row row{.id = id, .to = spare_.data()};
    source_->ReadOne(&row);
    Add(&stall_us_, MicrosSince(begin));
    Add(&reads_, 1);
    Add(&errors_, row.failed ? 1 : 0);
    return !row.failed;
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
        Add(&hits_, slot.ready && !slot.failed ? 1 : 0);
        Add(&rows_, 1);
      } else {
        StartLocked(ids[i]);
        const auto started = slot_of_.find(ids[i]);
        if (started != slot_of_.end()) slots_[started->second].gather = gather_;
        Add(&rows_, 1);
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
      if (slot.ready && slot.failed) {  // another try
        slot.ready = slot.failed = false;
        queue_.push_back({.slot = found->second, .id = id});
        Add(&reads_, 1);
      }
      return;
    }
    const size_t index = TakeSlotLocked();
    if (index == slots_max_) return;
    Slot& slot = slots_[index];
    slot = {};
    slot.id = id;
    slot.round = round_;
    slot_of_.emplace(id, index);
    queue_.push_back({.slot = index, .id = id});
    Add(&reads_, 1);
  }

  // A slot that is free or may be taken from a row not asked for lately; slots_max_ if none is.
  size_t TakeSlotLocked() {
    if (slots_.size() < slots_max_) {
      if (slots_.size() % kSlotsMin == 0) {
        chunks_.push_back(std::make_unique<std::byte[]>(kSlotsMin * row_bytes_));
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

  // False when its read failed.
  bool Wait(size_t index) {
    std::unique_lock lock(mutex_);
    if (!slots_[index].ready) {
      const auto begin = std::chrono::steady_clock::now();
      changed_.wait(lock, [&] { return slots_[index].ready; });
      Add(&stall_us_, MicrosSince(begin));
    }
    return !slots_[index].failed;
  }

  struct Read {
    size_t slot;
    int64_t id;
  };

  void ReadLoop() {
    std::vector<Read> batch;
    std::vector<RowReader::Row> rows;
    for (;;) {
      rows.clear();
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        batch.swap(queue_);
        for (const Read& read : batch) {
          rows.push_back({.id = read.id, .to = Bytes(read.slot)});  // chunks_ may grow meanwhile
        }
      }
      for (size_t begin = 0; begin < batch.size(); begin += kReadBatch) {
        const size_t count = std::min(kReadBatch, batch.size() - begin);
        source_->Read(std::span(rows).subspan(begin, count));
        {
          const std::lock_guard lock(mutex_);
          for (size_t i = begin; i < begin + count; ++i) {
            slots_[batch[i].slot].ready = true;
            slots_[batch[i].slot].failed = rows[i].failed;
            Add(&errors_, rows[i].failed ? 1 : 0);
          }
          if (stopping_) return;
        }
        changed_.notify_all();
      }
      batch.clear();
    }
  }

  const std::unique_ptr<TensorView> view_;
  const std::unique_ptr<RowReader> source_;
  const size_t row_bytes_;
  size_t slots_max_ = 0;
  // Of the runner thread, but for what Slot says and what the next block guards.
  std::unordered_map<int64_t, size_t> slot_of_;
  size_t hand_ = 0;
  uint64_t round_ = 0;
  uint64_t gather_ = 0;
  std::vector<std::byte> spare_;  // of a row without a slot
  Counter rows_{0}, hits_{0}, reads_{0}, errors_{0}, stall_us_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::vector<Read> queue_;
  bool stopping_ = false;
  std::thread reader_;
};

}  // namespace

Result<RowIo> ParseRowIo(std::string_view name) {
  if (name == "auto") return RowIo::kAuto;
  if (name == "io_uring") return RowIo::kIoUring;
  if (name == "pread") return RowIo::kPread;
  return Invalid(Format("engram_io is '{}'; it must be auto, io_uring or pread", name))
      .WithParam("engram_io");
}

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
  auto own = std::make_unique<TensorView>(view);  // at one address for the reader
  DI_ASSIGN(std::unique_ptr<RowReader> source, RowReader::Open(file, *own, options.io));
  return std::unique_ptr<RowTable>(
      new CachedRowTable(std::move(own), std::move(source), options.cache_bytes));
}

}  // namespace deepinfer
