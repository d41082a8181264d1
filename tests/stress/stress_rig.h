// One checkpoint behind the engine's loop, stepped by the test's thread: the same requests under
// different chunks, batches, cache states, preemptions and overlap. One thread besides the
// runner's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "engine/engine_loop.h"
#include "engine/model_runner.h"
#include "models/loaded_model.h"

namespace deepinfer {

struct Ask {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::optional<TokenLogprob>> prompt_logprobs;
  int64_t cached_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  std::string error;
  // Of the whole run.
  int64_t verifications = 0;
  int64_t drafts_accepted = 0;
  int most_running = 0;  // sequences at once
};

enum class Drafting { kNone, kNgram, kModel, kReplay };

struct StressMode {
  const char* name = "plain";
  int chunk = 0;           // prompt tokens of a row in one step; 0: as many as fit
  bool batch = false;      // all asks at once
  bool warm_half = false;  // the first half of each prompt is in the prefix cache
  bool preempt = false;    // each ask is preempted when it has 5 tokens
  bool overlap = false;
  int keep_tokens = 0;  // > 0: compact mode, see SchedulerConfig
  int slots = 16;       // sequences at once
  int block_size = 16;
  int32_t num_blocks = 512;
  Drafting drafting = Drafting::kNone;
  int drafts_max = 5;
  int depth = -1;  // kReplay: right drafts of a proposal; -1: every number in turn
  RunnerTestMode test;
};

// The stress list: every way that must change nothing.
std::span<const StressMode> StressModes();
// The same with speculation; with the model's draft layers, too, where it has any. Those modes come
// last: once enabled, draft layers stay.
std::vector<StressMode> DraftModes(const Model& model);

// Runs the asks on a fresh cache; answers in their order. Replayed drafts come from `plain`.
std::vector<Answer> RunAsks(LoadedModel* model, const std::vector<Ask>& asks,
                            const StressMode& mode, const std::vector<Answer>& plain = {});

// Whether two answers are equal to the bit; the first difference otherwise.
std::string Difference(const Answer& a, const Answer& b);

}  // namespace deepinfer
