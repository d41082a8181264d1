#include "base/compute_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/check.h"

namespace deepinfer {
namespace {

// A helper without work spins this long before it parks. Long enough for the serial stages between
// two forks, short enough that an idle engine costs nothing.
constexpr int64_t kHelperSpinNs = 60'000;
// The caller spins this long for a chunk that a helper holds, then parks as well: an idle core is
// what makes the kernel pull over a helper that waits behind somebody else.
constexpr int64_t kCallerSpinNs = 100'000;
// Waiting longer than this plus a few of the caller's own chunks means the helper lost its core.
constexpr int64_t kDescheduledNs = 400'000;
constexpr int64_t kBenchNsMin = 4'000'000;
constexpr int64_t kBenchNsMax = 1'000'000'000;
// Time is also judged by windows: when the caller waits for helpers through more than this share of
// one, the helpers cost more than they bring (two threads: no faster than one).
constexpr int64_t kWindowNs = 2'000'000;
constexpr int64_t kWaitPercentMax = 45;
// A helper that ran this many times its last bench without losing its core is trusted again.
constexpr int64_t kTrustFactor = 4;

int64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

void Pause() { __builtin_ia32_pause(); }

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// Unclaimed chunks [begin, end) of one thread's share, in one word so that a claim is one CAS.
// A claim is valid whenever its CAS succeeds, whichever job was current when the word was read:
// job data is read after the claim and is stable until the claimed chunk is counted as done.
constexpr uint64_t PackRange(uint32_t begin, uint32_t end) { return (uint64_t{begin} << 32) | end; }

struct alignas(64) Lane {
  std::atomic<uint64_t> range{0};
  std::atomic<uint32_t> parked{0};
  std::atomic<uint32_t> busy{0};  // may hold a claimed chunk
  std::atomic<int> cpu{-1};       // where it was seen last
  // Of the caller alone.
  bool benched = false;
  bool suspect = false;
  int64_t waited_ns = 0;  // for this helper, in this window
  int64_t benched_until_ns = 0;
  int64_t bench_ns = kBenchNsMin;
  int64_t active_since_ns = 0;
};

int ClaimFront(std::atomic<uint64_t>* range) {
  uint64_t word = range->load(std::memory_order_relaxed);
  for (;;) {
    const uint32_t begin = static_cast<uint32_t>(word >> 32);
    const uint32_t end = static_cast<uint32_t>(word);
    if (begin >= end) return -1;
    if (range->compare_exchange_weak(word, PackRange(begin + 1, end), std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
      return static_cast<int>(begin);
    }
  }
}

int ClaimBack(std::atomic<uint64_t>* range) {
  uint64_t word = range->load(std::memory_order_relaxed);
  for (;;) {
    const uint32_t begin = static_cast<uint32_t>(word >> 32);
    const uint32_t end = static_cast<uint32_t>(word);
    if (begin >= end) return -1;
    if (range->compare_exchange_weak(word, PackRange(begin, end - 1), std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
      return static_cast<int>(end - 1);
    }
  }
}

}  // namespace

struct ComputePool::Impl {
  explicit Impl(int threads) : num_threads(threads), lanes(static_cast<size_t>(threads)) {}

  void HelperLoop(int thread);
  int Work(int thread);
  void Publish(int chunks);
  void WaitForHelpers(int outstanding, int64_t started_ns, int own_chunks);
  void Judge(int64_t started_ns, int64_t wait_begin_ns, int64_t limit_ns);
  void BenchLane(Lane* lane, int64_t now_ns);
  bool SharesCpuWithBusyHelper() const;
  void EndBenches(int64_t now_ns);
  int active_now() const { return active.load(std::memory_order_relaxed); }

  const int num_threads;
  std::vector<Lane> lanes;  // lane 0 is the caller's
  std::vector<std::thread> helpers;
  std::atomic<bool> stopping{false};

  // The job: written by the caller before it publishes ranges.
  ChunkFn fn = nullptr;
  void* context = nullptr;

  alignas(64) std::atomic<int> done{0};  // chunks finished by helpers
  alignas(64) std::atomic<uint32_t> caller_parked{0};
  std::atomic<int> active{0};
  // Of the caller alone.
  int64_t window_begin_ns = 0;
};

// Runs chunks until none is left; returns how many.
int ComputePool::Impl::Work(int thread) {
  int count = 0;
  for (int chunk; (chunk = ClaimFront(&lanes[static_cast<size_t>(thread)].range)) >= 0; ++count) {
    fn(context, chunk, thread);
  }
  for (int i = 1; i < num_threads; ++i) {
    Lane& victim = lanes[static_cast<size_t>((thread + i) % num_threads)];
    for (int chunk; (chunk = ClaimBack(&victim.range)) >= 0; ++count) {
      fn(context, chunk, thread);
    }
  }
  return count;
}

void ComputePool::Impl::HelperLoop(int thread) {
  Lane& lane = lanes[static_cast<size_t>(thread)];
  const auto has_work = [&lane] {
    const uint64_t word = lane.range.load(std::memory_order_seq_cst);
    return static_cast<uint32_t>(word >> 32) < static_cast<uint32_t>(word);
  };
  int64_t idle_since_ns = NowNs();
  while (!stopping.load(std::memory_order_acquire)) {
    for (int spin = 0; spin < 32 && !has_work(); ++spin) Pause();
    if (has_work()) {
      lane.busy.store(1, std::memory_order_relaxed);
      lane.cpu.store(sched_getcpu(), std::memory_order_relaxed);
      const int count = Work(thread);
      lane.busy.store(0, std::memory_order_relaxed);
      if (count > 0) {
        done.fetch_add(count, std::memory_order_seq_cst);
        if (caller_parked.load(std::memory_order_seq_cst) != 0 &&
            caller_parked.exchange(0, std::memory_order_seq_cst) != 0) {
          FutexWake(&caller_parked);
        }
      }
      idle_since_ns = NowNs();
      continue;
    }
    // Spinning on the caller's own core would keep the work from coming.
    if (sched_getcpu() != lanes[0].cpu.load(std::memory_order_relaxed) &&
        NowNs() - idle_since_ns < kHelperSpinNs) {
      continue;
    }
    lane.parked.store(1, std::memory_order_seq_cst);
    while (!has_work() && !stopping.load(std::memory_order_seq_cst) &&
           lane.parked.load(std::memory_order_seq_cst) != 0) {
      FutexWait(&lane.parked, 1);
    }
    lane.parked.store(0, std::memory_order_seq_cst);
    idle_since_ns = NowNs();
  }
}

bool ComputePool::Impl::SharesCpuWithBusyHelper() const {
  const int cpu = sched_getcpu();
  for (size_t i = 1; i < lanes.size(); ++i) {
    if (lanes[i].busy.load(std::memory_order_relaxed) != 0 &&
        lanes[i].cpu.load(std::memory_order_relaxed) == cpu) {
      return true;
    }
  }
  return false;
}

void ComputePool::Impl::WaitForHelpers(int outstanding, int64_t started_ns, int own_chunks) {
  for (int spin = 0; spin < 128; ++spin) {
    if (done.load(std::memory_order_acquire) == outstanding) return;
    Pause();
  }
  const int64_t wait_begin_ns = NowNs();
  const int64_t own_ns = wait_begin_ns - started_ns;
  const int64_t spin_ns = std::max(kCallerSpinNs, own_ns / 4);
  for (Lane& lane : lanes) lane.suspect = lane.busy.load(std::memory_order_relaxed) != 0;
  while (done.load(std::memory_order_acquire) != outstanding && !SharesCpuWithBusyHelper() &&
         NowNs() - wait_begin_ns < spin_ns) {
    for (int spin = 0; spin < 32; ++spin) Pause();
  }
  while (done.load(std::memory_order_acquire) != outstanding) {
    caller_parked.store(1, std::memory_order_seq_cst);
    if (done.load(std::memory_order_seq_cst) != outstanding) FutexWait(&caller_parked, 1);
    caller_parked.store(0, std::memory_order_seq_cst);
  }
  Judge(started_ns, wait_begin_ns, kDescheduledNs + 3 * own_ns / std::max(1, own_chunks));
}

// Benches who lost its core in this wait, and who was waited for through most of a window.
void ComputePool::Impl::Judge(int64_t started_ns, int64_t wait_begin_ns, int64_t limit_ns) {
  const int64_t now_ns = NowNs();
  const int64_t waited_ns = now_ns - wait_begin_ns;
  if (now_ns - window_begin_ns > 2 * kWindowNs) {  // stale: the engine was idle or never waited
    window_begin_ns = started_ns;
    for (Lane& lane : lanes) lane.waited_ns = 0;
  }
  const int64_t window_ns = now_ns - window_begin_ns;
  for (size_t i = 1; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (!lane.suspect || lane.benched) continue;
    lane.waited_ns += waited_ns;
    if (waited_ns > limit_ns ||
        (window_ns > kWindowNs && 100 * lane.waited_ns > kWaitPercentMax * window_ns)) {
      BenchLane(&lane, now_ns);
    }
  }
  if (window_ns > kWindowNs) {
    window_begin_ns = now_ns;
    for (Lane& lane : lanes) lane.waited_ns = 0;
  }
}

void ComputePool::Impl::BenchLane(Lane* lane, int64_t now_ns) {
  if (now_ns - lane->active_since_ns > kTrustFactor * lane->bench_ns) {
    lane->bench_ns = std::max(kBenchNsMin, lane->bench_ns / 4);
  } else {
    lane->bench_ns = std::min(kBenchNsMax, lane->bench_ns * 2);
  }
  lane->benched = true;
  lane->benched_until_ns = now_ns + lane->bench_ns;
  active.fetch_sub(1, std::memory_order_relaxed);
}

void ComputePool::Impl::EndBenches(int64_t now_ns) {
  for (size_t i = 1; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (!lane.benched || lane.benched_until_ns > now_ns) continue;
    lane.benched = false;
    lane.active_since_ns = now_ns;
    active.fetch_add(1, std::memory_order_relaxed);
  }
}

// Gives the caller and every helper that takes part a contiguous share, and wakes who is parked.
void ComputePool::Impl::Publish(int chunks) {
  const int64_t shares = std::min(chunks, 1 + active.load(std::memory_order_relaxed));
  const auto share_begin = [&](int64_t share) {
    return static_cast<uint32_t>(share * chunks / shares);
  };
  done.store(0, std::memory_order_relaxed);
  lanes[0].cpu.store(sched_getcpu(), std::memory_order_relaxed);
  int64_t share = 0;
  for (size_t i = 0; i < lanes.size() && share < shares; ++i) {
    if (lanes[i].benched) continue;
    lanes[i].range.store(PackRange(share_begin(share), share_begin(share + 1)),
                         std::memory_order_seq_cst);
    ++share;
  }
  for (size_t i = 1; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (lane.benched || lane.parked.load(std::memory_order_seq_cst) == 0) continue;
    if (lane.parked.exchange(0, std::memory_order_seq_cst) != 0) FutexWake(&lane.parked);
  }
}

ComputePool::ComputePool(int threads) : impl_(std::make_unique<Impl>(std::max(1, threads))) {
  impl_->active.store(impl_->num_threads - 1, std::memory_order_relaxed);
  // Signals belong to the threads that expect them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // A fault of the thread's own has no other place to go: blocked, it would kill without a word.
  for (const int fault : {SIGBUS, SIGSEGV, SIGILL, SIGFPE}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int thread = 1; thread < impl_->num_threads; ++thread) {
    impl_->helpers.emplace_back([impl = impl_.get(), thread] { impl->HelperLoop(thread); });
    pthread_setname_np(impl_->helpers.back().native_handle(), "di-compute");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ComputePool::~ComputePool() {
  impl_->stopping.store(true, std::memory_order_seq_cst);
  for (Lane& lane : impl_->lanes) {
    lane.parked.store(0, std::memory_order_seq_cst);
    FutexWake(&lane.parked);
  }
  for (std::thread& helper : impl_->helpers) helper.join();
}

int ComputePool::threads() const { return impl_->num_threads; }

int ComputePool::active_helpers() const { return impl_->active.load(std::memory_order_relaxed); }

void ComputePool::RunErased(int chunks, ChunkFn fn, void* context) {
  Impl& impl = *impl_;
  int64_t now_ns = 0;
  if (impl.num_threads > 1 && chunks > 1) {
    now_ns = NowNs();
    if (impl.active_now() < impl.num_threads - 1) impl.EndBenches(now_ns);
  }
  if (chunks <= 1 || impl.active_now() == 0) {
    for (int chunk = 0; chunk < chunks; ++chunk) fn(context, chunk, 0);
    return;
  }
  impl.fn = fn;
  impl.context = context;
  impl.Publish(chunks);
  const int own_chunks = impl.Work(0);
  impl.WaitForHelpers(chunks - own_chunks, now_ns, own_chunks);
}

}  // namespace deepinfer
