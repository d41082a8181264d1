// Bounded queue from any number of threads to the one thread that owns an object.
// The owner takes all messages at once; senders wait while the box is full.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace deepinfer {

template <typename T>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity) : capacity_(capacity) {}

  // False when the box was closed: the message is dropped.
  bool Push(T message) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [&] { return messages_.size() < capacity_ || closed_; });
    if (closed_) return false;
    messages_.push_back(std::move(message));
    if (messages_.size() == 1) not_empty_.notify_one();
    return true;
  }

  // Owner: replaces *out by what has arrived, in order. Never waits.
  void Drain(std::vector<T>* out) {
    out->clear();
    std::lock_guard lock(mutex_);
    const bool was_full = messages_.size() >= capacity_;
    std::swap(*out, messages_);
    if (was_full) not_full_.notify_all();
  }

  // Owner: waits until a message is there, the box is closed, or `timeout_us` passed (negative:
  // no limit).
  void Wait(int64_t timeout_us) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return !messages_.empty() || closed_; };
    if (timeout_us < 0) {
      not_empty_.wait(lock, ready);
    } else {
      not_empty_.wait_for(lock, std::chrono::microseconds(timeout_us), ready);
    }
  }

  // Wakes everybody; later pushes fail, messages already there can still be drained.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::vector<T> messages_;
  bool closed_ = false;
};

}  // namespace deepinfer
