// What a model keeps per token (history groups) and per row (state groups). Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer {

// Rows that share the block table: one cache row per `ratio` tokens in every layer that has it.
struct HistoryGroup {
  std::string name;  // "full", "latent", "compressed", "index"
  int ratio = 1;     // tokens per cache row; block_tokens % ratio == 0
  int layers = 0;
  int64_t row_bytes = 0;  // bytes of one cache row of one layer
};

// One private slot per engine row, positional: position p lives at p mod positions. Written by a
// step after its rows have read it, so a step may have any number of rows; what a rejected draft
// left is overwritten before it can be read as long as drafts stay within rollback_max.
struct StateGroup {
  std::string name;
  int layers = 0;
  int positions = 0;  // >= lookback + rollback_max
  int64_t position_bytes = 0;
};

struct CacheLayout {
  int block_tokens = 16;
  std::vector<HistoryGroup> history;
  std::vector<StateGroup> state;
  int rollback_max = 0;  // tokens of a row's last step that may be taken back; state only
  // Tokens before a prefix hit that must run again in the compact mode; 0: no such mode.
  int replay_window = 0;

  // A block's bytes over all groups and layers: one contiguous run.
  int64_t block_bytes() const {
    int64_t bytes = 0;
    for (const HistoryGroup& g : history) {
      bytes += int64_t{g.layers} * (block_tokens / g.ratio) * g.row_bytes;
    }
    return bytes;
  }
  // First byte of a group's layer inside a block, and inside a slot: group after group, in each
  // layer after layer.
  int64_t history_offset(size_t group, int layer) const {
    int64_t offset = 0;
    for (size_t i = 0; i < group; ++i) {
      offset +=
          int64_t{history[i].layers} * (block_tokens / history[i].ratio) * history[i].row_bytes;
    }
    return offset +
           int64_t{layer} * (block_tokens / history[group].ratio) * history[group].row_bytes;
  }
  int64_t state_offset(size_t group, int layer) const {
    int64_t offset = 0;
    for (size_t i = 0; i < group; ++i) {
      offset += int64_t{state[i].layers} * state[i].positions * state[i].position_bytes;
    }
    return offset + int64_t{layer} * state[group].positions * state[group].position_bytes;
  }
  // A model with state adopts a prefix hit only where the slot's bytes at that point can be brought
  // back (a copy of the slot), or in a mode that replays (StepInput::replay_begin).
  bool has_state() const { return !state.empty(); }
  int64_t slot_bytes() const {
    int64_t bytes = 0;
    for (const StateGroup& g : state) bytes += int64_t{g.layers} * g.positions * g.position_bytes;
    return bytes;
  }
};

}  // namespace deepinfer
