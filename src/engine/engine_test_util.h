// Helpers of the engine's tests: a sink that keeps everything and a scheduler driven by hand.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/metrics.h"
#include "engine/scheduler.h"
#include "engine/scripted_runner.h"

namespace deepinfer {

// Folds the deltas of requests; fails the test when they break their contract.
class CollectSink final : public OutputSink {
 public:
  struct Sample {
    std::vector<TokenId> tokens;
    std::string text;
    std::vector<TokenLogprob> logprobs;
    std::vector<std::optional<TokenLogprob>> prompt_logprobs;
    FinishReason finish = FinishReason::kNone;
    std::optional<TokenId> stop_token;
    std::string stop_text;
    std::string error;
    int error_code = 0;
    Usage usage;
  };

  void OnOutput(OutputDelta delta) override {
    EXPECT_FALSE(done_[delta.request]) << "delta after the last one";
    Sample& sample = samples_[delta.request][delta.sample];
    EXPECT_EQ(sample.finish, FinishReason::kNone) << "delta after the sample ended";
    sample.tokens.insert(sample.tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
    sample.text += delta.text;
    for (TokenLogprob& logprob : delta.logprobs) sample.logprobs.push_back(std::move(logprob));
    if (!delta.prompt_logprobs.empty()) {
      EXPECT_TRUE(sample.prompt_logprobs.empty()) << "prompt_logprobs twice";
      sample.prompt_logprobs = std::move(delta.prompt_logprobs);
    }
    sample.finish = delta.finish;
    sample.stop_token = delta.stop_token;
    sample.stop_text = delta.stop_text;
    sample.error = delta.error;
    sample.error_code = delta.error_code;
    sample.usage = delta.usage;
    if (delta.last) done_[delta.request] = true;
    ++deltas_;
  }

  bool done(RequestId id) { return done_[id]; }
  const Sample& sample(RequestId id, int index = 0) { return samples_[id][index]; }
  int num_samples(RequestId id) { return static_cast<int>(samples_[id].size()); }
  int64_t deltas() const { return deltas_; }

 private:
  std::map<RequestId, std::map<int, Sample>> samples_;
  std::map<RequestId, bool> done_;
  int64_t deltas_ = 0;
};

struct RequestSpec {
  int prompt_len = 1;
  int max_tokens = 8;
  int n = 1;
  int priority = 0;
  TokenId first = 1;  // prompt tokens are first, first + 1, ... mod vocabulary
  std::string salt = {};
  std::optional<int64_t> deadline_us = {};
  bool prompt_logprobs = false;
};

struct RigMode {
  bool overlap = true;
  int drafts = 0;      // that a row may verify
  int snapshots = -1;  // >= 0: a model with row state, of which so many snapshots are kept
};

// A scheduler and a scripted runner, stepped by hand with or without overlap, audited each step.
class Rig {
 public:
  explicit Rig(const SchedulerConfig& config, RigMode mode = {}, ScriptedRunnerOptions options = {})
      : config_(InMode(config, mode)), overlap_(mode.overlap), metrics_(config_.max_model_len) {
    options.draft_tokens_max = mode.drafts;
    options.has_state = mode.snapshots >= 0;
    options.num_slots = config_.max_num_seqs;
    options.num_blocks = config_.num_blocks;
    options.block_tokens = config_.block_tokens;
    vocab_ = options.vocab;
    scheduler_ = std::make_unique<Scheduler>(config_, nullptr, &metrics_);
    runner_ = std::make_unique<ScriptedRunner>(std::move(options));
  }

  static SchedulerConfig Config() {
    SchedulerConfig config;
    config.max_num_seqs = 8;
    config.max_num_batched_tokens = 64;
    config.max_model_len = 512;
    config.block_tokens = 4;
    config.num_blocks = 256;
    return config;
  }

  RequestId Add(const RequestSpec& spec) {
    auto state = std::make_unique<RequestState>();
    for (int i = 0; i < spec.prompt_len; ++i) {
      state->request.prompt.push_back((spec.first + i) % vocab_);
    }
    state->request.sampling.max_tokens = spec.max_tokens;
    state->request.sampling.n = spec.n;
    state->request.priority = spec.priority;
    state->request.cache_salt = spec.salt;
    state->request.deadline_us = spec.deadline_us;
    if (spec.prompt_logprobs) state->request.sampling.prompt_logprobs = 0;
    return Add(std::move(state));
  }

  RequestId Add(std::unique_ptr<RequestState> state) {
    const Result<int> fits = Scheduler::CheckFits(config_, state->request);
    EXPECT_TRUE(fits.ok()) << fits.status().message();
    state->max_output = *fits;
    state->id = next_id_++;
    state->sink = &sink_;
    state->seed = state->id * 1000;
    state->arrival_us = now_us_;
    metrics_.waiting += 1;
    metrics_.waiting_tokens += static_cast<int64_t>(state->request.prompt.size());
    const RequestId id = state->id;
    scheduler_->Admit(std::move(state));
    return id;
  }

  // The loop body of the engine. False when nothing was planned and nothing was in flight.
  bool Step() {
    ++now_us_;
    const StepPlan& plan = scheduler_->Plan(now_us_);
    const bool planned = !plan.empty();
    StepRunner::Ticket ticket = 0;
    if (planned) ticket = runner_->Launch(plan);
    if (!overlap_ && planned) FeedLate(ticket, plan);
    const bool had_previous = previous_ != nullptr;
    if (overlap_) {
      if (had_previous) {
        scheduler_->Apply(*previous_, runner_->Collect(previous_ticket_), ++now_us_);
      }
      if (planned) FeedLate(ticket, plan);
      previous_ = planned ? &plan : nullptr;
      previous_ticket_ = ticket;
    } else if (planned) {
      scheduler_->Apply(plan, runner_->Collect(ticket), ++now_us_);
    }
    EXPECT_EQ(scheduler_->Audit(), "");
    EXPECT_EQ(runner_->fault(), "");
    return planned || had_previous;
  }

  void FeedLate(StepRunner::Ticket ticket, const StepPlan& plan) {
    const StepDrafts none;
    const StepDrafts& drafts = plan.wants_drafts ? runner_->DraftsOf(ticket) : none;
    runner_->Feed(ticket, scheduler_->LateInputsOf(plan, drafts, ++now_us_));
  }

  void Run(int steps_max = 100000) {
    int steps = 0;
    while (Step()) ASSERT_LT(++steps, steps_max) << "no end";
    EXPECT_TRUE(scheduler_->idle());
    EXPECT_EQ(scheduler_->blocks().num_used(), 0);
    EXPECT_EQ(scheduler_->num_free_slots(), config_.max_num_seqs);
    EXPECT_EQ(metrics_.waiting.load(), 0);
    EXPECT_EQ(metrics_.waiting_tokens.load(), 0);
  }

  // What the scripted model says for a request of `spec`, computed without any scheduling.
  std::vector<TokenId> Expected(RequestId id, const RequestSpec& spec, int sample = 0) const {
    std::vector<TokenId> tokens;
    for (int i = 0; i < spec.prompt_len; ++i) tokens.push_back((spec.first + i) % vocab_);
    std::vector<TokenId> output;
    for (int i = 0; i < spec.max_tokens; ++i) {
      output.push_back(runner_->Next(id * 1000, sample, tokens, i));
      tokens.push_back(output.back());
    }
    return output;
  }

  Scheduler& scheduler() { return *scheduler_; }
  ScriptedRunner& runner() { return *runner_; }
  CollectSink& sink() { return sink_; }
  EngineMetrics& metrics() { return metrics_; }
  int64_t now_us() const { return now_us_; }
  void Advance(int64_t us) { now_us_ += us; }

 private:
  static SchedulerConfig InMode(SchedulerConfig config, const RigMode& mode) {
    config.draft_tokens_max = mode.drafts;
    config.has_state = mode.snapshots >= 0;
    config.state_snapshots = std::max(mode.snapshots, 0);
    return config;
  }

  const SchedulerConfig config_;
  const bool overlap_;
  int vocab_ = 256;
  EngineMetrics metrics_;
  CollectSink sink_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ScriptedRunner> runner_;
  const StepPlan* previous_ = nullptr;
  StepRunner::Ticket previous_ticket_ = 0;
  int64_t now_us_ = 1;
  RequestId next_id_ = 1;
};

}  // namespace deepinfer
