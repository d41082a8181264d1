#include "base/compute_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/helper_trust.h"

namespace deepinfer {
namespace {

// A helper without work spins this long before it parks. Long enough for the serial stages between
// two forks, short enough that an idle engine costs nothing.
constexpr int64_t kHelperSpinNs = 60'000;
// The caller spins this long for a chunk that a helper holds, then parks as well: an idle core is
// what makes the kernel pull over a helper that waits behind somebody else.
constexpr int64_t kCallerSpinNs = 100'000;
// Only what took longer than this inside a job is asked whether it lost its core meanwhile.
constexpr int64_t kAskedNs = 300'000;

int64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

void Pause() { __builtin_ia32_pause(); }

// How often this thread gave up its core, wanted or not, and how often not wanted.
struct Switches {
  int64_t all = 0;
  int64_t forced = 0;
};
Switches CountSwitches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return {usage.ru_nvcsw + usage.ru_nivcsw, usage.ru_nivcsw};
}

int UsableCpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

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
  std::atomic<uint32_t> busy{0};      // may hold a claimed chunk
  std::atomic<bool> join{false};      // its core came back: help with the job that goes on
  std::atomic<int> cpu{-1};           // where it was seen last
  std::atomic<int64_t> worked_ns{0};  // in chunks, on another core than the caller
  // Of the current job; the caller reads them when all is done, and clears them before the next.
  std::atomic<int64_t> job_ns{0};
  std::atomic<uint32_t> job_unfit{0};  // it had no core of its own all the time
  std::atomic<int> job_chunks{0};
  // Of the caller alone.
  alignas(64) HelperTrust trust;
  bool suspect = false;
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
  explicit Impl(int threads)
      : num_threads(threads),
        has_all_cores(threads > 1 && threads >= UsableCpus()),
        lanes(static_cast<size_t>(threads)) {}

  void HelperLoop(int thread);
  int Work(int thread);
  void Publish(int chunks, int helpers_present);
  void WaitForHelpers(int outstanding, int64_t started_ns, int own_chunks);
  void Judge(int64_t lost_ns);
  int64_t OwnLoss(int64_t own_ns, int own_chunks);
  bool SharesCpuWithBusyHelper() const;
  void EndBenches(int64_t now_ns);
  void Recall();
  int active_now() const { return active.load(std::memory_order_relaxed); }
  bool lent_now() const { return lent.load(std::memory_order_relaxed); }
  bool Absent(size_t lane) const {
    return lanes[lane].trust.benched() || (lent_in_job && lane + 1 == lanes.size());
  }
  // Settles for the next job who takes part; the number of helpers.
  int CallUp() {
    lent_in_job = lent_now() && !lanes.back().trust.benched();
    may_return.store(lent_in_job, std::memory_order_relaxed);
    return active_now() - (lent_in_job ? 1 : 0);
  }

  const int num_threads;
  const bool has_all_cores;
  std::vector<Lane> lanes;  // lane 0 is the caller's
  std::vector<std::thread> helpers;
  std::atomic<bool> stopping{false};

  // The job: written by the caller before it publishes ranges.
  ChunkFn fn = nullptr;
  void* context = nullptr;

  alignas(64) std::atomic<int> done{0};  // chunks finished by helpers
  alignas(64) std::atomic<uint32_t> caller_parked{0};
  std::atomic<int> active{0};
  alignas(64) std::atomic<bool> lent{false};  // the core of the last helper
  std::atomic<bool> may_return{false};        // that helper is trusted: it may join a job
  // Of the caller alone.
  bool lent_in_job = false;
  int64_t own_switches = 0;  // when it was last asked
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
    return static_cast<uint32_t>(word >> 32) < static_cast<uint32_t>(word) ||
           lane.join.load(std::memory_order_seq_cst);
  };
  int64_t idle_since_ns = NowNs();
  int64_t worked_ns = 0;
  int64_t switches = CountSwitches().all;
  while (!stopping.load(std::memory_order_acquire)) {
    for (int spin = 0; spin < 32 && !has_work(); ++spin) Pause();
    if (has_work()) {
      const int cpu = sched_getcpu();
      lane.join.store(false, std::memory_order_relaxed);
      lane.busy.store(1, std::memory_order_relaxed);
      lane.cpu.store(cpu, std::memory_order_relaxed);
      const int64_t begin_ns = NowNs();
      const int count = Work(thread);
      idle_since_ns = NowNs();
      lane.busy.store(0, std::memory_order_relaxed);
      if (count > 0) {
        const int64_t job_ns = idle_since_ns - begin_ns;
        // On the caller's core it only kept the caller from the same work.
        bool unfit = cpu == lanes[0].cpu.load(std::memory_order_relaxed);
        if (!unfit) lane.worked_ns.store(worked_ns += job_ns, std::memory_order_relaxed);
        if (job_ns > kAskedNs) {
          const int64_t now = CountSwitches().all;
          unfit = unfit || now != switches;
          switches = now;
        }
        lane.job_unfit.store(unfit ? 1 : 0, std::memory_order_relaxed);
        lane.job_ns.store(job_ns, std::memory_order_relaxed);
        lane.job_chunks.store(count, std::memory_order_relaxed);
        done.fetch_add(count, std::memory_order_seq_cst);
        if (caller_parked.load(std::memory_order_seq_cst) != 0 &&
            caller_parked.exchange(0, std::memory_order_seq_cst) != 0) {
          FutexWake(&caller_parked);
        }
      }
      continue;
    }
    // Spinning on the caller's own core would keep the work from coming.
    if (sched_getcpu() != lanes[0].cpu.load(std::memory_order_relaxed) &&
        !(thread + 1 == num_threads && lent_now()) && NowNs() - idle_since_ns < kHelperSpinNs) {
      continue;
    }
    lane.parked.store(1, std::memory_order_seq_cst);
    while (!has_work() && !stopping.load(std::memory_order_seq_cst) &&
           lane.parked.load(std::memory_order_seq_cst) != 0) {
      FutexWait(&lane.parked, 1);
    }
    lane.parked.store(0, std::memory_order_seq_cst);
    idle_since_ns = NowNs();
    switches = CountSwitches().all;
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

// Where chunks end at different times somebody waits for up to one of them; more than that is lost.
void ComputePool::Impl::WaitForHelpers(int outstanding, int64_t started_ns, int own_chunks) {
  const int64_t wait_begin_ns = NowNs();
  const int64_t own_ns = wait_begin_ns - started_ns;
  for (Lane& lane : lanes) lane.suspect = false;
  for (int spin = 0; spin < 128; ++spin) {
    if (done.load(std::memory_order_acquire) == outstanding) {
      if (own_ns > kAskedNs) Judge(OwnLoss(own_ns, own_chunks));
      return;
    }
    Pause();
  }
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
  for (Lane& lane : lanes) {
    lane.suspect = lane.suspect && lane.job_chunks.load(std::memory_order_relaxed) != 0 &&
                   lane.job_unfit.load(std::memory_order_relaxed) != 0;
  }
  Judge(NowNs() - wait_begin_ns - own_ns / std::max(1, own_chunks));
}

// How much longer the caller took than helpers would have taken for its chunks, if it lost its
// core: there might have been one for it without them.
int64_t ComputePool::Impl::OwnLoss(int64_t own_ns, int own_chunks) {
  const int64_t switches = CountSwitches().forced;
  if (switches == own_switches) return 0;
  own_switches = switches;
  int64_t loss_ns = 0;
  Lane* last = nullptr;
  for (size_t i = 1; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (Absent(i)) continue;
    last = &lane;
    const int chunks = lane.job_chunks.exchange(0, std::memory_order_relaxed);
    if (chunks == 0) continue;
    const int64_t chunk_ns = lane.job_ns.load(std::memory_order_relaxed) / chunks;
    loss_ns = std::max(loss_ns, own_ns - (own_chunks + 1) * chunk_ns);
  }
  if (last != nullptr) last->suspect = true;
  return loss_ns;
}

// Charges the suspects with the time lost in the job that just ended.
void ComputePool::Impl::Judge(int64_t lost_ns) {
  if (lost_ns <= 0) return;
  const int64_t now_ns = NowNs();
  int suspects = 0;
  for (size_t i = 1; i < lanes.size(); ++i) {
    suspects += lanes[i].suspect && !lanes[i].trust.benched() ? 1 : 0;
  }
  const int taking_part = active_now();
  for (size_t i = 1; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (!lane.suspect || lane.trust.benched()) continue;
    lane.trust.Lost(now_ns, lost_ns / suspects, lane.worked_ns.load(std::memory_order_relaxed),
                    taking_part);
    if (lane.trust.benched()) active.fetch_sub(1, std::memory_order_relaxed);
  }
}

void ComputePool::Impl::EndBenches(int64_t now_ns) {
  for (size_t i = 1; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (lane.trust.TryReturn(now_ns, lane.worked_ns.load(std::memory_order_relaxed))) {
      active.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

// Brings back the helper whose core was lent, in the middle of a job: a long one would not wait for
// the next.
void ComputePool::Impl::Recall() {
  Lane& lane = lanes.back();
  lane.join.store(true, std::memory_order_seq_cst);
  if (lane.parked.load(std::memory_order_seq_cst) == 0) return;
  if (lane.parked.exchange(0, std::memory_order_seq_cst) != 0) FutexWake(&lane.parked);
}

// Gives the caller and every helper that takes part a contiguous share, and wakes who is parked.
void ComputePool::Impl::Publish(int chunks, int helpers_present) {
  const int64_t shares = std::min(chunks, 1 + helpers_present);
  const auto share_begin = [&](int64_t share) {
    return static_cast<uint32_t>(share * chunks / shares);
  };
  done.store(0, std::memory_order_relaxed);
  lanes[0].cpu.store(sched_getcpu(), std::memory_order_relaxed);
  int64_t share = 0;
  for (size_t i = 0; i < lanes.size(); ++i) {
    lanes[i].job_chunks.store(0, std::memory_order_relaxed);
    if (Absent(i) || share == shares) continue;
    lanes[i].range.store(PackRange(share_begin(share), share_begin(share + 1)),
                         std::memory_order_seq_cst);
    ++share;
  }
  for (size_t i = 1; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (Absent(i) || lane.parked.load(std::memory_order_seq_cst) == 0) continue;
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

void ComputePool::LendCore() {
  if (impl_->has_all_cores) impl_->lent.store(true, std::memory_order_relaxed);
}

void ComputePool::ReturnCore() {
  if (!impl_->lent.exchange(false, std::memory_order_relaxed)) return;
  if (impl_->may_return.load(std::memory_order_relaxed)) impl_->Recall();
}

void ComputePool::RunErased(int chunks, ChunkFn fn, void* context) {
  Impl& impl = *impl_;
  int64_t now_ns = 0;
  if (impl.num_threads > 1 && chunks > 1) {
    now_ns = NowNs();
    if (impl.active_now() < impl.num_threads - 1) impl.EndBenches(now_ns);
  }
  const int helpers = chunks > 1 ? impl.CallUp() : 0;
  if (helpers == 0 && !(chunks > 1 && impl.lent_in_job)) {
    for (int chunk = 0; chunk < chunks; ++chunk) fn(context, chunk, 0);
    return;
  }
  impl.fn = fn;
  impl.context = context;
  impl.Publish(chunks, helpers);
  const int own_chunks = impl.Work(0);
  impl.WaitForHelpers(chunks - own_chunks, now_ns, own_chunks);
}

}  // namespace deepinfer
