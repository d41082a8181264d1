#include "apps/memory_probe.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace deepinfer {
namespace {

constexpr int kPasses = 7;

// Sums 64-bit words with enough independent sums that the loads, not the adds, decide.
uint64_t ReadAll(const uint64_t* data, size_t words) {
  uint64_t sums[16] = {};
  for (size_t i = 0; i + 16 <= words; i += 16) {
    for (size_t j = 0; j < 16; ++j) sums[j] += data[i + j];
  }
  uint64_t total = 0;
  for (uint64_t s : sums) total += s;
  return total;
}

// Seconds of the fastest pass in which every thread runs `body(thread)` once.
template <typename Body>
double FastestPass(int threads, const Body& body) {
  double best = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::jthread> team;
    for (int t = 1; t < threads; ++t) team.emplace_back([&body, t] { body(t); });
    body(0);
    team.clear();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

}  // namespace

MemoryRates MeasureMemory(int threads, size_t bytes) {
  const size_t words = bytes / sizeof(uint64_t) / static_cast<size_t>(threads);
  std::vector<std::vector<uint64_t>> sets(static_cast<size_t>(threads));
  for (auto& set : sets) set.assign(words, 1);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  const double total = static_cast<double>(words * sizeof(uint64_t)) * threads;
  MemoryRates rates;
  rates.read_gb_s = total / 1e9 / FastestPass(threads, [&](int t) {
                      const auto i = static_cast<size_t>(t);
                      sums[i] += ReadAll(sets[i].data(), words);
                    });
  rates.copy_gb_s = total / 1e9 / FastestPass(threads, [&](int t) {
                      // Half of the set is copied onto the other half: as many bytes read and
                      // written as it holds.
                      uint64_t* data = sets[static_cast<size_t>(t)].data();
                      std::memcpy(data, data + words / 2, words / 2 * sizeof(uint64_t));
                    });
  // The sums are used, so no pass can be dropped by the compiler.
  return sums[0] == 0 ? MemoryRates{} : rates;
}

}  // namespace deepinfer
