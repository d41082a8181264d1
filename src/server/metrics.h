// The text that GET /metrics answers (Prometheus exposition format 0.0.4): the engine's numbers
// under vLLM's names, so that tools made for it work, and this server's own under "deepinfer:".
// Counters are written by any thread; rendering takes a snapshot.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/engine.h"
#include "net/http_server.h"

namespace deepinfer {

// What the routes count.
class ServerCounters {
 public:
  // One answer was given (or the client left: 499).
  void AddResponse(int status);
  void AddOverload() { overload_.fetch_add(1, std::memory_order_relaxed); }
  // Requests that a parser turned down.
  void AddInvalid() { invalid_.fetch_add(1, std::memory_order_relaxed); }

  std::vector<std::pair<int, int64_t>> responses() const;  // by status, only those that occurred
  int64_t overload() const { return overload_; }
  int64_t invalid() const { return invalid_; }

 private:
  static constexpr int kStatusMin = 100;
  std::array<std::atomic<int64_t>, 500> responses_{};
  std::atomic<int64_t> overload_{0};
  std::atomic<int64_t> invalid_{0};
};

// Builds exposition text. A family is opened once, its samples follow.
class MetricsWriter {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;
  // `common` labels go on every sample.
  explicit MetricsWriter(Labels common);

  void Counter(std::string_view name, std::string_view help, double value);
  void Gauge(std::string_view name, std::string_view help, double value);
  void Family(std::string_view name, std::string_view type, std::string_view help);
  void Sample(std::string_view name, const Labels& labels, double value);
  void Histogram(std::string_view name, const HistogramSnapshot& histogram);
  std::string Take() { return std::move(out_); }

 private:
  void AppendLabels(const Labels& labels, std::string_view le);
  std::string out_;
  std::vector<std::pair<std::string, std::string>> common_;
};

struct MetricsSnapshot {
  std::string model_name;
  bool loaded = false;  // engine and limits are set
  EngineStats engine;
  EngineLimits limits;
  bool prefix_caching = false;
  HttpServerStats http;
  const ServerCounters* counters = nullptr;
};

std::string RenderMetrics(const MetricsSnapshot& snapshot);

}  // namespace deepinfer
