// Routers beyond the softmax top-k on every ISA: scores, biases that only choose, groups, choices
// by token, and clamped gates, against the definition in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/backend.h"
#include "base/format.h"
#include "tests/harness/memory_tensors.h"
#include "tests/ops/op_modes.h"

namespace deepinfer {
namespace {

constexpr int kExperts = 16;
constexpr int kHidden = 40;
constexpr int kInter = 24;
constexpr int kRows = 21;
constexpr int kTopK = 3;
constexpr int kVocab = 5;

struct Router {
  const char* name;
  RouterScoring scoring = RouterScoring::kSigmoid;
  bool bias = true;
  bool image_bias = false;
  int groups = 1;
  int group_top_k = 1;
  bool normalize = true;
  float scale = 1.0F;
  bool by_token = false;
  float gate_limit = 0.0F;
};

const Router kRouters[] = {
    {.name = "sigmoid", .bias = false, .scale = 1.5F},
    {.name = "sigmoid, groups", .groups = 4, .group_top_k = 2, .scale = 2.5F},
    {.name = "sigmoid, groups, not normalised", .groups = 8, .group_top_k = 3, .normalize = false},
    {.name = "sqrt softplus",
     .scoring = RouterScoring::kSqrtSoftplus,
     .image_bias = true,
     .scale = 1.5F,
     .gate_limit = 0.7F},
    {.name = "by token",
     .scoring = RouterScoring::kSqrtSoftplus,
     .bias = false,
     .by_token = true,
     .gate_limit = 0.2F},
    {.name = "softmax", .scoring = RouterScoring::kSoftmax, .bias = false, .scale = 2.0F},
};

std::vector<float> Values(uint64_t seed, int64_t count, float scale) {
  std::vector<float> values = RandomFloats(seed, count);
  for (float& x : values) x *= scale;
  return values;
}

// The numbers of one case.
struct Numbers {
  std::vector<float> x = Values(1, kRows* kHidden, 1.0F);
  std::vector<float> router = Values(2, kExperts* kHidden, 1.0F);
  std::vector<float> gate = Values(3, int64_t{kExperts} * kInter * kHidden, 0.4F);
  std::vector<float> up = Values(4, int64_t{kExperts} * kInter * kHidden, 0.4F);
  std::vector<float> down = Values(5, int64_t{kExperts} * kHidden * kInter, 0.4F);
  std::vector<float> bias = Values(6, kExperts, 0.5F);
  std::vector<float> image_bias = Values(7, kExperts, 0.5F);
  std::vector<int32_t> token_experts, token;
  std::vector<TokenKind> kind;

  Numbers() {
    for (int id = 0; id < kVocab; ++id) {
      for (int i = 0; i < kTopK; ++i) token_experts.push_back((id * 7 + 11 - 5 * i) % kExperts);
    }
    for (int row = 0; row < kRows; ++row) {
      token.push_back(row * 3 % kVocab);
      kind.push_back(row % 4 == 1 ? TokenKind::kImage : TokenKind::kText);
    }
  }
};

double Dot(const float* a, const double* b, int count) {
  double sum = 0.0;
  for (int i = 0; i < count; ++i) sum += double{a[i]} * b[i];
  return sum;
}

// The experts of a row, by the definition.
std::vector<int> Chosen(const Router& router, const Numbers& n, int row,
                        const std::vector<double>& scores) {
  std::vector<int> order;
  if (router.by_token) {
    const int32_t* fixed = n.token_experts.data() + n.token[static_cast<size_t>(row)] * kTopK;
    return {fixed, fixed + kTopK};
  }
  std::vector<double> biased = scores;
  const bool image = router.image_bias && n.kind[static_cast<size_t>(row)] == TokenKind::kImage;
  for (size_t e = 0; router.bias && e < biased.size(); ++e) {
    biased[e] += double{image ? n.image_bias[e] : n.bias[e]};
  }
  const int size = kExperts / router.groups;
  std::vector<std::pair<double, int>> groups;
  for (int g = 0; g < router.groups; ++g) {
    std::vector<double> in(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::sort(in.rbegin(), in.rend());
    groups.emplace_back(-(in[0] + in[1]), g);
  }
  std::sort(groups.begin(), groups.end());
  for (int g = 0; g < router.group_top_k; ++g) {
    for (int i = 0; i < size; ++i)
      order.push_back(groups[static_cast<size_t>(g)].second * size + i);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)];
  });
  order.resize(kTopK);
  return order;
}

std::vector<double> Expected(const Router& router, const Numbers& n, int row) {
  const std::vector<double> x(n.x.begin() + row * kHidden, n.x.begin() + (row + 1) * kHidden);
  std::vector<double> scores;
  for (int e = 0; e < kExperts; ++e) {
    const double logit = Dot(n.router.data() + e * kHidden, x.data(), kHidden);
    scores.push_back(router.scoring == RouterScoring::kSigmoid ? 1.0 / (1.0 + std::exp(-logit))
                     : router.scoring == RouterScoring::kSqrtSoftplus
                         ? std::sqrt(std::log1p(std::exp(logit)))
                         : std::exp(logit));
  }
  double total = 0.0;
  const std::vector<int> chosen = Chosen(router, n, row, scores);
  for (const int e : chosen) total += scores[static_cast<size_t>(e)];
  std::vector<double> out(kHidden, 0.0);
  for (const int e : chosen) {
    double weight = scores[static_cast<size_t>(e)] * double{router.scale};
    if (router.normalize) weight /= total;
    std::vector<double> inner;
    for (int i = 0; i < kInter; ++i) {
      const int64_t at = (int64_t{e} * kInter + i) * kHidden;
      double gate = Dot(n.gate.data() + at, x.data(), kHidden);
      double up = Dot(n.up.data() + at, x.data(), kHidden);
      if (router.gate_limit > 0.0F) {
        const double limit = router.gate_limit;
        gate = std::min(gate, limit);
        up = std::clamp(up, -limit, limit);
      }
      inner.push_back(gate / (1.0 + std::exp(-gate)) * up);
    }
    for (int i = 0; i < kHidden; ++i) {
      const int64_t at = (int64_t{e} * kHidden + i) * kInter;
      out[static_cast<size_t>(i)] += weight * Dot(n.down.data() + at, inner.data(), kInter);
    }
  }
  return out;
}

class RouterOps : public testing::TestWithParam<OpMode> {
 protected:
  std::unique_ptr<Weight> Bind(const std::vector<float>& values, std::vector<int64_t> shape,
                               WeightRole role) {
    const TensorView& view = tensors_.Add("weight", DType::kF32, std::move(shape), values);
    return std::move(backend_->Bind(tensors_, view, role)).value();
  }

  MemoryTensors tensors_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(RouterOps, IsTheDefinition) {
  if (GetParam().dtype != ComputeDtype::kFloat32) GTEST_SKIP() << "float32 alone";
  backend_ = MakeBackend(GetParam(), 2);
  if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam().isa;
  const Numbers n;
  const auto router = Bind(n.router, {kExperts, kHidden}, WeightRole::kLinear);
  const auto gate = Bind(n.gate, {kExperts, kInter, kHidden}, WeightRole::kExperts);
  const auto up = Bind(n.up, {kExperts, kInter, kHidden}, WeightRole::kExperts);
  const auto down = Bind(n.down, {kExperts, kHidden, kInter}, WeightRole::kExperts);
  const auto bias = Bind(n.bias, {kExperts}, WeightRole::kVector);
  const auto image_bias = Bind(n.image_bias, {kExperts}, WeightRole::kVector);
  const Weight* readers[] = {router.get(), gate.get(), up.get()};
  const auto input = backend_->CreateActivation(kHidden, readers);
  backend_->NormQuantize(n.x.data(), nullptr, kRows, nullptr, 0.0F, input.get());
  for (const Router& of : kRouters) {
    std::vector<float> out(kRows * kHidden, 0.0F);
    backend_->Moe({.input = input.get(),
                   .rows = kRows,
                   .router = router.get(),
                   .gate = gate.get(),
                   .up = up.get(),
                   .down = down.get(),
                   .top_k = kTopK,
                   .normalize_top_k = of.normalize,
                   .out = out.data(),
                   .routing = {.scoring = of.scoring,
                               .bias = of.bias ? bias.get() : nullptr,
                               .image_bias = of.image_bias ? image_bias.get() : nullptr,
                               .kind = n.kind.data(),
                               .groups = of.groups,
                               .group_top_k = of.group_top_k,
                               .scale = of.scale,
                               .token_experts = of.by_token ? n.token_experts.data() : nullptr,
                               .token_count = kVocab,
                               .token = n.token.data()},
                   .gate_limit = of.gate_limit});
    for (int row = 0; row < kRows; ++row) {
      const std::vector<double> want = Expected(of, n, row);
      for (int i = 0; i < kHidden; ++i) {
        EXPECT_NEAR(out[static_cast<size_t>(row * kHidden + i)], want[static_cast<size_t>(i)], 2e-5)
            << of.name << ", row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RouterOps, testing::ValuesIn(AllModes()), ModeName);

}  // namespace
}  // namespace deepinfer
