#include "backend/cuda/sparse/grouped_rows.h"

#include "backend/cuda/sparse/product_kernel.h"

namespace deepinfer::cuda {

void GroupedRows::Run(const Weight& weight, const float* x, int64_t stride, int tokens, float* out,
                      int64_t out_stride) {
  if (tokens == 0) return;
  const StoredMatrix& matrix = StoredOf(weight);
  const auto groups = static_cast<int>(weight.experts);
  const int rows = tokens * groups;
  const bool float32 = matrix.type == kStoredF32;
  auto* input = input_.Array<std::byte>(int64_t{rows} * matrix.padded_cols() * (float32 ? 4 : 2));
  PrepareInput({.x = x,
                .stride = stride,
                .index = nullptr,
                .rows = rows,
                .groups = groups,
                .cols = matrix.cols,
                .norm = nullptr,
                .norm_eps = 0.0F,
                .float32 = float32 ? reinterpret_cast<float*>(input) : nullptr,
                .bf16 = float32 ? nullptr : input},
               context_->stream);
  RunProduct({.matrix = matrix,
              .pair = {},
              .input = input,
              .begin = nullptr,
              .groups = groups,
              .rows = rows,
              .input_row = nullptr,
              .bias = nullptr,
              .pair_bias = nullptr,
              .epilogue = kProductStore,
              .gate_limit = 0.0F,
              .out = out,
              .out_stride = out_stride},
             context_->stream);
}

}  // namespace deepinfer::cuda
