// One HTTP request while the engine works on it: deltas in, formatted bytes out, cancelled when the
// client leaves. Keeps itself alive until the engine has said its last word on every prompt.
// Deltas arrive on the engine thread, the client's end on an I/O thread, the start on a prep
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/dialect.h"
#include "base/task_pool.h"
#include "deepinfer/engine.h"
#include "net/response_writer.h"
#include "server/metrics.h"

namespace deepinfer {

class InferenceCall : public std::enable_shared_from_this<InferenceCall> {
 public:
  struct Context {
    Engine* engine = nullptr;            // outlives the call
    TaskPool* prep = nullptr;            // writes whole bodies; outlives the call
    ServerCounters* counters = nullptr;  // outlives the call
  };

  InferenceCall(const Context& context, DialectCall dialect,
                std::shared_ptr<ResponseWriter> writer);

  // Submits every prompt and starts the answer; a refusal is answered here.
  void Start();
  // After Start: why nothing runs, or ok.
  const Status& refusal() const { return refusal_; }

 private:
  // One per prompt, because the engine may speak before Submit has returned an id.
  class Sink final : public OutputSink {
   public:
    Sink(InferenceCall* call, int prompt) : call_(call), prompt_(prompt) {}
    void OnOutput(OutputDelta delta) override { call_->OnDelta(prompt_, std::move(delta)); }

   private:
    InferenceCall* call_;
    int prompt_;
  };
  enum class Phase { kSubmitting, kRunning, kEnded };

  void OnDelta(int prompt, OutputDelta delta);
  void Apply(int prompt, OutputDelta delta);
  void OpenStream();
  void Fail(const Status& status);
  void Complete();
  void OnClientLeft();
  void Cancel();
  void CancelAll();

  const Context context_;
  DialectCall dialect_;
  const std::shared_ptr<ResponseWriter> writer_;  // shared with the connection
  std::vector<Sink> sinks_;
  // The engine holds plain pointers to sinks_: shared with itself until the last delta.
  std::shared_ptr<InferenceCall> self_;

  Status refusal_;
  std::mutex mutex_;
  Phase phase_ = Phase::kSubmitting;
  // Until the engine has said that the grammar of the request can be kept: a refusal is an error of
  // its own, also for a stream, which is not opened before.
  bool awaits_grammar_ = false;
  bool client_left_ = false;
  bool cancelled_ = false;
  size_t open_ = 0;  // prompts without a last delta
  std::vector<RequestId> ids_;
  std::vector<std::pair<int, OutputDelta>> early_;  // deltas while submitting
};

}  // namespace deepinfer
