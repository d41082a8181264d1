#include "text/grammar/grammar_builder.h"

#include <atomic>
#include <exception>
#include <list>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/hash.h"
#include "base/task_pool.h"
#include "text/grammar/mask_warmer.h"

namespace deepinfer {

using GrammarResult = Result<std::shared_ptr<const CompiledGrammar>>;

struct GrammarBuilder::Impl {
  struct Entry {
    std::string key;
    std::shared_ptr<GrammarTicket> ticket;  // shared with who waits
    std::vector<std::function<void()>> waiting;
    size_t bytes = 0;  // 0 while it is being compiled
  };
  using Entries = std::list<Entry>;

  Impl(const Options& builder_options, const Clock* builder_clock)
      : options(builder_options),
        clock(builder_clock),
        pool(std::max(builder_options.threads, 1), builder_options.queue_max) {}

  static std::string KeyOf(const GrammarSource& source) {
    return Format("{}:", static_cast<int>(source.kind)) + source.text;
  }

  void Run(const GrammarSource& source, int64_t submitted_us);
  GrammarResult Compile(const GrammarSource& source, int64_t submitted_us);
  void Trim();

  const Options options;
  const Clock* clock;
  std::atomic<bool> stopping{false};  // what is queued is dropped
  mutable std::mutex mutex;
  Entries recent;  // most recent first
  std::unordered_map<std::string, Entries::iterator> entries;
  Stats stats;
  TaskPool pool;  // last: joined before the rest goes
};

GrammarResult GrammarBuilder::Impl::Compile(const GrammarSource& source, int64_t submitted_us) {
  if (stopping.load(std::memory_order_relaxed)) {
    return Unavailable("the server is shutting down and compiles no more grammars");
  }
  if (clock->NowUs() - submitted_us > options.compile_us_max) {
    return Status(StatusCode::kDeadline,
                  Format("the grammar waited more than {} ms to be compiled: try again later",
                         options.compile_us_max / 1000));
  }
  try {
    GrammarResult result = CompiledGrammar::Compile(source, options.grammar);
    if (result.ok() && options.vocabulary != nullptr) WarmMasks(**result, *options.vocabulary);
    return result;
  } catch (const std::bad_alloc&) {
    return Exhausted("there is no memory left to compile the grammar");
  } catch (const std::exception& failure) {
    return Internal(Format("compiling the grammar failed: {}", failure.what()));
  }
}

void GrammarBuilder::Impl::Run(const GrammarSource& source, int64_t submitted_us) {
  const int64_t begin_us = clock->NowUs();
  GrammarResult result = Compile(source, submitted_us);
  std::vector<std::function<void()>> waiting;
  {
    const std::lock_guard lock(mutex);
    const auto found = entries.find(KeyOf(source));
    const Entries::iterator entry = found->second;
    // A full machine or a late start says nothing about the source: it may be tried again.
    const bool keep = result.ok() || result.status().code() == StatusCode::kInvalid;
    entry->bytes = sizeof(Entry) + 2 * entry->key.size() + (result.ok() ? (*result)->bytes() : 0);
    entry->ticket->result_ = std::move(result);
    entry->ticket->ready_.store(true, std::memory_order_release);
    stats.compile_us += clock->NowUs() - begin_us;
    --stats.waiting;
    ++(entry->ticket->result_.ok() ? stats.compiled : stats.failed);
    waiting.swap(entry->waiting);
    stats.cache_bytes += entry->bytes;
    if (!keep) {
      stats.cache_bytes -= entry->bytes;
      entries.erase(found);
      recent.erase(entry);
    }
    Trim();
  }
  for (const std::function<void()>& call : waiting) call();
}

void GrammarBuilder::Impl::Trim() {
  for (auto at = recent.end();
       stats.cache_bytes > options.cache_bytes_max && at != recent.begin();) {
    --at;
    if (at->bytes == 0) continue;  // not finished
    stats.cache_bytes -= at->bytes;
    entries.erase(at->key);
    at = recent.erase(at);
  }
}

GrammarBuilder::GrammarBuilder(const Options& options, const Clock* clock)
    : impl_(std::make_unique<Impl>(options, clock)) {}
GrammarBuilder::~GrammarBuilder() { impl_->stopping = true; }

std::shared_ptr<const GrammarTicket> GrammarBuilder::Submit(const GrammarSource& source,
                                                            std::function<void()> on_ready) {
  std::shared_ptr<GrammarTicket> ticket;
  bool ready = false;
  {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->stats.submitted;
    std::string key = Impl::KeyOf(source);
    const auto found = impl_->entries.find(key);
    if (found != impl_->entries.end()) {
      ++impl_->stats.cache_hits;
      impl_->recent.splice(impl_->recent.begin(), impl_->recent, found->second);
      ticket = found->second->ticket;
      ready = ticket->ready();
      if (!ready && on_ready != nullptr) found->second->waiting.push_back(std::move(on_ready));
    } else {
      ticket = std::make_shared<GrammarTicket>();
      Task task(
          [impl = impl_.get(), source, now = impl_->clock->NowUs()] { impl->Run(source, now); });
      if (impl_->pool.TrySubmit(std::move(task)) == PushResult::kOk) {
        ++impl_->stats.waiting;
        Impl::Entry entry;
        entry.key = key;
        entry.ticket = ticket;
        if (on_ready != nullptr) entry.waiting.push_back(std::move(on_ready));
        impl_->recent.push_front(std::move(entry));
        impl_->entries.emplace(std::move(key), impl_->recent.begin());
      } else {
        ++impl_->stats.failed;
        ticket->result_ = Exhausted(
            Format("{} grammars wait to be compiled: try again later", impl_->options.queue_max));
        ticket->ready_.store(true, std::memory_order_release);
        ready = true;
      }
    }
  }
  if (ready && on_ready != nullptr) on_ready();
  return ticket;
}

GrammarBuilder::Stats GrammarBuilder::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace deepinfer
