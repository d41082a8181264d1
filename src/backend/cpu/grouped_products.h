// A block-diagonal product: each expert of a weight multiplies its own input rows. Owned by a
// stage; Input and Run on the runner thread, input rows set by pool threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/product_stage.h"

namespace deepinfer::cpu {

class GroupedProducts {
 public:
  explicit GroupedProducts(ProductStage* products) : products_(products) {}
  // Room for `count` rows of each group: row g * count + i is row i of group g.
  ActRows* Input(const Weight& weight, int count);
  // out [groups, count, rows of weight]
  void Run(const Weight& weight, int count, float* out);

 private:
  ProductStage* products_;
  std::unique_ptr<ActRows> rows_;
  std::vector<Product> list_;
  std::vector<int32_t> iota_;
};

}  // namespace deepinfer::cpu
