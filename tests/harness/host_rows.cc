#include "tests/harness/host_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace deepinfer {

HostRows::HostRows(Backend* backend, CacheLayout layout, int sequences, int positions_max)
    : layout_(std::move(layout)) {
  table_stride_ = (positions_max + layout_.block_tokens - 1) / layout_.block_tokens;
  const int blocks = sequences * table_stride_;
  const size_t bytes = static_cast<size_t>(blocks) * static_cast<size_t>(layout_.block_bytes());
  Result<Backend::Buffer> pool = backend->Allocate(bytes);
  DI_CHECK(pool.ok(), "{}", pool.status().message());
  pool_ = std::move(pool).value();
  memset(pool_.get(), 0xff, bytes);
  const size_t slot_bytes =
      static_cast<size_t>(sequences) * static_cast<size_t>(layout_.slot_bytes());
  if (slot_bytes > 0) {
    Result<Backend::Buffer> slots = backend->Allocate(slot_bytes);
    DI_CHECK(slots.ok(), "{}", slots.status().message());
    slots_ = std::move(slots).value();
    slots_bytes_ = slot_bytes;
    PoisonSlots();
  }
  // A step coprime to the number of blocks visits each once.
  int step = blocks / 2 + 1;
  while (std::gcd(step, blocks) != 1) ++step;
  int block = 0;
  for (int s = 0; s < sequences; ++s) {
    std::vector<int32_t>& table = tables_.emplace_back();
    for (int i = 0; i < table_stride_; ++i) {
      table.push_back(block);
      block = (block + step) % blocks;
    }
  }
}

void HostRows::PoisonSlots() {
  if (slots_bytes_ > 0) memset(slots_.get(), 0xff, slots_bytes_);
}

StepInput HostRows::Step(std::span<const Query> queries) { return StepWithDeadTokens(queries, 0); }

StepInput HostRows::StepWithDeadTokens(std::span<const Query> queries, int dead_per_row) {
  for (auto* list : {&token_, &position_, &token_row_, &kv_len_, &slot_, &block_table_}) {
    list->clear();
  }
  kind_.clear();
  query_start_.assign(1, 0);
  StepInput step;
  for (const Query& query : queries) {
    const auto count = static_cast<int>(query.tokens.size());
    const auto row = static_cast<int32_t>(kv_len_.size());
    for (int i = 0; i < count + dead_per_row; ++i) {
      const bool dead = i >= count;
      token_.push_back(dead ? 0 : query.tokens[static_cast<size_t>(i)]);
      position_.push_back(dead ? 0 : query.start + i);
      token_row_.push_back(row);
      kind_.push_back(dead ? TokenKind::kDead : TokenKind::kText);
    }
    query_start_.push_back(static_cast<int32_t>(token_.size()));
    kv_len_.push_back(query.start + count);
    slot_.push_back(query.sequence);
    const std::vector<int32_t>& table = tables_[static_cast<size_t>(query.sequence)];
    block_table_.insert(block_table_.end(), table.begin(), table.end());
    step.shape.query_len_max = std::max(step.shape.query_len_max, count + dead_per_row);
    step.shape.kv_len_max = std::max(step.shape.kv_len_max, query.start + count);
  }
  step.shape.num_rows = static_cast<int>(queries.size());
  step.shape.num_tokens = static_cast<int>(token_.size());
  step.token = token_.data();
  step.position = position_.data();
  step.token_row = token_row_.data();
  step.query_start = query_start_.data();
  step.kv_len = kv_len_.data();
  step.slot = slot_.data();
  step.kind = kind_.data();
  step.block_table = block_table_.data();
  step.block_table_stride = table_stride_;
  step.cache_blocks = pool_.get();
  step.cache_slots = slots_.get();
  step.layout = &layout_;
  return step;
}

}  // namespace deepinfer
