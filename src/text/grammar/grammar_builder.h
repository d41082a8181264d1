// Compiles grammars away from the step path: own threads, a cache by content, a deadline for each
// waiting request. Shared by whoever submits; safe on any thread. Destruction finishes what is
// being compiled, drops what is queued and joins; tickets stay valid.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "deepinfer/status.h"
#include "text/grammar/compiled_grammar.h"
#include "text/grammar/grammar_vocabulary.h"

namespace deepinfer {

// The promise of one grammar. Shared by the builder and everybody who waits for it.
class GrammarTicket {
 public:
  // One acquire load.
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  // After ready(): the grammar or why there is none.
  const Result<std::shared_ptr<const CompiledGrammar>>& result() const { return result_; }

 private:
  friend class GrammarBuilder;
  std::atomic<bool> ready_{false};
  Result<std::shared_ptr<const CompiledGrammar>> result_ = Internal("the grammar is not ready");
};

class GrammarBuilder {
 public:
  struct Options {
    int threads = 1;          // DEEPINFER_SO_BUILDER_CPUS
    size_t queue_max = 1024;  // sources that wait; beyond it a submission fails with kExhausted
    size_t cache_bytes_max = size_t{256} << 20;
    int64_t compile_us_max = 10'000'000;  // from submission; past it a waiting source fails
    GrammarOptions grammar = {};
    // Where given, its slow masks are made together with each grammar.
    std::shared_ptr<const GrammarVocabulary> vocabulary = nullptr;  // shared with the matchers
  };
  GrammarBuilder(const Options& options, const Clock* clock);
  ~GrammarBuilder();
  GrammarBuilder(const GrammarBuilder&) = delete;
  GrammarBuilder& operator=(const GrammarBuilder&) = delete;

  // Never blocks. Equal sources share one compilation. `on_ready` is called once, on any thread,
  // the caller's included, when the ticket is ready; it must not block.
  std::shared_ptr<const GrammarTicket> Submit(const GrammarSource& source,
                                              std::function<void()> on_ready = nullptr);

  struct Stats {
    int64_t submitted = 0;
    int64_t cache_hits = 0;  // ready or already being compiled
    int64_t compiled = 0;
    int64_t failed = 0;
    int64_t compile_us = 0;  // of compiled and failed
    int64_t waiting = 0;
    size_t cache_bytes = 0;
  };
  Stats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
