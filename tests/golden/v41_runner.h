// Drives a DeepSeek-V4.1 checkpoint without an engine: prompts in chunks, greedy tokens, bounded
// replay, prefix hits and drafts, with the per-row fields of a step set by hand. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "models/deepseek_v41/v41_model.h"
#include "tests/harness/host_rows.h"

namespace deepinfer {

// Aborts with the reason when the test's own data cannot be read.
Json ReadGoldenJson(const std::string& path);
std::vector<int32_t> GoldenIds(const Json& array);
std::vector<double> LogProbsOf(const float* logits, int vocab);

// How a sequence runs from its first step to its last.
struct V41Replay {
  int replay_begin = 0;
  int write_floor = 0;
  int suffix_begin = 0;  // 0: exact
};

class V41Runner {
 public:
  // Aborts when the model cannot be loaded.
  explicit V41Runner(const std::string& directory, const BackendOptions& options, int sequences,
                     int positions_max);
  int vocab() const { return model_->info().vocab; }
  V41Model* model() { return model_; }
  HostRows* rows() { return rows_.get(); }

  struct Piece {
    int sequence = 0;
    int start = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> lead = {};  // nearest first; empty: the state knows them
    V41Replay replay = {};
  };
  // One step; logits of every token, [tokens of all pieces, vocab] in order (NaN before a suffix).
  std::vector<float> Step(const std::vector<Piece>& pieces);
  // The prompt in chunks, then `count` greedy tokens; logits of every position.
  struct Output {
    std::vector<float> logits;
    std::vector<int32_t> greedy;
  };
  Output Generate(int sequence, const std::vector<int32_t>& prompt, int count, int chunk,
                  const V41Replay& replay = {}, int start = 0);

  struct Draft {
    std::vector<int32_t> tokens;
    std::vector<float> confidence;
  };
  Draft DraftBlock(int sequence, int position, int32_t anchor, int suffix_begin);

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> owned_;
  V41Model* model_ = nullptr;
  std::unique_ptr<HostRows> rows_;
  StepInput last_;  // pool and layout of the last step
};

}  // namespace deepinfer
