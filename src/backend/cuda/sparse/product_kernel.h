// Launches of products with stored matrices: one, or the experts of a layer with rows sorted by
// expert. Weights are decoded in registers on their way into the tensor cores; sums run in one
// order for any number of rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/sparse/row_views.h"

namespace deepinfer::cuda {

enum StoredType : int {
  kStoredF32,   // float32 arithmetic
  kStoredBf16,  // bf16 inputs, float32 sums; and so are the others
  kStoredF8,    // e4m3, power-of-two scales per block
  kStoredF4,    // e2m1 pairs as PackedNibble orders them, the same
};

// Columns are padded to a multiple of kPaddedColumns with zeros, rows to one of kPaddedRows. Of
// experts one after the other.
constexpr int kPaddedColumns = 128;
constexpr int kPaddedRows = 16;
DI_HOST_DEVICE constexpr int Padded(int count, int unit) {
  return (count + unit - 1) / unit * unit;
}

struct StoredMatrix {
  StoredType type = kStoredF32;
  const std::byte* codes = nullptr;  // [experts, padded rows, padded columns]
  const uint8_t* scales = nullptr;   // E8M0 [experts, scale_rows, scale_cols]
  int rows = 0;                      // of one expert
  int cols = 0;
  int scale_rows = 0;
  int scale_cols = 0;
  int block_rows = 1;
  int block_cols = 32;  // a multiple of 32 (F4) or 16 (F8)

  DI_HOST_DEVICE int padded_cols() const { return Padded(cols, kPaddedColumns); }
  DI_HOST_DEVICE int64_t expert_bytes() const {
    const int64_t count = int64_t{Padded(rows, kPaddedRows)} * padded_cols();
    return type == kStoredF32    ? 4 * count
           : type == kStoredBf16 ? 2 * count
           : type == kStoredF8   ? count
                                 : count / 2;
  }
};

// Of the eight codes of a word (stored low nibble first): the nibble that holds code i, so that one
// shift brings codes 2 i and 2 i + 1 to the same place of both halves.
DI_HOST_DEVICE constexpr int PackedNibble(int i) { return i / 2 + (i % 2) * 4; }

enum ProductEpilogue : int {
  kProductStore,    // out = y (+ bias)
  kProductAdd,      // out += y (+ bias)
  kProductSiluMul,  // out = silu(y (+ bias)) * pair's
};

struct ProductAt {
  StoredMatrix matrix;
  StoredMatrix pair;  // kProductSiluMul: of the same type and shape
  const void* input;  // [*, padded columns] of bf16, or of float32 for kStoredF32
  // Group e: matrix e, entries begin[e] to begin[e + 1]; nullptr: an equal number for each group,
  // and output row t * groups + e for entry t of group e.
  const int32_t* begin;
  int groups;
  int rows;                  // entries in all
  const int32_t* input_row;  // [rows] input row of an entry; nullptr: its own
  const float* bias;         // [matrix.rows] or nullptr
  const float* pair_bias;
  ProductEpilogue epilogue;
  float gate_limit;  // > 0: gate at most this, up within +-this
  float* out;        // [rows, out_stride]
  int64_t out_stride;
};
void RunProduct(const ProductAt& at, cudaStream_t stream);

// Input rows of a product: rows x[index[i]] (nullptr: x[i]) of `cols` floats, `stride` apart,
// RMS-normed by `norm` (nullptr: as they are), padded with zeros. Row t of group g is x[t * groups
// + g] and comes out as row g * rows / groups + t.
struct InputRowsAt {
  const float* x;
  int64_t stride;
  const int32_t* index;
  int rows;  // of all groups
  int groups;
  int cols;
  const float* norm;
  float norm_eps;
  float* float32;  // [rows, padded columns] or nullptr
  void* bf16;      // the same
};
void PrepareInput(const InputRowsAt& at, cudaStream_t stream);

// Codes as files hold them, [rows, cols] of one expert, to a StoredMatrix' codes.
void PackCodes(StoredType type, const std::byte* codes, int rows, int cols, std::byte* out,
               cudaStream_t stream);

// out[t] = row token[t] of the matrix in float32, NaN for a token that it does not have.
void EmbedRows(const StoredMatrix& matrix, const int32_t* token, int tokens, float* out,
               cudaStream_t stream);

}  // namespace deepinfer::cuda
