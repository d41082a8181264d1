#include "tests/ops/op_cases.h"

#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "tensor/quantize.h"
#include "tests/harness/memory_tensors.h"

namespace deepinfer {
namespace {

using Rows = std::vector<int32_t>;

constexpr DType kWeightTypes[] = {
    DType::kF32,  DType::kF16,   DType::kBF16,    DType::kQ8_0,    DType::kQ4_0,
    DType::kQ4_1, DType::kQ5_0,  DType::kQ5_1,    DType::kQ4_K,    DType::kQ5_K,
    DType::kQ6_K, DType::kMXFP4, DType::kF8Block, DType::kF4Pairs,
};

// The same values are rounded by each format alike on every ISA, but sums round differently.
double ToleranceOf(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF8Block ? 2e-3 : 2e-4;
}

std::unique_ptr<Weight> Must(Result<std::unique_ptr<Weight>> weight) {
  DI_CHECK(weight.ok(), "{}", weight.status().message());
  return std::move(weight).value();
}

std::unique_ptr<Weight> BindRandom(Backend* backend, DType dtype, std::vector<int64_t> shape,
                                   WeightRole role, uint64_t seed, float scale) {
  MemoryTensors tensors;
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  std::vector<float> values = RandomFloats(seed, count);
  for (float& value : values) value *= scale;
  const TensorView& view = HasScaleTensor(dtype)
                               ? tensors.AddScaled("weight", dtype, shape[0], shape[1], values)
                               : tensors.Add("weight", dtype, std::move(shape), values);
  return Must(backend->Bind(tensors, view, role));
}

std::vector<float> Input(int rows, int64_t cols) { return RandomFloats(7, rows * cols); }

struct LinearShape {
  int64_t cols = 0;
  std::vector<int64_t> outs;
  Epilogue epilogue = Epilogue::kStore;
  bool bias = false;
  bool norm = false;
};

// State of a prepared case: shared by the copies of the returned function.
struct LinearState {
  std::vector<std::unique_ptr<Weight>> weights, biases;
  std::unique_ptr<Weight> norm;
  std::unique_ptr<Activation> input;
  std::vector<float> x;
};

OpCase LinearCase(DType dtype, LinearShape shape, int rows) {
  OpCase op;
  op.rows = rows;
  op.tolerance = ToleranceOf(dtype);
  op.name = Format("linear {} {}x{}{}{}{}", Info(dtype).name, shape.outs[0], shape.cols,
                   shape.bias ? " bias" : "", shape.norm ? " norm" : "",
                   shape.epilogue == Epilogue::kAdd       ? " add"
                   : shape.epilogue == Epilogue::kSiluMul ? " silu"
                                                          : "");
  op.prepare = [dtype, shape, rows](Backend* backend) -> OpCase::RunFn {
    auto state = std::make_shared<LinearState>();
    uint64_t seed = 100;
    std::vector<const Weight*> readers;
    for (int64_t out : shape.outs) {
      state->weights.push_back(
          BindRandom(backend, dtype, {out, shape.cols}, WeightRole::kLinear, ++seed, 0.3F));
      readers.push_back(state->weights.back().get());
      state->biases.push_back(
          shape.bias ? BindRandom(backend, DType::kF32, {out}, WeightRole::kVector, ++seed, 1.0F)
                     : nullptr);
    }
    if (shape.norm) {
      state->norm =
          BindRandom(backend, DType::kF32, {shape.cols}, WeightRole::kVector, ++seed, 1.0F);
    }
    state->input = backend->CreateActivation(shape.cols, readers);
    state->x = Input(rows, shape.cols);
    return [state, shape, backend](const Rows& chosen) {
      const auto m = static_cast<int>(chosen.size());
      backend->NormQuantize(state->x.data(), chosen.data(), m, state->norm.get(), 1e-5F,
                            state->input.get());
      std::vector<std::vector<float>> outputs;
      std::vector<float*> pointers;
      std::vector<const Weight*> weights, biases;
      for (const auto& weight : state->weights) weights.push_back(weight.get());
      for (const auto& bias : state->biases) biases.push_back(bias.get());
      const size_t count = shape.epilogue == Epilogue::kSiluMul ? 1 : weights.size();
      for (size_t i = 0; i < count; ++i) {
        outputs.emplace_back(static_cast<size_t>(m * shape.outs[i]), 0.25F);
      }
      for (auto& output : outputs) pointers.push_back(output.data());
      backend->Linear({.input = state->input.get(),
                       .rows = m,
                       .weights = weights,
                       .biases = biases,
                       .outputs = pointers,
                       .epilogue = shape.epilogue});
      std::vector<float> result;  // row-major over all outputs of a row
      for (int i = 0; i < m; ++i) {
        for (size_t j = 0; j < count; ++j) {
          const auto begin = outputs[j].begin() + i * shape.outs[j];
          result.insert(result.end(), begin, begin + shape.outs[j]);
        }
      }
      return result;
    };
  };
  return op;
}

OpCase EmbedCase(DType dtype) {
  OpCase op;
  op.name = Format("embed {}", Info(dtype).name);
  op.rows = 40;
  op.tolerance = 1e-6;
  op.prepare = [dtype](Backend* backend) -> OpCase::RunFn {
    std::shared_ptr<Weight> weight =
        BindRandom(backend, dtype, {40, 256}, WeightRole::kEmbedding, 3, 1.0F);
    return [weight, backend](const Rows& chosen) {
      std::vector<float> out(chosen.size() * 256);
      backend->Embed(*weight, chosen.data(), static_cast<int>(chosen.size()), out.data());
      return out;
    };
  };
  return op;
}

struct MoeState {
  std::unique_ptr<Weight> router, gate, up, down;
  std::unique_ptr<Activation> input;
  std::vector<float> x;
};

constexpr int kMoeRows = 70, kExperts = 8, kTopK = 3;
constexpr int64_t kHidden = 64, kInter = 160;

OpCase MoeCase(DType dtype, bool normalize, bool one_by_one) {
  OpCase op;
  op.name = Format("moe {}{}{}", Info(dtype).name, normalize ? " normalized" : "",
                   one_by_one ? " list" : "");
  op.rows = kMoeRows;
  op.tolerance = 4 * ToleranceOf(dtype);
  op.prepare = [=](Backend* backend) -> OpCase::RunFn {
    auto state = std::make_shared<MoeState>();
    const auto experts = [&](uint64_t seed, int64_t out, int64_t in) {
      if (!one_by_one) {
        return BindRandom(backend, dtype, {kExperts, out, in}, WeightRole::kExperts, seed, 0.2F);
      }
      MemoryTensors tensors;
      std::vector<float> all = RandomFloats(seed, kExperts * out * in);
      for (float& value : all) value *= 0.2F;
      std::vector<TensorView> views;
      for (int64_t e = 0; e < kExperts; ++e) {
        const auto begin = all.begin() + e * out * in;
        const std::vector<float> one(begin, begin + out * in);
        const std::string name = Format("expert{}", e);
        views.push_back(HasScaleTensor(dtype) ? tensors.AddScaled(name, dtype, out, in, one)
                                              : tensors.Add(name, dtype, {out, in}, one));
      }
      return Must(backend->BindExperts(tensors, views));
    };
    state->router =
        BindRandom(backend, DType::kF32, {kExperts, kHidden}, WeightRole::kLinear, 11, 0.3F);
    state->gate = experts(12, kInter, kHidden);
    state->up = experts(13, kInter, kHidden);
    state->down = experts(14, kHidden, kInter);
    const Weight* readers[] = {state->router.get(), state->gate.get(), state->up.get()};
    state->input = backend->CreateActivation(kHidden, readers);
    state->x = Input(kMoeRows, kHidden);
    return [state, backend, normalize](const Rows& chosen) {
      const auto m = static_cast<int>(chosen.size());
      backend->NormQuantize(state->x.data(), chosen.data(), m, nullptr, 0.0F, state->input.get());
      std::vector<float> out(chosen.size() * kHidden, 0.5F);
      backend->Moe({.input = state->input.get(),
                    .rows = m,
                    .router = state->router.get(),
                    .gate = state->gate.get(),
                    .up = state->up.get(),
                    .down = state->down.get(),
                    .top_k = kTopK,
                    .normalize_top_k = normalize,
                    .out = out.data()});
      return out;
    };
  };
  return op;
}

}  // namespace

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kWeightTypes) {
    if (!CanQuantizeTo(dtype) && !HasScaleTensor(dtype)) continue;
    cases.push_back(LinearCase(dtype, {.cols = 512, .outs = {200}}, 101));
    cases.push_back(LinearCase(dtype, {.cols = 256, .outs = {130, 48, 33}, .bias = true}, 61));
    cases.push_back(
        LinearCase(dtype, {.cols = 256, .outs = {144}, .epilogue = Epilogue::kAdd}, 50));
    cases.push_back(LinearCase(
        dtype, {.cols = 256, .outs = {100, 100}, .epilogue = Epilogue::kSiluMul, .norm = true},
        57));
    cases.push_back(EmbedCase(dtype));
  }
  // Columns that are no multiple of a register, one output row, one column of output.
  cases.push_back(LinearCase(DType::kF32, {.cols = 37, .outs = {5}, .norm = true}, 9));
  cases.push_back(LinearCase(DType::kBF16, {.cols = 70, .outs = {1}}, 9));
  cases.push_back(LinearCase(DType::kF16, {.cols = 1, .outs = {3}}, 4));
  cases.push_back(LinearCase(DType::kQ8_0, {.cols = 32, .outs = {17}}, 3));
  cases.push_back(
      LinearCase(DType::kF32,
                 {.cols = 96, .outs = {40, 40}, .epilogue = Epilogue::kSiluMul, .bias = true}, 50));
  // The widths of DeepSeek-V4.1; and blocks of scales that the matrix does not fill.
  for (DType dtype : {DType::kF8Block, DType::kF4Pairs}) {
    cases.push_back(LinearCase(dtype, {.cols = 5120, .outs = {512}}, 4));
    cases.push_back(LinearCase(dtype, {.cols = 512, .outs = {5120}}, 4));
    cases.push_back(
        LinearCase(dtype, {.cols = 2304, .outs = {300, 300}, .epilogue = Epilogue::kSiluMul}, 14));
  }
  cases.push_back(LinearCase(DType::kF32, {.cols = 20480, .outs = {24}}, 5));
  cases.push_back(LinearCase(DType::kF8Block, {.cols = 100, .outs = {45}}, 70));
  cases.push_back(MoeCase(DType::kF4Pairs, true, true));
  cases.push_back(MoeCase(DType::kF8Block, true, true));
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_1}) {
    cases.push_back(MoeCase(dtype, true, false));
    cases.push_back(MoeCase(dtype, false, true));
  }
  return cases;
}

}  // namespace deepinfer
