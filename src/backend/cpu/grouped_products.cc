#include "backend/cpu/grouped_products.h"

#include <numeric>

namespace deepinfer::cpu {

ActRows* GroupedProducts::Input(const Weight& weight, int count) {
  const uint32_t formats = Cpu(weight).matrix().act_format();
  if (rows_ == nullptr || rows_->cols() != weight.cols || rows_->formats() != formats) {
    rows_ = std::make_unique<ActRows>(weight.cols, formats);
  }
  rows_->Reserve(weight.experts * count);
  return rows_.get();
}

void GroupedProducts::Run(const Weight& weight, int count, float* out) {
  const CpuWeight& groups = Cpu(weight);
  const auto needed = static_cast<size_t>(groups.experts * count);
  if (iota_.size() < needed) {
    iota_.resize(needed);
    std::iota(iota_.begin(), iota_.end(), 0);
  }
  list_.clear();
  for (int64_t group = 0; group < groups.experts; ++group) {
    list_.push_back({.matrix = &groups.matrix(group),
                     .expert = groups.index(group),
                     .input = rows_.get(),
                     .input_rows = iota_.data() + group * count,
                     .m = count,
                     .out = out + group * count * groups.rows});
  }
  products_->Run(list_);
}

}  // namespace deepinfer::cpu
