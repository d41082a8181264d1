#include "tests/stress/stress_rig.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "engine/memory_plan.h"
#include "engine/spec/model_drafter.h"
#include "engine/spec/ngram_drafter.h"
#include "engine/spec/replay_drafter.h"

namespace deepinfer {
namespace {

constexpr int kMaxModelLen = 512;
constexpr int kPreemptAfter = 5;
constexpr int kSnapshots = 24;

const StressMode kModes[] = {
    {.name = "overlap", .overlap = true},
    {.name = "chunk 1", .chunk = 1, .overlap = true},
    {.name = "chunk 7", .chunk = 7},
    {.name = "chunk 64", .chunk = 64, .overlap = true},
    {.name = "batch", .batch = true},
    {.name = "batch, overlap", .batch = true, .overlap = true},
    {.name = "batch, chunk 1", .chunk = 1, .batch = true, .overlap = true},
    {.name = "batch, chunk 7", .chunk = 7, .batch = true, .overlap = true},
    {.name = "batch, chunk 64", .chunk = 64, .batch = true},
    {.name = "preempted", .preempt = true},
    {.name = "preempted, overlap", .preempt = true, .overlap = true},
    {.name = "preempted, batch", .chunk = 7, .batch = true, .preempt = true, .overlap = true},
    {.name = "small cache", .batch = true, .overlap = true, .num_blocks = 34},
    {.name = "half cached", .warm_half = true},
    {.name = "blocks of 64", .batch = true, .warm_half = true, .overlap = true, .block_size = 64},
    {.name = "blocks of 256", .chunk = 7, .batch = true, .block_size = 256, .num_blocks = 64},
    {.name = "half cached, batch",
     .chunk = 7,
     .batch = true,
     .warm_half = true,
     .preempt = true,
     .overlap = true},
    {.name = "delays and poison",
     .batch = true,
     .overlap = true,
     .test = {.delay_us_max = 300, .poison_host = true}},
    {.name = "delays and poison, chunk 7",
     .chunk = 7,
     .batch = true,
     .preempt = true,
     .overlap = true,
     .test = {.delay_us_max = 300, .poison_host = true, .seed = 2}},
};

// Drafts change nothing, at whatever depth they are right, and whatever else happens meanwhile.
const StressMode kDraftModes[] = {
    {.name = "n-gram", .drafting = Drafting::kNgram},
    {.name = "n-gram, overlap, batch",
     .batch = true,
     .overlap = true,
     .drafting = Drafting::kNgram,
     .drafts_max = 16},
    {.name = "depth 0", .overlap = true, .drafting = Drafting::kReplay, .depth = 0},
    {.name = "depth 1", .overlap = true, .drafting = Drafting::kReplay, .depth = 1},
    {.name = "depth 2", .drafting = Drafting::kReplay, .depth = 2},
    {.name = "depth 3", .overlap = true, .drafting = Drafting::kReplay, .depth = 3},
    {.name = "depth 4", .batch = true, .drafting = Drafting::kReplay, .depth = 4},
    {.name = "full block", .overlap = true, .drafting = Drafting::kReplay, .depth = 5},
    {.name = "every depth, batch", .batch = true, .overlap = true, .drafting = Drafting::kReplay},
    {.name = "every depth of 16", .overlap = true, .drafting = Drafting::kReplay, .drafts_max = 16},
    {.name = "one draft", .batch = true, .drafting = Drafting::kReplay, .drafts_max = 1},
    {.name = "drafts, chunk 1",
     .chunk = 1,
     .batch = true,
     .overlap = true,
     .drafting = Drafting::kReplay},
    {.name = "drafts, preempted", .preempt = true, .drafting = Drafting::kReplay},
    {.name = "drafts, preempted, batch",
     .chunk = 7,
     .batch = true,
     .preempt = true,
     .overlap = true,
     .drafting = Drafting::kReplay},
    {.name = "drafts, small cache",
     .batch = true,
     .overlap = true,
     .num_blocks = 34,
     .drafting = Drafting::kReplay},
    {.name = "drafts, half cached",
     .batch = true,
     .warm_half = true,
     .overlap = true,
     .drafting = Drafting::kReplay},
    {.name = "drafts, delays and poison",
     .chunk = 7,
     .batch = true,
     .preempt = true,
     .overlap = true,
     .drafting = Drafting::kReplay,
     .test = {.delay_us_max = 300, .poison_host = true, .seed = 3}},
};

// With the draft layers of the model itself.
const StressMode kDraftLayerModes[] = {
    {.name = "draft layers", .drafting = Drafting::kModel},
    {.name = "draft layers, overlap, batch",
     .batch = true,
     .overlap = true,
     .drafting = Drafting::kModel},
    {.name = "draft layers, chunk 7, preempted",
     .chunk = 7,
     .batch = true,
     .preempt = true,
     .overlap = true,
     .drafting = Drafting::kModel},
    {.name = "draft layers, half cached",
     .warm_half = true,
     .overlap = true,
     .drafting = Drafting::kModel},
    {.name = "draft layers, delays and poison",
     .chunk = 7,
     .batch = true,
     .overlap = true,
     .drafting = Drafting::kModel,
     .test = {.delay_us_max = 300, .poison_host = true, .seed = 4}},
};

std::unique_ptr<Drafter> MakeDrafter(LoadedModel* model, const StressMode& mode,
                                     std::vector<std::vector<TokenId>> texts) {
  switch (mode.drafting) {
    case Drafting::kNone:
      return nullptr;
    case Drafting::kNgram:
      return std::make_unique<NgramDrafter>(1, 4);
    case Drafting::kModel:
      return std::make_unique<ModelDrafter>(model->model.get());
    case Drafting::kReplay:
      break;
  }
  return std::make_unique<ReplayDrafter>(ReplayOptions{
      .texts = std::move(texts), .depth = mode.depth, .vocab = model->model->info().vocab});
}

class FoldSink final : public OutputSink {
 public:
  void OnOutput(OutputDelta delta) override {
    Answer& to = answers[delta.request];
    to.tokens.insert(to.tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (TokenLogprob& logprob : delta.logprobs) to.logprobs.push_back(std::move(logprob));
    if (!delta.prompt_logprobs.empty()) to.prompt_logprobs = std::move(delta.prompt_logprobs);
    to.cached_tokens = delta.usage.cached_tokens;
    to.finish = delta.finish;
    if (delta.finish == FinishReason::kError) to.error = delta.error;
    if (delta.last) ended.insert(delta.request);
  }

  std::map<RequestId, Answer> answers;
  std::set<RequestId> ended;
};

class Rig {
 public:
  Rig(LoadedModel* model, const StressMode& mode, std::vector<std::vector<TokenId>> texts)
      : metrics_(kMaxModelLen),
        grammars_(model->tokenizer.get(),
                  {.vocab = model->model->info().vocab, .eos_ids = model->model->info().eos_ids},
                  &clock_) {
    SchedulerConfig config;
    config.max_num_seqs = mode.slots;
    config.max_num_batched_tokens = 512;
    config.long_prefill_token_threshold = mode.chunk;
    config.max_model_len = kMaxModelLen;
    config.num_blocks = mode.num_blocks;
    config.block_tokens = mode.block_size;
    config.eos_ids = model->model->info().eos_ids;
    config.draft_tokens_max = mode.drafting == Drafting::kNone ? 0 : mode.drafts_max;
    const CacheLayout& layout = model->model->cache_layout();
    if (layout.has_state()) {
      config.has_state = true;
      config.state_snapshots = mode.keep_tokens > 0 ? 0 : kSnapshots;
      config.replay_window = mode.keep_tokens > 0 ? layout.replay_window : 0;
      config.keep_tokens = mode.keep_tokens;
      config.draft_tokens_max = std::min(config.draft_tokens_max, layout.rollback_max);
    }
    if (mode.drafting == Drafting::kModel) {
      config.draft_tokens_max = std::min(config.draft_tokens_max, model->model->draft_info().block);
    }
    Result<std::unique_ptr<ModelRunner>> runner =
        ModelRunner::Create(model->model.get(), model->backend.get(),
                            {.num_slots = mode.slots,
                             .max_num_batched_tokens = config.max_num_batched_tokens,
                             .max_model_len = kMaxModelLen,
                             .block_tokens = config.block_tokens,
                             .num_blocks = config.num_blocks,
                             .draft_tokens_max = config.draft_tokens_max,
                             .state_snapshots = config.state_snapshots,
                             .compact = config.replay_window > 0,
                             .test = mode.test},
                            MakeDrafter(model, mode, std::move(texts)));
    DI_CHECK(runner.ok(), "{}", runner.status().message());
    loop_ = std::make_unique<EngineLoop>(config, mode.overlap, 1024, std::move(runner).value(),
                                         nullptr, &clock_, &metrics_);
    config_ = config;
  }

  RequestId Submit(const Ask& ask) {
    auto state = std::make_unique<RequestState>();
    state->id = next_id_++;
    state->request.prompt = ask.prompt;
    state->request.sampling = ask.sampling;
    state->seed = static_cast<uint64_t>(ask.sampling.seed.value_or(0));
    state->sink = &sink_;
    const Result<int> fits = Scheduler::CheckFits(config_, state->request);
    DI_CHECK(fits.ok(), "{}", fits.status().message());
    state->max_output = *fits;
    const RequestId id = state->id;
    if (ask.sampling.grammar.has_value()) state->grammar = Compiled(*ask.sampling.grammar);
    loop_->Post({EngineMessage::Kind::kSubmit, std::move(state), 0});
    return id;
  }

  // Waits for it: the loop is idle when nothing is planned.
  GrammarOrder Compiled(const GrammarSource& source) {
    BoundedQueue<int> ready(1);
    Result<GrammarOrder> order = grammars_.Order(source, [&ready] { ready.TryPush(1); });
    DI_CHECK(order.ok(), "{}", order.status().message());
    ready.Pop();
    return *std::move(order);
  }

  // Until every request has ended.
  void Run(bool preempt) {
    std::set<RequestId> preempted;
    while (loop_->Step() == StepOutcome::kBusy) {
      most_running_ = std::max(most_running_, loop_->scheduler().num_running());
      for (const auto& [id, answer] : sink_.answers) {
        if (!preempt || answer.tokens.size() < kPreemptAfter) continue;
        if (preempted.insert(id).second) loop_->Post({EngineMessage::Kind::kPreempt, nullptr, id});
      }
    }
    const std::string fault = loop_->scheduler().Audit();
    DI_CHECK(fault.empty(), "{}", fault);
    DI_CHECK(loop_->scheduler().blocks().num_used() == 0, "blocks were lost");
    if (preempt) DI_CHECK(metrics_.preemptions > 0, "nothing was preempted");
  }

  Answer Take(RequestId id) {
    DI_CHECK(sink_.ended.contains(id), "request {} has not ended", id);
    sink_.answers[id].verifications = metrics_.spec_drafts;
    sink_.answers[id].drafts_accepted = metrics_.spec_accepted_tokens;
    sink_.answers[id].most_running = most_running_;
    return std::move(sink_.answers[id]);
  }

 private:
  const RealClock clock_;
  EngineMetrics metrics_;
  GrammarCompiler grammars_;
  SchedulerConfig config_;
  FoldSink sink_;
  std::unique_ptr<EngineLoop> loop_;
  RequestId next_id_ = 1;
  int most_running_ = 0;
};

std::string DifferenceOf(const TokenLogprob& a, const TokenLogprob& b) {
  if (a.id != b.id || a.rank != b.rank) return Format("id {} and {}", a.id, b.id);
  if (std::bit_cast<uint32_t>(a.logprob) != std::bit_cast<uint32_t>(b.logprob)) {
    return Format("log-probability {} and {}", a.logprob, b.logprob);
  }
  return a.top == b.top ? "" : "likeliest tokens";
}

}  // namespace

std::span<const StressMode> StressModes() { return kModes; }
std::vector<StressMode> DraftModes(const Model& model) {
  std::vector<StressMode> modes(std::begin(kDraftModes), std::end(kDraftModes));
  if (model.draft_info().block > 0) {
    modes.insert(modes.end(), std::begin(kDraftLayerModes), std::end(kDraftLayerModes));
  }
  return modes;
}

std::vector<Answer> RunAsks(LoadedModel* model, const std::vector<Ask>& asks,
                            const StressMode& mode, const std::vector<Answer>& plain) {
  std::vector<std::vector<TokenId>> texts;
  for (size_t i = 0; i < plain.size(); ++i) {
    texts.push_back(asks[i].prompt);
    texts.back().insert(texts.back().end(), plain[i].tokens.begin(), plain[i].tokens.end());
  }
  Rig rig(model, mode, std::move(texts));
  if (mode.warm_half) {
    for (const Ask& ask : asks) {
      Ask half = ask;
      half.prompt.resize((ask.prompt.size() + 1) / 2);
      half.sampling.max_tokens = 1;
      half.sampling.min_tokens = 0;
      rig.Submit(half);
      rig.Run(false);
    }
  }
  std::vector<RequestId> ids;
  for (const Ask& ask : asks) {
    ids.push_back(rig.Submit(ask));
    if (!mode.batch) rig.Run(mode.preempt);
  }
  rig.Run(mode.preempt);
  std::vector<Answer> answers;
  for (const RequestId id : ids) answers.push_back(rig.Take(id));
  return answers;
}

std::string Difference(const Answer& a, const Answer& b) {
  if (a.error != b.error) return Format("error '{}' and '{}'", a.error, b.error);
  if (a.tokens != b.tokens) return "tokens";
  if (a.logprobs.size() != b.logprobs.size()) return "number of log-probabilities";
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    const std::string difference = DifferenceOf(a.logprobs[i], b.logprobs[i]);
    if (!difference.empty()) return Format("output {}: {}", i, difference);
  }
  if (a.prompt_logprobs.size() != b.prompt_logprobs.size()) return "number of prompt tokens";
  for (size_t i = 1; i < a.prompt_logprobs.size(); ++i) {
    const std::string difference = DifferenceOf(*a.prompt_logprobs[i], *b.prompt_logprobs[i]);
    if (!difference.empty()) return Format("prompt {}: {}", i, difference);
  }
  return "";
}

}  // namespace deepinfer
