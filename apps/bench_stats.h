// Shared parts of `deepinfer bench`: summaries, synthetic prompts, timing of offline requests.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "deepinfer/engine.h"

namespace deepinfer {

struct Summary {
  double mean = 0, median = 0, p90 = 0, p99 = 0;
};
Summary Summarize(std::vector<double> values);  // zeros when empty
Json ToJson(const Summary& summary);

// `count` ids of the vocabulary drawn from (seed, index); never the id that stands for images,
// which a prompt without them may not hold. Equal arguments give equal prompts.
std::vector<TokenId> SyntheticPrompt(uint64_t seed, int64_t index, int count,
                                     const EngineLimits& limits);

double NowSeconds();  // monotonic

// Times of one request, in seconds of NowSeconds.
struct RequestTimes {
  double submitted = 0, first = 0, last = 0;
  int64_t tokens = 0;
  std::vector<double> gaps;         // between deltas after the first
  std::vector<int64_t> gap_tokens;  // tokens of the delta that ends each gap
  bool failed = false;
  std::string error;
};

// Records when the tokens of many requests arrive. Outlives the requests submitted to it.
class TimingBoard {
 public:
  explicit TimingBoard(size_t requests);
  ~TimingBoard();
  // Submits request i; a refusal counts as failed.
  void Submit(Engine* engine, size_t i, Request request);
  // Waits until every submitted request is done, or until fewer than `limit` are open.
  void WaitBelow(size_t limit);
  void WaitAll() { WaitBelow(1); }
  const std::vector<RequestTimes>& times() const { return times_; }
  // When every request had its first token.
  double AllStarted() const;

 private:
  class Sink;
  void Finish();
  std::vector<RequestTimes> times_;
  std::vector<Sink> sinks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t open_ = 0;
};

}  // namespace deepinfer
