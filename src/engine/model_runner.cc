#include "engine/model_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

// Logits of one head call: bounds memory whatever the batch; touched only as far as used.
constexpr size_t kLogitsBytesMax = size_t{32} << 20;
constexpr int kHeadRowsMin = 8;
constexpr int32_t kPoison = 0x5AFE5AFE;
// Two steps are open at most; the rest is slack so that no queue ever blocks.
constexpr size_t kQueueDepth = 4;

bool AllFinite(const float* x, int n) {
  float sum = 0;  // NaN and infinity survive: inf * 0 and nan * 0 are NaN
  for (int i = 0; i < n; ++i) sum += x[i] * 0.0F;
  return sum == 0.0F;
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::Create(Model* model, Backend* backend,
                                                         const ModelRunnerOptions& options) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model, backend, options));
  DI_TRY(runner->Reserve());
  runner->thread_ = std::thread([raw = runner.get()] { raw->Loop(); });
  return runner;
}

ModelRunner::ModelRunner(Model* model, Backend* backend, const ModelRunnerOptions& options)
    : model_(model),
      backend_(backend),
      options_(options),
      layout_(model->cache_layout()),
      vocab_(model->info().vocab),
      blocks_per_row_((options.max_model_len + options.block_tokens - 1) / options.block_tokens +
                      1),
      rows_(static_cast<size_t>(options.num_slots)),
      launched_(kQueueDepth),
      fed_(kQueueDepth),
      done_(kQueueDepth) {
  layout_.block_tokens = options.block_tokens;
}

ModelRunner::~ModelRunner() {
  launched_.Close();
  fed_.Close();
  if (thread_.joinable()) thread_.join();
}

Status ModelRunner::Reserve() {
  const auto slots = static_cast<size_t>(options_.num_slots);
  const auto tokens = static_cast<size_t>(options_.max_num_batched_tokens);
  const size_t row_bytes = static_cast<size_t>(vocab_) * sizeof(float);
  head_rows_max_ = std::max(kHeadRowsMin, static_cast<int>(kLogitsBytesMax / row_bytes));
  const auto heads = static_cast<size_t>(head_rows_max_);

  DI_ASSIGN(cache_blocks_, backend_->Allocate(static_cast<size_t>(options_.num_blocks) *
                                              static_cast<size_t>(layout_.block_bytes())));
  const size_t slot_bytes = static_cast<size_t>(layout_.slot_bytes());
  if (slot_bytes > 0) {
    DI_ASSIGN(cache_slots_, backend_->Allocate(slots * slot_bytes));
  }
  const size_t table_bytes = slots * static_cast<size_t>(blocks_per_row_) * sizeof(int32_t);
  DI_ASSIGN(block_tables_, backend_->Allocate(table_bytes));
  DI_ASSIGN(step_tables_, backend_->Allocate(table_bytes));
  DI_ASSIGN(logits_, backend_->Allocate(heads * row_bytes));

  arrays_bytes_ =
      (3 * tokens + (slots + 1) + 2 * slots + heads) * sizeof(int32_t) + tokens * sizeof(TokenKind);
  DI_ASSIGN(arrays_, backend_->Allocate(arrays_bytes_));
  auto* next = reinterpret_cast<int32_t*>(arrays_.get());
  for (auto& [array, count] :
       {std::pair{&token_, tokens}, std::pair{&position_, tokens}, std::pair{&token_row_, tokens},
        std::pair{&query_start_, slots + 1}, std::pair{&kv_len_, slots}, std::pair{&slot_, slots},
        std::pair{&row_index_, heads}}) {
    *array = next;
    next += count;
  }
  kind_ = reinterpret_cast<TokenKind*>(next);
  return {};
}

StepRunner::Ticket ModelRunner::Launch(const StepPlan& plan) {
  const Ticket ticket = next_ticket_++;
  const PushResult pushed = launched_.TryPush({ticket, &plan});
  DI_CHECK(pushed == PushResult::kOk, "more than {} steps are open", kQueueDepth);
  return ticket;
}

void ModelRunner::Feed(Ticket /*ticket*/, const LateInputs& late) {
  // Fed in launch order, so the queue's order is the match.
  const PushResult pushed = fed_.TryPush(LateInputs(late));
  DI_CHECK(pushed == PushResult::kOk, "more than {} steps are fed", kQueueDepth);
}

const StepResult& ModelRunner::Collect(Ticket ticket) {
  const std::optional<Ticket> done = done_.Pop();
  DI_CHECK(done == ticket, "step {} is not next", ticket);
  return results_[static_cast<size_t>(ticket) % results_.size()];
}

void ModelRunner::Loop() {
  while (const std::optional<Launched> step = launched_.Pop()) {
    StepResult& result = results_[static_cast<size_t>(step->ticket) % results_.size()];
    const auto begin = std::chrono::steady_clock::now();
    Delay();
    if (options_.test.poison_host) {
      poisoned_plan_ = *step->plan;
      PoisonPlan(&poisoned_plan_);
      RunStep(poisoned_plan_, &result);
      PoisonArrays();
    } else {
      RunStep(*step->plan, &result);
    }
    result.device_us = std::chrono::duration_cast<std::chrono::microseconds>(
                           std::chrono::steady_clock::now() - begin)
                           .count();
    Delay();
    if (done_.Push(Ticket(step->ticket)) != PushResult::kOk) return;
  }
}

void ModelRunner::RunStep(const StepPlan& plan, StepResult* result) {
  result->step = plan.step;
  result->rows.assign(plan.rows.size(), {});
  ApplySetups(plan);
  const StepInput input = GatherInputs(plan, result);
  CopyBlocks(plan, input);
  Delay();
  const float* hidden = model_->Forward(input);
  Delay();
  // The first use of late inputs: rows that ended meanwhile need no logits.
  const std::optional<LateInputs> late = fed_.Pop();
  if (!late.has_value()) return;  // closing: nobody collects this step
  ListHeadRows(plan, *late, *result);
  RunHead(plan, hidden);
  Finish(plan, result);
}

void ModelRunner::ApplySetups(const StepPlan& plan) {
  for (const SlotSetup& setup : plan.setups) {
    RowState& state = rows_[static_cast<size_t>(setup.slot)];
    state.sequence = setup.sequence;
    state.request = setup.request;
    state.bad_token = false;
    state.sampler = std::make_unique<RowSampler>(
        setup.request->sampling, setup.sample_index, setup.seed, vocab_,
        std::span<const TokenId>(model_->info().eos_ids), setup.request->prompt, setup.emitted);
  }
}

// Rows come from device state: what the plan says about a continuing row is an upper bound only.
StepInput ModelRunner::GatherInputs(const StepPlan& plan, StepResult* result) {
  StepInput input;
  input.shape.num_rows = static_cast<int>(plan.rows.size());
  int kv_len_max = 0;
  query_start_[0] = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    GatherRow(plan, i, query_start_[i], &result->rows[i]);
    query_start_[i + 1] = query_start_[i] + row.num_tokens;
    input.shape.query_len_max = std::max(input.shape.query_len_max, row.num_tokens);
    kv_len_max = std::max(kv_len_max, kv_len_[i]);
  }
  input.shape.num_tokens = query_start_[plan.rows.size()];
  input.shape.kv_len_max = kv_len_max;

  const int stride = (kv_len_max + options_.block_tokens - 1) / options_.block_tokens;
  auto* tables = reinterpret_cast<int32_t*>(step_tables_.get());
  const auto* states = reinterpret_cast<const int32_t*>(block_tables_.get());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const int used = (kv_len_[i] + options_.block_tokens - 1) / options_.block_tokens;
    std::memcpy(tables + i * static_cast<size_t>(stride),
                states + static_cast<size_t>(slot_[i]) * static_cast<size_t>(blocks_per_row_),
                static_cast<size_t>(used) * sizeof(int32_t));
  }
  input.token = token_;
  input.position = position_;
  input.token_row = token_row_;
  input.query_start = query_start_;
  input.kv_len = kv_len_;
  input.slot = slot_;
  input.kind = kind_;
  input.block_table = tables;
  input.block_table_stride = stride;
  input.cache_blocks = cache_blocks_.get();
  input.cache_slots = cache_slots_.get();
  input.layout = &layout_;
  return input;
}

void ModelRunner::GatherRow(const StepPlan& plan, size_t index, int32_t query_start,
                            RowResult* result) {
  const PlanRow& row = plan.rows[index];
  RowState& state = rows_[static_cast<size_t>(row.slot)];
  DI_CHECK(state.sequence == row.sequence, "slot {} was not set up for sequence {}", row.slot,
           row.sequence);
  result->sequence = row.sequence;
  result->slot = row.slot;
  if (row.reset) {
    state.length = row.start;
    state.num_blocks = 0;
  }
  const std::span<const int32_t> blocks = plan.BlocksOf(row);
  DI_CHECK(state.num_blocks + row.num_blocks <= blocks_per_row_, "sequence {} has {} blocks",
           row.sequence, state.num_blocks + row.num_blocks);
  std::copy(blocks.begin(), blocks.end(),
            reinterpret_cast<int32_t*>(block_tables_.get()) +
                static_cast<ptrdiff_t>(row.slot) * blocks_per_row_ + state.num_blocks);
  state.num_blocks += row.num_blocks;

  const std::span<const TokenId> known = plan.TokensOf(row);
  for (int i = 0; i < row.num_tokens; ++i) {
    const int32_t token = known.empty() ? state.last_token : known[static_cast<size_t>(i)];
    const bool good = token >= 0 && token < vocab_ && !(known.empty() && state.bad_token);
    if (!good) result->status = RowStatus::kBadId;
    const int32_t at = query_start + i;
    token_[at] = good ? token : 0;
    kind_[at] = good ? TokenKind::kText : TokenKind::kDead;
    position_[at] = state.length + i;
    token_row_[at] = static_cast<int32_t>(index);
  }
  state.length += row.num_tokens;
  DI_CHECK(state.num_blocks * options_.block_tokens >= state.length,
           "sequence {}: {} positions in {} blocks", row.sequence, state.length, state.num_blocks);
  kv_len_[index] = state.length;
  slot_[index] = row.slot;
}

void ModelRunner::CopyBlocks(const StepPlan& plan, const StepInput& input) {
  if (!plan.block_copies.empty()) backend_->CopyBlocks(input, plan.block_copies);
}

void ModelRunner::ListHeadRows(const StepPlan& plan, const LateInputs& late,
                               const StepResult& result) {
  head_rows_.clear();
  ended_.assign(plan.rows.size(), 0);
  for (const int32_t row : late.ended_rows) ended_[static_cast<size_t>(row)] = 1;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    if (ended_[i] != 0 || result.rows[i].status != RowStatus::kOk) continue;
    const int32_t first = query_start_[i];
    const int32_t last = first + row.num_tokens - 1;
    if (row.prompt_logprobs) {
      const std::vector<TokenId>& prompt = rows_[static_cast<size_t>(row.slot)].request->prompt;
      for (int32_t at = first; at <= last; ++at) {
        const int predicted = position_[at] + 1;
        if (predicted >= static_cast<int>(prompt.size())) break;
        HeadRow& head = head_rows_.emplace_back();
        head.hidden = at;
        head.plan_row = static_cast<int>(i);
        head.position = predicted;
        head.target = prompt[static_cast<size_t>(predicted)];
      }
    }
    if (row.sample) {
      HeadRow& head = head_rows_.emplace_back();
      head.hidden = last;
      head.plan_row = static_cast<int>(i);
      head.position = kv_len_[i];
    }
  }
}

void ModelRunner::RunHead(const StepPlan& plan, const float* hidden) {
  auto* logits = reinterpret_cast<float*>(logits_.get());
  struct Context {
    ModelRunner* runner;
    const StepPlan* plan;
    HeadRow* rows;
    float* logits;
  };
  for (size_t begin = 0; begin < head_rows_.size(); begin += static_cast<size_t>(head_rows_max_)) {
    const auto count =
        static_cast<int>(std::min(head_rows_.size() - begin, static_cast<size_t>(head_rows_max_)));
    HeadRow* rows = head_rows_.data() + begin;
    for (int i = 0; i < count; ++i) row_index_[i] = rows[i].hidden;
    model_->Head(hidden, row_index_, count, logits);
    Context context{this, &plan, rows, logits};
    backend_->ParallelRows(
        count,
        [](void* raw, int i) {
          auto& c = *static_cast<Context*>(raw);
          c.runner->RunHeadRow(*c.plan, &c.rows[i],
                               c.logits + static_cast<ptrdiff_t>(i) * c.runner->vocab_);
        },
        &context);
  }
}

// On any compute thread; touches its own row alone.
void ModelRunner::RunHeadRow(const StepPlan& plan, HeadRow* head, float* logits) {
  const PlanRow& row = plan.rows[static_cast<size_t>(head->plan_row)];
  RowState& state = rows_[static_cast<size_t>(row.slot)];
  if (head->target < 0) {
    head->sampled = state.sampler->Sample(logits, head->position);
    if (head->sampled.status == RowStatus::kOk &&
        (head->sampled.id < 0 || head->sampled.id >= vocab_)) {
      head->sampled.status = RowStatus::kBadId;
    }
    return;
  }
  if (!AllFinite(logits, vocab_)) {
    head->sampled.status = RowStatus::kNan;
    return;
  }
  head->logprob = LogprobAt(logits, vocab_, head->target, *state.request->sampling.prompt_logprobs);
}

void ModelRunner::Finish(const StepPlan& plan, StepResult* result) {
  for (HeadRow& head : head_rows_) {
    const PlanRow& row = plan.rows[static_cast<size_t>(head.plan_row)];
    RowResult& out = result->rows[static_cast<size_t>(head.plan_row)];
    RowState& state = rows_[static_cast<size_t>(row.slot)];
    if (head.sampled.status != RowStatus::kOk) {
      out.status = head.sampled.status;
      state.bad_token = true;
      continue;
    }
    if (head.target >= 0) {
      out.prompt_logprobs.push_back(std::move(head.logprob));
      continue;
    }
    out.sampled = true;
    out.token = head.sampled.id;
    out.logprob = std::move(head.sampled.logprob);
    state.last_token = head.sampled.id;
    state.sampler->Observe(head.sampled.id);
  }
}

void ModelRunner::Delay() {
  if (options_.test.delay_us_max <= 0) return;
  const uint32_t word = Philox4x32(options_.test.seed, {delays_++, 0, 0, 0})[0];
  const auto until =
      std::chrono::steady_clock::now() +
      std::chrono::microseconds(word % static_cast<uint32_t>(options_.test.delay_us_max));
  while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

void ModelRunner::PoisonPlan(StepPlan* plan) const {
  for (PlanRow& row : plan->rows) {
    if (!row.reset) row.start = kPoison;
  }
}

void ModelRunner::PoisonArrays() {
  std::memset(arrays_.get(), 0x5A, arrays_bytes_);
  auto* logits = reinterpret_cast<float*>(logits_.get());
  const size_t used = std::min(head_rows_.size(), static_cast<size_t>(head_rows_max_)) *
                      static_cast<size_t>(vocab_);
  std::fill_n(logits, used, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace deepinfer
