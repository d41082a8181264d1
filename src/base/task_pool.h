// Threads for work off the step path: tokenising, reading files. Tasks start in the order of
// submission. The owner destroys it after everybody who submits; destruction runs what is queued,
// then joins.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"

namespace deepinfer {

// A callable that is moved, never copied, and called once.
class Task {
 public:
  template <typename Fn>
  requires(!std::is_same_v<std::decay_t<Fn>, Task>) Task(Fn&& fn)  // NOLINT: implicit by design
      : body_(std::make_unique<Body<std::decay_t<Fn>>>(std::forward<Fn>(fn))) {}
  void operator()() { body_->Call(); }

 private:
  struct BodyBase {
    virtual ~BodyBase() = default;
    virtual void Call() = 0;
  };
  template <typename Fn>
  struct Body final : BodyBase {
    template <typename Arg>
    explicit Body(Arg&& arg) : fn(std::forward<Arg>(arg)) {}
    void Call() override { fn(); }
    Fn fn;
  };
  std::unique_ptr<BodyBase> body_;
};

class TaskPool {
 public:
  // `queue_max`: tasks that may wait before Submit does.
  explicit TaskPool(int threads, size_t queue_max = 1024);
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }

  // Waits while the queue is full, so a task itself uses TrySubmit. What escapes a task as an
  // exception is logged and ends that task alone.
  void Submit(Task task);
  // kFull instead of waiting; `task` is moved from only on kOk.
  PushResult TrySubmit(Task&& task) { return queue_.TryPush(std::move(task)); }
  // Submits `fn` and hands back its result.
  template <typename Fn>
  std::future<std::invoke_result_t<Fn>> Async(Fn fn) {
    std::packaged_task<std::invoke_result_t<Fn>()> task(std::move(fn));
    auto result = task.get_future();
    Submit(std::move(task));
    return result;
  }

 private:
  void RunThread();

  BoundedQueue<Task> queue_;
  std::vector<std::jthread> threads_;
};

}  // namespace deepinfer
