#include "base/compute_pool.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace deepinfer {
namespace {

double NowSeconds() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<double>(ts.tv_sec) + 1e-9 * static_cast<double>(ts.tv_nsec);
}

TEST(ComputePool, OneThreadRunsInOrder) {
  ComputePool pool(1);
  EXPECT_EQ(pool.threads(), 1);
  EXPECT_EQ(pool.active_helpers(), 0);
  std::vector<int> seen;
  pool.Run(5, [&](int chunk, int thread) {
    EXPECT_EQ(thread, 0);
    seen.push_back(chunk);
  });
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(ComputePool, NothingToDo) {
  ComputePool pool(3);
  pool.Run(0, [](int, int) { FAIL(); });
}

TEST(ComputePool, EveryChunkExactlyOnceUnderStress) {
  for (int threads : {2, 3, 5}) {
    ComputePool pool(threads);
    // Plain memory on purpose: a thread sanitizer sees a race if join does not order the writes.
    std::vector<int> hits(97);
    int64_t sum = 0;
    for (int round = 0; round < 3000; ++round) {
      const int chunks = 1 + round % 97;
      if (round % 5 == 0) pool.LendCore();
      if (round % 5 == 2) pool.ReturnCore();
      pool.Run(chunks, [&](int chunk, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        hits[static_cast<size_t>(chunk)] += 1 + chunk;
      });
      for (int i = 0; i < chunks; ++i) sum += i + 1;
    }
    EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), sum) << threads << " threads";
  }
}

TEST(ComputePool, HelpersWakeAfterParking) {
  ComputePool pool(2);
  for (int round = 0; round < 20; ++round) {
    // Longer than the spin of a helper, so that it parks between rounds.
    const double until = NowSeconds() + 0.0005;
    while (NowSeconds() < until) sched_yield();
    std::vector<int> hits(64);
    pool.Run(64, [&](int chunk, int) { hits[static_cast<size_t>(chunk)]++; });
    for (int hit : hits) EXPECT_EQ(hit, 1);
  }
}

TEST(ComputePool, CallerTakesOverTheShareOfAHelperThatDoesNotRun) {
  ComputePool pool(2);
  // The helper is held inside its first chunk; everything else must be done by the caller.
  std::atomic<int> others{0};
  std::atomic<bool> helper_in{false};
  constexpr int kChunks = 40;
  pool.Run(kChunks, [&](int, int thread) {
    if (thread == 0) {
      others.fetch_add(1);
      return;
    }
    if (helper_in.exchange(true)) return;
    const double give_up = NowSeconds() + 20.0;
    while (others.load() < kChunks - 1 && NowSeconds() < give_up) sched_yield();
  });
  // Either the helper came too late for any chunk, or it held exactly one.
  EXPECT_GE(others.load(), kChunks - 1);
}

TEST(ComputePool, BenchesAStalledHelperAndTakesItBack) {
  ComputePool pool(2);
  const auto stall_helper_once = [&] {
    std::atomic<bool> helper_in{false};
    pool.Run(2, [&](int, int thread) {
      if (thread == 1) {
        helper_in = true;
        poll(nullptr, 0, 20);  // it gives up its core inside a chunk
        return;
      }
      const double give_up = NowSeconds() + 0.01;  // lets the helper claim its chunk
      while (!helper_in && NowSeconds() < give_up) sched_yield();
    });
  };
  const double give_up = NowSeconds() + 60.0;
  while (pool.active_helpers() == 1 && NowSeconds() < give_up) stall_helper_once();
  EXPECT_EQ(pool.active_helpers(), 0);
  // It sits out: the caller does all of a job, unless the bench ends before it.
  std::atomic<int> helped{1};
  while (helped > 0 && NowSeconds() < give_up) {
    helped = 0;
    pool.Run(8, [&](int, int thread) { helped += thread; });
    if (helped > 0) stall_helper_once();
  }
  EXPECT_EQ(helped, 0);
  while (pool.active_helpers() == 0 && NowSeconds() < give_up) {
    pool.Run(2, [](int, int) {});
  }
  EXPECT_EQ(pool.active_helpers(), 1);
}

TEST(ComputePool, ALentCoreIsLeftAloneUntilItComesBack) {
  // As many threads as there are cores, and so many that there is a helper.
  const int threads = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
  ComputePool pool(threads);
  pool.LendCore();
  for (int round = 0; round < 200; ++round) {
    std::vector<int> hits(97);
    pool.Run(97, [&](int chunk, int thread) {
      EXPECT_LT(thread, threads - 1);
      hits[static_cast<size_t>(chunk)]++;
    });
    for (int hit : hits) EXPECT_EQ(hit, 1);
  }
  pool.ReturnCore();
  std::atomic<bool> helped{false};
  const double give_up = NowSeconds() + 60.0;
  while (!helped && NowSeconds() < give_up) {
    pool.Run(2 * threads, [&](int, int thread) {
      if (thread == threads - 1) helped = true;
      sched_yield();
    });
  }
  EXPECT_TRUE(helped);
}

TEST(ComputePool, AReturnedCoreHelpsWithTheJobThatGoesOn) {
  const int threads = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
  ComputePool pool(threads);
  pool.LendCore();
  std::vector<int> hits(4 * static_cast<size_t>(threads));
  std::atomic<bool> helped{false};
  std::atomic<bool> returned{false};
  const double give_up = NowSeconds() + 60.0;
  pool.Run(static_cast<int>(hits.size()), [&](int chunk, int thread) {
    hits[static_cast<size_t>(chunk)]++;
    if (thread == threads - 1) {
      helped = true;
      return;
    }
    if (!returned.exchange(true)) pool.ReturnCore();
    while (!helped && NowSeconds() < give_up) sched_yield();
  });
  EXPECT_TRUE(helped);
  for (int hit : hits) EXPECT_EQ(hit, 1);
}

TEST(ComputePool, ManyPoolsStartAndStop) {
  for (int i = 0; i < 50; ++i) {
    ComputePool pool(1 + i % 4);
    std::atomic<int> count{0};
    pool.Run(i, [&](int, int) { count.fetch_add(1, std::memory_order_relaxed); });
    EXPECT_EQ(count.load(), i);
  }
}

}  // namespace
}  // namespace deepinfer
