// A progress line on a terminal's stderr: bar, count, tokens per second, time left. Nothing is
// written when stderr is no terminal. One thread.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer {

class Progress {
 public:
  // `total` 0: unknown. `unit` names what is counted ("lines", "MiB").
  Progress(std::string unit, int64_t total);
  ~Progress();
  // `done` of total; `tokens` so far (0: no rate). Redraws at most ten times a second.
  void Update(int64_t done, int64_t tokens);

 private:
  void Draw(int64_t done, int64_t tokens, double now);
  const std::string unit_;
  const int64_t total_;
  const bool shown_;
  const double begin_;
  int64_t first_done_ = -1;  // where this run began: the rest decides the time left
  double last_draw_ = 0;
  bool drawn_ = false;
};

}  // namespace deepinfer
