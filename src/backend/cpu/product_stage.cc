#include "backend/cpu/product_stage.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace deepinfer::cpu {
namespace {

// Input rows of one item: their activations should stay in the second-level cache while the
// weights of the chunk pass.
constexpr int64_t kSpanBytes = int64_t{384} << 10;
constexpr int kItemsPerThread = 4;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Bytes that one input row occupies in the form that the matrix reads.
int64_t RowBytes(const PackedMatrix& matrix) {
  return matrix.cols() * (matrix.act_format() == kActF32 ? 4 : 2);
}

// A NaN stays one.
void ClampGate(float limit, int64_t n, float* gate, float* up) {
  for (int64_t i = 0; i < n; ++i) {
    gate[i] = gate[i] > limit ? limit : gate[i];
    up[i] = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
  }
}

}  // namespace

ProductStage::Cut ProductStage::CutOf(const Product& product, int products) const {
  const PackedMatrix& matrix = *product.matrix;
  const int threads = context_->pool->threads();
  // Several products share the threads: each needs fewer chunks.
  const int share = std::max(1, threads / products);
  Cut cut;
  cut.chunk_rows = matrix.ChunkRows(product.m, share);
  if (product.pair != nullptr) {
    const int64_t unit = std::lcm(matrix.tile_rows(), product.pair->tile_rows());
    cut.chunk_rows = RoundUp(cut.chunk_rows, unit);
  }
  cut.chunks = static_cast<int>((matrix.rows() + cut.chunk_rows - 1) / cut.chunk_rows);
  const int64_t block = PackedMatrix::row_block();
  const int64_t cached = std::max(block, kSpanBytes / RowBytes(matrix) / block * block);
  int64_t spans = (product.m + cached - 1) / cached;
  const int wanted = kItemsPerThread * share;
  if (cut.chunks * spans < wanted) spans = (wanted + cut.chunks - 1) / cut.chunks;
  cut.span_rows = RoundUp((product.m + spans - 1) / spans, block);
  return cut;
}

// Cuts every product; returns the number of items.
int ProductStage::Plan(std::span<const Product> products) {
  cuts_.clear();
  int items = 0;
  int64_t rows_max = 0;
  int64_t chunk_max = 0;
  for (const Product& product : products) {
    Cut cut = CutOf(product, static_cast<int>(products.size()));
    cut.first_item = items;
    const int64_t spans = (product.m + cut.span_rows - 1) / cut.span_rows;
    items += cut.chunks * static_cast<int>(spans);
    rows_max = std::max(rows_max, product.m);
    chunk_max = std::max(chunk_max, cut.chunk_rows);
    cuts_.push_back(cut);
  }
  const auto known = static_cast<int64_t>(iota_.size());
  if (rows_max > known) {
    iota_.resize(static_cast<size_t>(rows_max));
    std::iota(iota_.begin() + known, iota_.end(), static_cast<int32_t>(known));
  }
  scratch_stride_ = 2 * std::min(rows_max, PackedMatrix::row_block()) * chunk_max;
  scratch_.Reserve(scratch_stride_ * context_->pool->threads());
  return items;
}

void ProductStage::Run(std::span<const Product> products) {
  const int items = Plan(products);
  context_->pool->Run(items, [&](int item, int thread) {
    const auto after =
        std::upper_bound(cuts_.begin(), cuts_.end(), item,
                         [](int value, const Cut& cut) { return value < cut.first_item; });
    const auto i = static_cast<size_t>(after - cuts_.begin() - 1);
    RunItem(products[i], cuts_[i], item - cuts_[i].first_item,
            scratch_.get() + thread * scratch_stride_);
  });
}

// Items walk the chunks of one span of input rows before the next span.
void ProductStage::RunItem(const Product& product, const Cut& cut, int item, float* scratch) const {
  const int64_t n_begin = item % cut.chunks * cut.chunk_rows;
  const int64_t n_end = std::min(product.matrix->rows(), n_begin + cut.chunk_rows);
  const int64_t row_begin = item / cut.chunks * cut.span_rows;
  const int64_t row_end = std::min(product.m, row_begin + cut.span_rows);
  const bool plain = product.epilogue == Epilogue::kStore && product.bias == nullptr;
  // A block at a time, so that the epilogue finds its input in the first-level cache.
  const int64_t step = plain ? row_end - row_begin : PackedMatrix::row_block();
  for (int64_t row = row_begin; row < row_end; row += step) {
    RunBlock(product, row, std::min(step, row_end - row), n_begin, n_end, scratch);
  }
}

void ProductStage::RunBlock(const Product& product, int64_t row, int64_t count, int64_t n_begin,
                            int64_t n_end, float* scratch) const {
  const RowKernels& kernels = *context_->rows;
  const int64_t stride = product.matrix->rows();
  const int32_t* rows = nullptr;
  if (product.input_rows != nullptr) {
    rows = product.input_rows + row;
  } else if (row > 0) {
    rows = iota_.data() + row;
  }
  float* out = product.out + row * stride;
  const int64_t n = n_end - n_begin;
  const float* bias = product.bias != nullptr ? product.bias + n_begin : nullptr;

  if (product.epilogue == Epilogue::kStore) {
    product.matrix->Multiply(*product.input, rows, count, product.expert, n_begin, n_end, out,
                             stride);
    for (int64_t i = 0; bias != nullptr && i < count; ++i) {
      kernels.add(bias, n, out + i * stride + n_begin);
    }
    return;
  }
  // Addressed by absolute weight row, as Multiply does.
  float* y = scratch;
  product.matrix->Multiply(*product.input, rows, count, product.expert, n_begin, n_end, y - n_begin,
                           n);
  for (int64_t i = 0; bias != nullptr && i < count; ++i) kernels.add(bias, n, y + i * n);
  if (product.epilogue == Epilogue::kAdd) {
    for (int64_t i = 0; i < count; ++i) kernels.add(y + i * n, n, out + i * stride + n_begin);
    return;
  }
  float* up = scratch + count * n;
  product.pair->Multiply(*product.input, rows, count, product.pair_expert, n_begin, n_end,
                         up - n_begin, n);
  const float* pair_bias = product.pair_bias != nullptr ? product.pair_bias + n_begin : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    if (pair_bias != nullptr) kernels.add(pair_bias, n, up + i * n);
    if (product.gate_limit > 0.0F) ClampGate(product.gate_limit, n, y + i * n, up + i * n);
    kernels.silu_mul(y + i * n, up + i * n, n, out + i * stride + n_begin);
  }
}

void ProductStage::Run(const LinearArgs& args) {
  if (args.rows == 0) return;
  const auto bias_of = [&](size_t i) -> const float* {
    if (args.biases.empty() || args.biases[i] == nullptr) return nullptr;
    return Cpu(*args.biases[i]).vector.data();
  };
  const bool paired = args.epilogue == Epilogue::kSiluMul;
  DI_CHECK(args.outputs.size() == (paired ? 1 : args.weights.size()) &&
               (!paired || args.weights.size() == 2),
           "{} outputs for {} weights", args.outputs.size(), args.weights.size());
  linear_.clear();
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    Product product{.matrix = &Cpu(*args.weights[i]).matrix(),
                    .input = &Cpu(*args.input).rows,
                    .m = args.rows,
                    .bias = bias_of(i),
                    .out = args.outputs[i],
                    .epilogue = args.epilogue,
                    .gate_limit = args.gate_limit};
    if (paired) {
      product.pair = &Cpu(*args.weights[1]).matrix();
      product.pair_bias = bias_of(1);
    }
    linear_.push_back(product);
  }
  Run(std::span<const Product>(linear_));
}

}  // namespace deepinfer::cpu
