// The host side of a step without an engine: sequences over a block pool, steps built from lists of
// queries. Blocks of a sequence are scattered over the pool; pool and slots start as NaN bytes, so
// that reading a row that nobody wrote shows. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace deepinfer {

class HostRows {
 public:
  struct Query {
    int sequence = 0;
    int start = 0;                // position of the first token
    std::vector<int32_t> tokens;  // at least one
  };

  HostRows(Backend* backend, CacheLayout layout, int sequences, int positions_max);

  // Valid until the next call.
  StepInput Step(std::span<const Query> queries);
  // The same with dead tokens after the queries of every row, as a plan's upper bounds leave them.
  StepInput StepWithDeadTokens(std::span<const Query> queries, int dead_per_row);

  // Loses the state of every sequence, as another sequence in the slot would.
  void PoisonSlots();

  const std::vector<int32_t>& table(int sequence) const {
    return tables_[static_cast<size_t>(sequence)];
  }

 private:
  CacheLayout layout_;
  Backend::Buffer pool_;
  Backend::Buffer slots_;  // of the state groups
  size_t slots_bytes_ = 0;
  int table_stride_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> token_, position_, token_row_, query_start_, kv_len_, slot_, block_table_;
  std::vector<TokenKind> kind_;
};

}  // namespace deepinfer
