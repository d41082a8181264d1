#include "net/response_writer.h"

namespace deepinfer {

ResponseWriter::ResponseWriter(std::string request_id, size_t buffer_bytes_max,
                               std::function<void()> wake)
    : request_id_(std::move(request_id)),
      buffer_bytes_max_(buffer_bytes_max),
      wake_(std::move(wake)) {}

ResponseWriter::~ResponseWriter() = default;

// The wake runs outside the lock; a second piece before Take finds wake_posted_ set.
void ResponseWriter::WakeLocked(std::unique_lock<std::mutex>* lock) {
  const bool wake = !wake_posted_;
  wake_posted_ = true;
  lock->unlock();
  if (wake) wake_();
}

void ResponseWriter::Send(HttpResponse response) {
  std::function<void(CloseReason)> dropped;
  std::unique_lock lock(mutex_);
  if (state_ != State::kOpen) return;
  state_ = State::kFinished;
  dropped = std::move(on_close_);
  on_close_ = nullptr;
  pending_.whole = std::move(response);
  pending_.finished = true;
  WakeLocked(&lock);
}

void ResponseWriter::StartStream(HttpStreamStart start) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kOpen) return;
  state_ = State::kStreaming;
  pending_.start = std::move(start);
  WakeLocked(&lock);
}

bool ResponseWriter::Write(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kStreaming || closed_ || overflowed_) return false;
  if (bytes.empty()) return true;
  if (pending_.bytes.size() + taken_bytes_ + bytes.size() > buffer_bytes_max_) {
    overflowed_ = true;
    pending_.bytes = std::string();
    WakeLocked(&lock);
    return false;
  }
  pending_.bytes.append(bytes);
  WakeLocked(&lock);
  return true;
}

void ResponseWriter::Finish() {
  std::function<void(CloseReason)> dropped;
  std::unique_lock lock(mutex_);
  if (state_ != State::kStreaming) return;
  state_ = State::kFinished;
  dropped = std::move(on_close_);
  on_close_ = nullptr;
  pending_.finished = true;
  WakeLocked(&lock);
}

void ResponseWriter::Abort() {
  std::function<void(CloseReason)> dropped;
  std::unique_lock lock(mutex_);
  if (state_ == State::kFinished) return;
  state_ = State::kFinished;
  dropped = std::move(on_close_);
  on_close_ = nullptr;
  pending_.aborted = true;
  pending_.finished = true;
  WakeLocked(&lock);
}

size_t ResponseWriter::buffered_bytes() const {
  std::unique_lock lock(mutex_);
  return pending_.bytes.size() + taken_bytes_;
}

bool ResponseWriter::closed() const {
  std::unique_lock lock(mutex_);
  return closed_.has_value() || overflowed_;
}

bool ResponseWriter::answered() const {
  std::unique_lock lock(mutex_);
  return state_ != State::kOpen;
}

void ResponseWriter::OnClose(std::function<void(CloseReason)> callback) {
  std::unique_lock lock(mutex_);
  if (state_ == State::kFinished) return;
  if (!closed_) {
    on_close_ = std::move(callback);
    return;
  }
  const CloseReason reason = *closed_;
  lock.unlock();
  callback(reason);
}

ResponseWriter::Taken ResponseWriter::Take() {
  std::unique_lock lock(mutex_);
  wake_posted_ = false;
  Taken taken = std::move(pending_);
  pending_ = Taken();
  taken_bytes_ += taken.bytes.size();
  return taken;
}

void ResponseWriter::Written(size_t bytes) {
  std::unique_lock lock(mutex_);
  taken_bytes_ -= bytes < taken_bytes_ ? bytes : taken_bytes_;
}

void ResponseWriter::Close(CloseReason reason) {
  std::unique_lock lock(mutex_);
  if (closed_) return;
  closed_ = reason;
  std::function<void(CloseReason)> callback = std::move(on_close_);
  on_close_ = nullptr;
  lock.unlock();
  if (callback) callback(reason);
}

bool ResponseWriter::overflowed() const {
  std::unique_lock lock(mutex_);
  return overflowed_;
}

}  // namespace deepinfer
