#include "backend/cpu/cpu_sparse_ops.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "backend/cpu/step_rows.h"

namespace deepinfer::cpu {

ActRows* CpuSparseOps::GroupInput(const PackedMatrix& matrix) {
  for (const std::unique_ptr<ActRows>& rows : group_inputs_) {
    if (rows->cols() == matrix.cols() && rows->formats() == matrix.act_format()) return rows.get();
  }
  group_inputs_.push_back(std::make_unique<ActRows>(matrix.cols(), matrix.act_format()));
  return group_inputs_.back().get();
}

void CpuSparseOps::GroupedLinear(const GroupedLinearArgs& args) {
  const CpuWeight& weight = Cpu(*args.weight);
  const auto groups = static_cast<int>(weight.experts);
  const int64_t width = weight.rows;
  ActRows* input = GroupInput(weight.matrix());
  input->Reserve(int64_t{args.rows} * groups);
  context_->pool->Run(args.rows, [&](int row, int) {
    for (int g = 0; g < groups; ++g) {
      const int64_t at = int64_t{row} * groups + g;
      input->SetRow(context_->isa, at, args.x + at * input->cols());
    }
  });
  group_rows_.resize(static_cast<size_t>(args.rows) * static_cast<size_t>(groups));
  float* out = group_out_.Reserve(args.rows * groups * width);
  group_products_.clear();
  for (int g = 0; g < groups; ++g) {
    int32_t* rows = group_rows_.data() + int64_t{g} * args.rows;
    for (int row = 0; row < args.rows; ++row) rows[row] = row * groups + g;
    group_products_.push_back({.matrix = &weight.matrix(g),
                               .expert = weight.index(g),
                               .input = input,
                               .input_rows = rows,
                               .m = args.rows,
                               .out = out + g * args.rows * width});
  }
  products_->Run(group_products_);
  ActRows& joined = Cpu(*args.out).rows;
  joined.Reserve(args.rows);
  joined_.Reserve(joined.cols() * context_->pool->threads());
  context_->pool->Run(args.rows, [&](int row, int thread) {
    float* all = joined_.get() + thread * joined.cols();
    for (int g = 0; g < groups; ++g) {
      std::copy_n(out + (int64_t{g} * args.rows + row) * width, width, all + g * width);
    }
    joined.SetRow(context_->isa, row, all);
  });
}

SparseOps::Suffix CpuSparseOps::TakeSuffix(const StepInput& step) {
  for (auto* list : {&index_list_, &token_, &position_, &token_row_}) list->clear();
  kind_.clear();
  query_start_.assign(1, 0);
  Suffix suffix{.step = step};
  suffix.step.shape.query_len_max = 0;
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int begin = RowValue(step.suffix_begin, row);
    for (int t = step.query_start[row]; t < step.query_start[row + 1]; ++t) {
      if (step.kind[t] == TokenKind::kDead || step.position[t] < begin) continue;
      index_list_.push_back(t);
      token_.push_back(step.token[t]);
      position_.push_back(step.position[t]);
      token_row_.push_back(row);
      kind_.push_back(step.kind[t]);
    }
    const auto end = static_cast<int32_t>(index_list_.size());
    suffix.step.shape.query_len_max =
        std::max(suffix.step.shape.query_len_max, end - query_start_.back());
    query_start_.push_back(end);
  }
  suffix.step.shape.num_tokens = static_cast<int>(index_list_.size());
  suffix.step.token = token_.data();
  suffix.step.position = position_.data();
  suffix.step.token_row = token_row_.data();
  suffix.step.query_start = query_start_.data();
  suffix.step.kind = kind_.data();
  suffix.index = index_list_.data();
  return suffix;
}

void CpuSparseOps::Scatter(const float* from, const int32_t* index, int rows, int64_t cols,
                           float* to, int to_rows) {
  std::fill_n(to, to_rows * cols, std::numeric_limits<float>::quiet_NaN());
  for (int i = 0; i < rows; ++i) {
    std::memcpy(to + index[i] * cols, from + i * cols, static_cast<size_t>(cols) * sizeof(float));
  }
}

}  // namespace deepinfer::cpu
