// The arrays of one forward step, in device memory, built by the operator GatherInputs from row
// state. Forward and operators branch only on StepShape (bounds known to the host) and read no
// row value on the host.
#pragma once

#include <cstdint>

#include "backend/cache_layout.h"

namespace deepinfer {

struct StepShape {
  int num_rows = 0;          // sequences in the step
  int num_tokens = 0;        // query tokens in the step (upper bound)
  int query_len_max = 0;     // most query tokens of one row
  int kv_len_max = 0;        // upper bound of kv_len
};

enum class TokenKind : uint8_t { kText, kImage, kDead };

struct StepInput {
  StepShape shape;
  const int32_t* token = nullptr;         // [num_tokens]
  const int32_t* position = nullptr;      // [num_tokens] absolute position in the sequence
  const int32_t* token_row = nullptr;     // [num_tokens] row of each token
  const int32_t* query_start = nullptr;   // [num_rows + 1]
  const int32_t* kv_len = nullptr;        // [num_rows] cache rows valid after this step
  const int32_t* slot = nullptr;          // [num_rows]
  const TokenKind* kind = nullptr;        // [num_tokens]
  const int32_t* block_table = nullptr;   // [num_rows, block_table_stride] block ids
  int block_table_stride = 0;
  std::byte* cache_blocks = nullptr;      // base of the block pool; block b at b * block_bytes
  std::byte* cache_slots = nullptr;       // base of the row slots
  const CacheLayout* layout = nullptr;
};

}  // namespace deepinfer
