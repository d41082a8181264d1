// A queue between threads that holds at most `capacity` items: any number of producers and
// consumers. After Close nothing goes in any more, what is inside still comes out. It must outlive
// every thread that waits in it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"

namespace deepinfer {

enum class PushResult { kOk, kFull, kClosed };

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { DI_CHECK(capacity > 0); }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Never waits. `item` is moved from only on kOk.
  PushResult TryPush(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return PushResult::kClosed;
      if (items_.size() >= capacity_) return PushResult::kFull;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return PushResult::kOk;
  }

  // Waits for room: kOk or kClosed.
  PushResult Push(T&& item) {
    {
      std::unique_lock lock(mutex_);
      not_full_.wait(lock, [this] { return closed_ || items_.size() < capacity_; });
      if (closed_) return PushResult::kClosed;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return PushResult::kOk;
  }

  // Waits for an item; nullopt once the queue is closed and empty.
  std::optional<T> Pop() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [this] { return closed_ || !items_.empty(); });
    return TakeLocked(&lock);
  }

  // As Pop, and nullopt after `wait_us` as well.
  std::optional<T> PopFor(int64_t wait_us) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_for(lock, std::chrono::microseconds(wait_us),
                        [this] { return closed_ || !items_.empty(); });
    return TakeLocked(&lock);
  }

  std::optional<T> TryPop() {
    std::unique_lock lock(mutex_);
    return TakeLocked(&lock);
  }

  // Everything inside at once, in order; empty when nothing is there.
  std::deque<T> PopAll() {
    std::deque<T> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(items_);
    }
    not_full_.notify_all();
    return all;
  }

  void Close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  std::optional<T> TakeLocked(std::unique_lock<std::mutex>* lock) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock->unlock();
    not_full_.notify_one();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace deepinfer
