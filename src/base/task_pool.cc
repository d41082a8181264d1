#include "base/task_pool.h"

#include <exception>

#include "base/logging.h"

namespace deepinfer {

TaskPool::TaskPool(int threads, size_t queue_max) : queue_(queue_max) {
  DI_CHECK(threads > 0, "{} threads", threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

TaskPool::~TaskPool() {
  queue_.Close();
  for (std::jthread& thread : threads_) thread.join();
}

void TaskPool::Submit(Task task) {
  const PushResult result = queue_.Push(std::move(task));
  DI_CHECK(result == PushResult::kOk, "Submit to a pool that is being destroyed");
}

void TaskPool::RunThread() {
  while (std::optional<Task> task = queue_.Pop()) {
    try {
      (*task)();
    } catch (const std::exception& error) {
      LogError("a background task failed: {}", error.what());
    }
  }
}

}  // namespace deepinfer
