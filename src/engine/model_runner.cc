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
// One step's part of the average, so that time without requests weighs little.
constexpr int64_t kHostNsMax = 1'000'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::Create(Model* model, Backend* backend,
                                                         const ModelRunnerOptions& options,
                                                         std::unique_ptr<Drafter> drafter) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model, backend, options, std::move(drafter)));
  DI_TRY(runner->Reserve());
  runner->thread_ = std::thread([raw = runner.get()] { raw->Loop(); });
  return runner;
}

ModelRunner::ModelRunner(Model* model, Backend* backend, const ModelRunnerOptions& options,
                         std::unique_ptr<Drafter> drafter)
    : model_(model),
      backend_(backend),
      options_(options),
      drafter_(std::move(drafter)),
      layout_(model->cache_layout()),
      vocab_(model->info().vocab),
      blocks_per_row_((options.max_model_len + options.block_tokens - 1) / options.block_tokens +
                      1),
      rows_(static_cast<size_t>(options.num_slots)),
      launched_(kQueueDepth),
      drafts_(kQueueDepth),
      fed_(kQueueDepth),
      done_(kQueueDepth) {
  layout_.block_tokens = options.block_tokens;
  DI_CHECK(options.draft_tokens_max >= 0 && options.draft_tokens_max <= kDraftTokensMax);
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
  head_rows_max_ = std::max(
      {kHeadRowsMin, 1 + options_.draft_tokens_max, static_cast<int>(kLogitsBytesMax / row_bytes)});
  const auto heads = static_cast<size_t>(head_rows_max_);

  DI_ASSIGN(cache_blocks_, backend_->Allocate(static_cast<size_t>(options_.num_blocks) *
                                              static_cast<size_t>(layout_.block_bytes())));
  const size_t slot_bytes = static_cast<size_t>(layout_.slot_bytes());
  if (slot_bytes > 0) {
    DI_ASSIGN(cache_slots_, backend_->Allocate(slots * slot_bytes));
    if (options_.state_snapshots > 0) {
      DI_ASSIGN(snapshots_,
                backend_->Allocate(static_cast<size_t>(options_.state_snapshots) * slot_bytes));
    }
  }
  const size_t table_bytes = slots * static_cast<size_t>(blocks_per_row_) * sizeof(int32_t);
  DI_ASSIGN(block_tables_, backend_->AllocateShared(table_bytes));
  DI_ASSIGN(step_tables_, backend_->AllocateShared(table_bytes));
  DI_ASSIGN(logits_, backend_->AllocateShared(heads * row_bytes));

  arrays_bytes_ = (3 * tokens + (slots + 1) + (5 + kLeadTokens) * slots + heads) * sizeof(int32_t) +
                  tokens * sizeof(TokenKind);
  DI_ASSIGN(arrays_, backend_->AllocateShared(arrays_bytes_));
  auto* next = reinterpret_cast<int32_t*>(arrays_.get());
  for (auto& [array, count] :
       {std::pair{&token_, tokens}, std::pair{&position_, tokens}, std::pair{&token_row_, tokens},
        std::pair{&query_start_, slots + 1}, std::pair{&kv_len_, slots}, std::pair{&slot_, slots},
        std::pair{&replay_begin_, slots}, std::pair{&write_floor_, slots},
        std::pair{&suffix_begin_, slots}, std::pair{&lead_token_, slots * kLeadTokens},
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

const StepDrafts& ModelRunner::DraftsOf(Ticket /*ticket*/) {
  // Published in launch order, as steps are fed.
  std::optional<StepDrafts> drafts = drafts_.TryPop();
  if (!drafts.has_value()) {
    backend_->ReturnCore();
    drafts = drafts_.Pop();
  }
  taken_drafts_ = std::move(drafts).value();
  return taken_drafts_;
}

void ModelRunner::Feed(Ticket /*ticket*/, const LateInputs& late) {
  // Fed in launch order, so the queue's order is the match.
  const PushResult pushed = fed_.TryPush(LateInputs(late));
  DI_CHECK(pushed == PushResult::kOk, "more than {} steps are fed", kQueueDepth);
}

void ModelRunner::CountHostTime(int64_t now_ns) {
  if (collected_ns_ == 0) return;
  const int64_t spent = std::min(now_ns - collected_ns_, kHostNsMax);
  const int64_t average = host_ns_.load(std::memory_order_relaxed);
  host_ns_.store(average + (spent - average) / 8, std::memory_order_relaxed);
}

const StepResult& ModelRunner::Collect(Ticket ticket) {
  CountHostTime(NowNs());
  std::optional<Ticket> done = done_.TryPop();
  if (!done.has_value()) {
    backend_->ReturnCore();
    done = done_.Pop();
  }
  DI_CHECK(done == ticket, "step {} is not next", ticket);
  collected_ns_ = NowNs();
  return results_[static_cast<size_t>(ticket) % results_.size()];
}

WeightStats ModelRunner::Stats() const {
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  const WeightCacheStats cache = backend_->weight_cache_stats();
  const TableStats tables = model_->table_stats();
  const int64_t at_load = number(model_->info().weight_bytes) - cache.known_bytes;
  return {.packed_bytes = at_load + cache.bytes,
          .touched_bytes = at_load + cache.touched_bytes + number(tables.rows.read_bytes),
          .cache_limit_bytes = cache.limit_bytes,
          .cache_bytes = cache.bytes,
          .cache_lookups = cache.lookups,
          .cache_hits = cache.hits,
          .cache_streams = cache.streams,
          .cache_loads = cache.loads,
          .cache_evictions = cache.evictions,
          .cache_load_us = cache.load_us,
          .engram_tables = tables.tables,
          .engram_rows = number(tables.rows.rows),
          .engram_hits = number(tables.rows.hits),
          .engram_reads = number(tables.rows.reads),
          .engram_read_bytes = number(tables.rows.read_bytes),
          .engram_errors = number(tables.rows.errors),
          .engram_stall_us = number(tables.rows.stall_us)};
}

void ModelRunner::Loop() {
  while (const std::optional<Launched> step = launched_.Pop()) {
    StepResult& result = results_[static_cast<size_t>(step->ticket) % results_.size()];
    const auto begin = std::chrono::steady_clock::now();
    Delay();
    const StepPlan* plan = step->plan;
    if (options_.test.poison_host) {
      poisoned_plan_ = *step->plan;
      PoisonPlan(&poisoned_plan_);
      plan = &poisoned_plan_;
    }
    if (!RunStep(*plan, &result)) return;
    result.device_us = std::chrono::duration_cast<std::chrono::microseconds>(
                           std::chrono::steady_clock::now() - begin)
                           .count();
    Delay();
    // The engine thread starts to work when it has the step, and stops in its next Collect.
    if (EngineNeedsCore()) backend_->LendCore();
    if (done_.Push(Ticket(step->ticket)) != PushResult::kOk) return;
    // From here on plan, requests and result belong to the engine thread. Drafts need none of them,
    // so they are made while it applies the step.
    Draft();
    if (options_.test.poison_host) PoisonArrays();
  }
}

// False when the runner closes: nobody collects this step.
bool ModelRunner::RunStep(const StepPlan& plan, StepResult* result) {
  result->step = plan.step;
  result->rows.assign(plan.rows.size(), {});
  result->emitted.clear();
  ApplySetups(plan);
  const StepInput input = GatherInputs(plan, result);
  if (plan.wants_drafts) PublishDrafts(plan);
  CopyBlocks(plan, input);
  Delay();
  const float* hidden = input.shape.num_tokens > 0 ? model_->Forward(input) : nullptr;
  SaveStates(plan);
  Delay();
  // The first use of late inputs: rows that ended meanwhile need no logits.
  const std::optional<LateInputs> late = fed_.Pop();
  if (!late.has_value()) return false;
  ListHeadRows(plan, *late, *result);
  RunHead(plan, hidden);
  Finish(plan, result);
  return true;
}

void ModelRunner::ApplySetups(const StepPlan& plan) {
  for (const SlotSetup& setup : plan.setups) {
    RowState& state = rows_[static_cast<size_t>(setup.slot)];
    state.sequence = setup.sequence;
    state.request = setup.request;
    state.bad_token = false;
    state.length_max = setup.length_max;
    state.drafts.count = 0;
    state.replay = setup.replay;
    if (setup.load_state >= 0) LoadState(setup.load_state, setup.slot);
    if (drafter_ != nullptr && drafter_->NeedsHistory()) {
      state.history.assign(setup.request->prompt.begin(), setup.request->prompt.end());
      state.history.insert(state.history.end(), setup.emitted.begin(), setup.emitted.end());
    }
    state.sampler = std::make_unique<RowSampler>(
        setup.request->sampling, setup.sample_index, setup.seed, vocab_,
        std::span<const TokenId>(model_->info().eos_ids), setup.request->prompt, setup.emitted,
        std::span(&model_->info().image_id, model_->info().image_id >= 0 ? 1U : 0U));
  }
}

// Rows come from device state: what the plan says about a continuing row is an upper bound only.
StepInput ModelRunner::GatherInputs(const StepPlan& plan, StepResult* result) {
  // The arrays of a step that sampled nothing may still be read.
  backend_->Synchronize();
  StepInput input;
  input_row_.assign(plan.rows.size(), -1);
  int rows = 0;
  int kv_len_max = 0;
  query_start_[0] = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const int tokens = GatherRow(plan, i, rows, &result->rows[i]);
    if (tokens == 0) continue;
    input_row_[i] = rows;
    query_start_[rows + 1] = query_start_[rows] + tokens;
    input.shape.query_len_max = std::max(input.shape.query_len_max, tokens);
    kv_len_max = std::max(kv_len_max, kv_len_[rows]);
    ++rows;
  }
  input.shape.num_rows = rows;
  input.shape.num_tokens = query_start_[rows];
  input.shape.kv_len_max = kv_len_max;

  const int stride = (kv_len_max + options_.block_tokens - 1) / options_.block_tokens;
  auto* tables = reinterpret_cast<int32_t*>(step_tables_.get());
  const auto* states = reinterpret_cast<const int32_t*>(block_tables_.get());
  for (int r = 0; r < rows; ++r) {
    const int used = (kv_len_[r] + options_.block_tokens - 1) / options_.block_tokens;
    std::memcpy(tables + static_cast<ptrdiff_t>(r) * stride,
                states + static_cast<ptrdiff_t>(slot_[r]) * blocks_per_row_,
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
  if (options_.compact) FillReplay(plan, &input);
  return input;
}

void ModelRunner::PublishDrafts(const StepPlan& plan) {
  StepDrafts drafts;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    if (row.num_known == 0 && input_row_[i] >= 0) {
      const DraftTokens& own = rows_[static_cast<size_t>(row.slot)].drafts;
      drafts.ids.insert(drafts.ids.end(), own.ids.begin(), own.ids.begin() + own.count);
    }
    drafts.end.push_back(static_cast<int32_t>(drafts.ids.size()));
  }
  const PushResult pushed = drafts_.TryPush(std::move(drafts));
  DI_CHECK(pushed != PushResult::kFull, "more than {} steps are open", kQueueDepth);
}

// The bounds belong to the sequence. The first row after a hit has no state to look back into, so
// the tokens before it come along.
void ModelRunner::FillReplay(const StepPlan& plan, StepInput* input) {
  int suffix_tokens = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const int r = input_row_[i];
    if (r < 0) continue;
    const PlanRow& row = plan.rows[i];
    const RowState& state = rows_[static_cast<size_t>(row.slot)];
    replay_begin_[r] = state.replay.replay_begin;
    write_floor_[r] = state.replay.write_floor;
    suffix_begin_[r] = state.replay.suffix_begin;
    const int count = query_start_[r + 1] - query_start_[r];
    suffix_tokens += std::clamp(kv_len_[r] - suffix_begin_[r], 0, count);
    const std::span<const TokenId> prompt = state.request->prompt;
    const int first = kv_len_[r] - count;
    for (int back = 0; back < kLeadTokens; ++back) {
      const int at = first - 1 - back;
      const bool lost = row.reset && at >= 0 && at < static_cast<int>(prompt.size());
      lead_token_[r * kLeadTokens + back] = lost ? prompt[static_cast<size_t>(at)] : -1;
    }
  }
  input->shape.suffix_tokens = suffix_tokens;
  input->replay_begin = replay_begin_;
  input->write_floor = write_floor_;
  input->suffix_begin = suffix_begin_;
  input->lead_token = lead_token_;
}

void ModelRunner::LoadState(int32_t snapshot, int slot) {
  const int64_t bytes = layout_.slot_bytes();
  backend_->Copy(cache_slots_.get() + slot * bytes, snapshots_.get() + snapshot * bytes,
                 static_cast<size_t>(bytes));
}

void ModelRunner::SaveStates(const StepPlan& plan) {
  const int64_t bytes = layout_.slot_bytes();
  for (const PlanRow& row : plan.rows) {
    if (row.save_state < 0) continue;
    backend_->Copy(snapshots_.get() + row.save_state * bytes, cache_slots_.get() + row.slot * bytes,
                   static_cast<size_t>(bytes));
  }
}

// How many tokens a row runs: all that are known, or the one sampled last and its drafts.
int ModelRunner::QueryTokens(const PlanRow& row, const RowState& state) const {
  if (row.num_known > 0) return row.num_known;
  const int drafts = state.bad_token ? 0 : state.drafts.count;
  return std::max(0, std::min({row.num_tokens, 1 + drafts, state.length_max - state.length}));
}

int ModelRunner::GatherRow(const StepPlan& plan, size_t index, int input_row, RowResult* result) {
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
  const int count = QueryTokens(row, state);
  const int32_t query_start = query_start_[input_row];
  for (int i = 0; i < count; ++i) {
    const int32_t token = !known.empty() ? known[static_cast<size_t>(i)]
                          : i == 0       ? state.last_token
                                         : state.drafts.ids[static_cast<size_t>(i - 1)];
    const bool good = token >= 0 && token < vocab_ && !(known.empty() && state.bad_token);
    if (!good) result->status = RowStatus::kBadId;
    const int32_t at = query_start + i;
    token_[at] = good ? token : 0;
    kind_[at] = good ? TokenKind::kText : TokenKind::kDead;
    position_[at] = state.length + i;
    token_row_[at] = input_row;
  }
  DI_CHECK(state.num_blocks * options_.block_tokens >= state.length + count,
           "sequence {}: {} positions in {} blocks", row.sequence, state.length + count,
           state.num_blocks);
  if (count == 0) return 0;
  kv_len_[input_row] = state.length + count;
  slot_[input_row] = row.slot;
  if (row.num_known > 0) {
    state.length += count;
  } else {
    state.drafts.count = count - 1;  // those that are verified now; VerifyRow needs them
    result->num_drafts = count - 1;
  }
  return count;
}

void ModelRunner::CopyBlocks(const StepPlan& plan, const StepInput& input) {
  if (!plan.block_copies.empty()) backend_->CopyBlocks(input, plan.block_copies);
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
  backend_->Synchronize();
  std::memset(arrays_.get(), 0x5A, arrays_bytes_);
  auto* logits = reinterpret_cast<float*>(logits_.get());
  const size_t used = std::min(head_rows_.size(), static_cast<size_t>(head_rows_max_)) *
                      static_cast<size_t>(vocab_);
  std::fill_n(logits, used, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace deepinfer
