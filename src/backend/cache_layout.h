// What a model keeps per token (history groups) and per row (state groups). Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer {

// Rows that share the block table: one cache row per `ratio` tokens in every layer that has it.
struct HistoryGroup {
  std::string name;            // "full", "latent", "compressed", "index"
  int ratio = 1;               // tokens per cache row; block_tokens % ratio == 0
  int layers = 0;
  int64_t row_bytes = 0;       // bytes of one cache row of one layer
};

// One private slot per engine row, positional: position p lives at p mod positions.
struct StateGroup {
  std::string name;
  int layers = 0;
  int positions = 0;           // >= lookback + rows per step
  int64_t position_bytes = 0;
};

struct CacheLayout {
  int block_tokens = 16;
  std::vector<HistoryGroup> history;
  std::vector<StateGroup> state;

  // A block's bytes over all groups and layers: one contiguous run.
  int64_t block_bytes() const {
    int64_t bytes = 0;
    for (const HistoryGroup& g : history) {
      bytes += int64_t{g.layers} * (block_tokens / g.ratio) * g.row_bytes;
    }
    return bytes;
  }
  int64_t slot_bytes() const {
    int64_t bytes = 0;
    for (const StateGroup& g : state) bytes += int64_t{g.layers} * g.positions * g.position_bytes;
    return bytes;
  }
};

}  // namespace deepinfer
