// The arrays of one forward step, in device memory, built by the operator GatherInputs from row
// state. Forward and operators branch only on StepShape (bounds known to the host) and read no
// row value on the host.
#pragma once

#include <cstdint>

#include "backend/cache_layout.h"

namespace deepinfer {

struct StepShape {
  int num_rows = 0;        // sequences in the step
  int num_tokens = 0;      // query tokens in the step (upper bound)
  int query_len_max = 0;   // most query tokens of one row
  int kv_len_max = 0;      // upper bound of kv_len
  int suffix_tokens = -1;  // upper bound of tokens at or after suffix_begin; -1: all
};

// Tokens before a row's first query token that a model may look back at (n-gram memories).
inline constexpr int kLeadTokens = 3;

enum class TokenKind : uint8_t { kText, kImage, kDead };

struct StepInput {
  StepShape shape;
  const int32_t* token = nullptr;        // [num_tokens]
  const int32_t* position = nullptr;     // [num_tokens] absolute position in the sequence
  const int32_t* token_row = nullptr;    // [num_tokens] row of each token
  const int32_t* query_start = nullptr;  // [num_rows + 1]
  const int32_t* kv_len = nullptr;       // [num_rows] cache rows valid after this step
  const int32_t* slot = nullptr;         // [num_rows]
  const TokenKind* kind = nullptr;       // [num_tokens]

  // Bounded replay, [num_rows] each or nullptr (0 for every row: the exact mode). They belong to a
  // sequence: every step that runs one of its tokens carries the same three values.
  // Window rows before replay_begin do not exist: layers before the boundary see none of them.
  const int32_t* replay_begin = nullptr;
  // History entries of tokens before write_floor are in the cache already and stay as they are;
  // an entry that covers tokens on both sides is written.
  const int32_t* write_floor = nullptr;
  // Tokens from here on run the whole stack; those before it end at the boundary layer's history
  // entries, and their hidden rows are NaN. Windows of the layers behind are cut here.
  const int32_t* suffix_begin = nullptr;
  // [num_rows, kLeadTokens] the tokens just before a row's first query token, nearest first, for
  // rows whose state was not left by the step before (a prefix hit without stored state). -1, or
  // nullptr for all: what the state says. -2: a dead token (image span).
  const int32_t* lead_token = nullptr;

  const int32_t* block_table = nullptr;  // [num_rows, block_table_stride] block ids
  int block_table_stride = 0;
  std::byte* cache_blocks = nullptr;  // base of the block pool; block b at b * block_bytes
  std::byte* cache_slots = nullptr;   // base of the row slots
  const CacheLayout* layout = nullptr;
};

}  // namespace deepinfer
