// Routes that generate: body to requests on a prep thread, then an InferenceCall. Handle is called
// on I/O threads and returns at once.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/task_pool.h"
#include "net/http_server.h"
#include "server/inference_call.h"
#include "server/metrics.h"
#include "server/served_model.h"

namespace deepinfer {

class InferenceRoute {
 public:
  using Parser = Result<DialectCall> (*)(const Json& body, const DialectContext& context);
  struct Options {
    int64_t request_timeout_ms = 0;      // 0: none
    TaskPool* prep = nullptr;            // outlives this
    ServerCounters* counters = nullptr;  // outlives this
  };

  explicit InferenceRoute(const Options& options) : options_(options) {}

  // `served` outlives every request.
  void Handle(Parser parser, const ServedModel& served, HttpRequest request,
              std::shared_ptr<ResponseWriter> writer) const;

 private:
  void Run(Parser parser, const ServedModel& served, const HttpRequest& request,
           std::shared_ptr<ResponseWriter> writer, int64_t arrival_us) const;

  const Options options_;
  mutable ServerCounters background_counters_;  // of answers that no client waits for
  RealClock clock_;
};

}  // namespace deepinfer
