// Products of one stage, flattened into one fork: every matrix of the stage is split into chunks of
// weight rows (and of input rows when there are many), each chunk with its epilogue.
// Owned by CpuBackend; Run is called on the runner thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/cpu_context.h"

namespace deepinfer::cpu {

struct Product {
  const PackedMatrix* matrix = nullptr;
  const PackedMatrix* pair = nullptr;  // kSiluMul: matrix is the gate, this the up projection
  int64_t expert = 0;                  // index inside the matrices
  int64_t pair_expert = 0;
  const ActRows* input = nullptr;
  const int32_t* input_rows = nullptr;  // [m], nullptr: 0..m-1
  int64_t m = 0;
  const float* bias = nullptr;  // [rows of matrix] or nullptr
  const float* pair_bias = nullptr;
  float* out = nullptr;  // [m, rows of matrix]
  Epilogue epilogue = Epilogue::kStore;
  float gate_limit = 0.0F;  // kSiluMul, > 0: clamps both
};

class ProductStage {
 public:
  explicit ProductStage(const CpuContext* context) : context_(context) {}
  void Run(std::span<const Product> products);
  // The stage of Backend::Linear.
  void Run(const LinearArgs& args);

 private:
  // How one product is cut: chunks x row_spans items.
  struct Cut {
    int64_t chunk_rows = 0;
    int64_t span_rows = 0;
    int chunks = 0;
    int first_item = 0;
  };
  int Plan(std::span<const Product> products);
  Cut CutOf(const Product& product, int products) const;
  void RunItem(const Product& product, const Cut& cut, int item, float* scratch) const;
  void RunBlock(const Product& product, int64_t row, int64_t count, int64_t n_begin, int64_t n_end,
                float* scratch) const;

  const CpuContext* context_;
  std::vector<Cut> cuts_;
  std::vector<int32_t> iota_;
  std::vector<Product> linear_;
  Floats scratch_;  // [threads, 2, row block, largest chunk]
  int64_t scratch_stride_ = 0;
};

}  // namespace deepinfer::cpu
