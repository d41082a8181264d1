// Prints one request's text while it is generated. The engine thread fills it, one other thread
// prints; it must outlive its request.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct StreamResult {
  Status status;
  std::string text;  // all samples, in order
  FinishReason finish = FinishReason::kNone;
  Usage usage;
  double first_token_s = 0;  // from creation of the sink
  double total_s = 0;

  // "31 prompt tokens, first token after 12 ms; 48 tokens at 230.1 tokens/s".
  std::string SpeedLine() const;
};

class StreamSink final : public OutputSink {
 public:
  StreamSink();
  void OnOutput(OutputDelta delta) override;
  // Writes text to `out` as it comes (samples one after the other) and returns at the end. When
  // `out` cannot be written it returns at once: cancel the request, then AwaitLast.
  StreamResult Print(std::FILE* out);
  // Returns when the request is over.
  void AwaitLast();

 private:
  const double begin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::string> samples_;
  std::map<int, bool> finished_;
  bool last_ = false;
  StreamResult result_;
};

}  // namespace deepinfer
