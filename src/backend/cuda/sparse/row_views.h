// Where rows of caches and tokens of a step are in device memory: plain index arithmetic that
// kernels and host tests share. Values, passed to kernels as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define DI_HOST_DEVICE __host__ __device__
#else
#define DI_HOST_DEVICE
#endif

namespace deepinfer::cuda {

// TokenKind (backend/step_input.h) as stored.
constexpr uint8_t kTextToken = 0, kImageToken = 1, kDeadToken = 2;

// A layer of a history group.
struct HistoryAt {
  std::byte* base = nullptr;  // of the layer in block 0
  const int32_t* table = nullptr;
  int table_stride = 0;
  int per_block = 1;  // entries
  int64_t block_bytes = 0;
  int64_t row_bytes = 0;

  DI_HOST_DEVICE std::byte* Entry(int row, int entry) const {
    const int32_t block = table[int64_t{row} * table_stride + entry / per_block];
    return base + block * block_bytes + entry % per_block * row_bytes;
  }
};

// A layer of a state group.
struct StateAt {
  std::byte* base = nullptr;  // of the layer in slot 0
  int64_t slot_bytes = 0;
  int64_t position_bytes = 0;
  int positions = 1;

  DI_HOST_DEVICE std::byte* At(int slot, int position) const {
    return base + slot * slot_bytes + position % positions * position_bytes;
  }
};

// The arrays of a step.
struct StepAt {
  int num_rows = 0;
  int num_tokens = 0;
  const int32_t* token = nullptr;
  const int32_t* position = nullptr;
  const int32_t* token_row = nullptr;
  const int32_t* query_start = nullptr;
  const int32_t* slot = nullptr;
  const uint8_t* kind = nullptr;

  DI_HOST_DEVICE bool Dead(int t) const { return kind[t] == kDeadToken; }
  // The end of a row's live tokens, which stand at the front of its queries.
  DI_HOST_DEVICE int LiveEnd(int row) const {
    int low = query_start[row];
    int high = query_start[row + 1];
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (Dead(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  // True for the last `positions` live tokens of their row: what a ring keeps of a step.
  DI_HOST_DEVICE bool Survives(int t, int positions) const {
    return !Dead(t) && t >= LiveEnd(token_row[t]) - positions;
  }
};

// Frequencies of a rotation, small enough to travel as an argument.
constexpr int kRopeHalfMax = 256;
struct RopeAt {
  int half = 0;
  float factor = 1.0F;
  float inv_freq[kRopeHalfMax];
};

// As StoredRounding (backend/compressed_ops.h).
enum Rounding : int { kNoRounding, kRoundFp8Blocks64, kRoundHadamardFp4 };

}  // namespace deepinfer::cuda
