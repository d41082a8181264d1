// Fork-join pool for one device's compute: helpers spin briefly then park; chunks are claimed one
// by one, so a helper that does not run holds up nobody but in the one chunk it holds. Helpers that
// cost more waiting than they bring sit out for a while (HelperTrust), so that one busy neighbour
// cannot collapse the step. One owner (the runner thread) calls Run; never nested.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace deepinfer {

class ComputePool {
 public:
  // `threads` counts the caller; 1 means no helper threads.
  explicit ComputePool(int threads);
  ~ComputePool();
  int threads() const;
  // A thread that works beside the owner needs a core for a moment and the pool has them all: from
  // LendCore (the owner's) to ReturnCore (any thread's) the last helper takes no work and parks;
  // then it joins the job that goes on.
  // Nothing happens where the pool leaves a core free.
  void LendCore();
  void ReturnCore();
  // Helpers taking part now; threads() - 1 on a quiet machine. For metrics and tests.
  int active_helpers() const;

  // Calls body(chunk, thread) for each chunk in [0, chunks) on any thread, in any order, and
  // returns when all are done. thread is in [0, threads()). Chunks write disjoint memory. Each
  // thread takes a contiguous share in ascending order, then helps the others from their end.
  template <typename Body>
  void Run(int chunks, Body&& body) {
    using Fn = std::remove_reference_t<Body>;
    RunErased(
        chunks,
        [](void* context, int chunk, int thread) { (*static_cast<Fn*>(context))(chunk, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using ChunkFn = void (*)(void* context, int chunk, int thread);
  void RunErased(int chunks, ChunkFn fn, void* context);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
