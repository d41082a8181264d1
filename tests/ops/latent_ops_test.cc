// Attention over latents on every ISA: the definition with keys and values of each head built out,
// in double precision; agreement with the plain loops; and tokens that come out alike however their
// sequence was cut into steps and whoever was beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "backend/latent_ops.h"
#include "tests/harness/host_rows.h"
#include "tests/harness/memory_tensors.h"
#include "tests/ops/op_modes.h"

namespace deepinfer {
namespace {

struct Shape {
  int heads;
  int latent;
  int nope_dim;
  int rope_dim;
  int value_dim;
  RopeStyle rope_style = RopeStyle::kInterleaved;
  int block_tokens = 16;
  std::vector<int> lengths = {1, 17, 65, 257};
  DType dtype = DType::kF32;
};

std::vector<Shape> Shapes() {
  return {
      {.heads = 4, .latent = 32, .nope_dim = 16, .rope_dim = 8, .value_dim = 16},
      {.heads = 3,
       .latent = 24,
       .nope_dim = 10,
       .rope_dim = 6,
       .value_dim = 20,
       .rope_style = RopeStyle::kHalves,
       .block_tokens = 32,
       .lengths = {1, 15, 64, 130, 256, 300, 530}},
      {.heads = 80,
       .latent = 64,
       .nope_dim = 32,
       .rope_dim = 16,
       .value_dim = 32,
       .lengths = {3, 66}},
      // As released.
      {.heads = 128,
       .latent = 512,
       .nope_dim = 128,
       .rope_dim = 64,
       .value_dim = 128,
       .lengths = {1, 6},
       .dtype = DType::kBF16},
  };
}

using Sequences = std::vector<std::vector<float>>;  // output of each token of each

std::vector<float> HeadValues(uint64_t seed, int head, int64_t count) {
  return RandomFloats(seed + static_cast<uint64_t>(head), count);
}

// Made once: the released ones are millions of numbers.
struct HeadTensors {
  MemoryTensors tensors;
  std::vector<TensorView> views;
};
const HeadTensors& HeadsOf(uint64_t seed, int heads, int64_t rows, int64_t cols, DType dtype) {
  static std::map<std::tuple<uint64_t, int, int64_t, int64_t, DType>, HeadTensors> made;
  const auto [at, is_new] = made.try_emplace({seed, heads, rows, cols, dtype});
  for (int head = 0; is_new && head < heads; ++head) {
    at->second.views.push_back(
        at->second.tensors.Add("head", dtype, {rows, cols}, HeadValues(seed, head, rows * cols)));
  }
  return at->second;
}

class LatentHarness {
 public:
  LatentHarness(Backend* backend, const Shape& shape) : backend_(backend), shape_(shape) {
    for (int i = 0; i < shape.rope_dim / 2; ++i) {
      inv_freq_.push_back(
          std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(shape.rope_dim)));
    }
    norm_values_ = RandomFloats(5, shape.latent);
    const TensorView& view = tensors_.Add("norm", DType::kF32, {shape.latent}, norm_values_);
    norm_ = std::move(backend->Bind(tensors_, view, WeightRole::kVector)).value();
    key_up_ = BindHeads(1000, shape.latent, shape.nope_dim);
    value_up_ = BindHeads(2000, shape.value_dim, shape.latent);
    layout_.block_tokens = shape.block_tokens;
    layout_.history.push_back({.name = "other", .ratio = 1, .layers = 2, .row_bytes = 24});
    layout_.history.push_back(
        {.name = "latent",
         .ratio = 1,
         .layers = 3,
         .row_bytes = int64_t{LatentRowElements(shape.latent, shape.rope_dim)} *
                      backend->kv_element_bytes()});
    rows_ =
        std::make_unique<HostRows>(backend, layout_, static_cast<int>(shape.lengths.size()), 576);
  }

  std::vector<float> Query(int sequence, int position) const {
    return Input(sequence, position, 0, int64_t{shape_.heads} * head_dim());
  }
  std::vector<float> Latent(int sequence, int position) const {
    return Input(sequence, position, 1, shape_.latent + shape_.rope_dim);
  }

  void Step(const std::vector<HostRows::Query>& queries, int dead_per_row, Sequences* outputs) {
    const StepInput step = rows_->StepWithDeadTokens(queries, dead_per_row);
    std::vector<float> q, kv;
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      // Inputs are a function of sequence and position.
      const int sequence = step.slot[step.token_row[t]];
      for (float x : Query(sequence, step.position[t])) q.push_back(x);
      for (float x : Latent(sequence, step.position[t])) kv.push_back(x);
    }
    const LatentAttentionSpec spec{.layer = 1,
                                   .group = 1,
                                   .heads = shape_.heads,
                                   .latent = shape_.latent,
                                   .nope_dim = shape_.nope_dim,
                                   .rope_dim = shape_.rope_dim,
                                   .value_dim = shape_.value_dim,
                                   .scale = 0.3F,
                                   .rope_style = shape_.rope_style,
                                   .inv_freq = inv_freq_.data(),
                                   .rope_factor = 1.1F,
                                   .latent_norm = norm_.get(),
                                   .key_up = key_up_.get(),
                                   .value_up = value_up_.get()};
    const int64_t cols = int64_t{shape_.heads} * shape_.value_dim;
    std::vector<float> out(static_cast<size_t>(step.shape.num_tokens * cols), std::nanf(""));
    backend_->LatentAttention(step, spec, {.q = q.data(), .kv = kv.data(), .out = out.data()});
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      const auto begin = out.begin() + t * cols;
      if (step.kind[t] == TokenKind::kDead) {
        for (int64_t i = 0; i < cols; ++i) EXPECT_EQ(begin[i], 0.0F) << "dead token";
        continue;
      }
      std::vector<float>& to = (*outputs)[static_cast<size_t>(step.slot[step.token_row[t]])];
      to.insert(to.end(), begin, begin + cols);
    }
  }

  // Every sequence from its start to its end.
  Sequences RunAll(const StepCut& cut) {
    Sequences outputs(shape_.lengths.size());
    RunInSteps(shape_.lengths, cut, [&](const std::vector<HostRows::Query>& queries) {
      Step(queries, cut.dead_per_row, &outputs);
    });
    return outputs;
  }

  int head_dim() const { return shape_.nope_dim + shape_.rope_dim; }
  const std::vector<float>& norm() const { return norm_values_; }
  const std::vector<float>& inv_freq() const { return inv_freq_; }

 private:
  std::vector<float> Input(int sequence, int position, int part, int64_t count) const {
    return RandomFloats(static_cast<uint64_t>(sequence * 100000 + position * 10 + part), count);
  }
  std::unique_ptr<Weight> BindHeads(uint64_t seed, int64_t rows, int64_t cols) {
    const HeadTensors& heads = HeadsOf(seed, shape_.heads, rows, cols, shape_.dtype);
    return std::move(backend_->BindExperts(heads.tensors, heads.views)).value();
  }

  Backend* backend_;
  Shape shape_;
  MemoryTensors tensors_;
  std::unique_ptr<Weight> norm_, key_up_, value_up_;
  std::vector<float> norm_values_, inv_freq_;
  CacheLayout layout_;
  std::unique_ptr<HostRows> rows_;
};

using LatentOps = OpModeTest;

Sequences RunWhole(Backend* backend, const Shape& shape) {
  return LatentHarness(backend, shape).RunAll({});
}

TEST_P(LatentOps, AgreesWithTheReference) {
  const bool rounded = GetParam().dtype == ComputeDtype::kAuto;
  if (Scalar()) GTEST_SKIP() << "the reference";
  const auto backend = MakeBackend(GetParam(), 2);
  size_t next = 0;
  for (const Shape& shape : Shapes()) {
    const Sequences& want = Reference<RunWhole>(GetParam().dtype, Shapes())[next++];
    const Sequences got = RunWhole(backend.get(), shape);
    for (size_t s = 0; s < want.size(); ++s) {
      ASSERT_EQ(want[s].size(), got[s].size());
      double worst = 0.0;
      double largest = 1.0;
      for (size_t i = 0; i < want[s].size(); ++i) {
        ASSERT_TRUE(std::isfinite(got[s][i])) << shape.latent << " sequence " << s << " at " << i;
        worst = std::max(worst, std::abs(double{want[s][i]} - double{got[s][i]}));
        largest = std::max(largest, std::abs(double{want[s][i]}));
      }
      const double tolerance = !rounded ? 1e-5 : shape.dtype == DType::kF32 ? 4e-3 : 2e-2;
      EXPECT_LE(worst, tolerance * largest)
          << "latent " << shape.latent << ", " << shape.lengths[s] << " keys";
    }
  }
}

TEST_P(LatentOps, TokensDoNotDependOnChunksOrCompany) {
  const auto one = MakeBackend(GetParam(), 1);
  for (const Shape& shape : Shapes()) {
    if (shape.latent == 512 && Scalar()) continue;  // slow
    const Sequences whole = LatentHarness(one.get(), shape).RunAll({.together = 1});
    const auto expect_same = [&](const Sequences& got, const char* what) {
      for (size_t s = 0; s < whole.size(); ++s) {
        ASSERT_EQ(whole[s].size(), got[s].size());
        EXPECT_EQ(memcmp(whole[s].data(), got[s].data(), got[s].size() * sizeof(float)), 0)
            << what << ", latent " << shape.latent << ", " << shape.lengths[s] << " tokens";
      }
    };
    for (const NamedCut& other : OtherCuts(0)) {
      const auto backend = MakeBackend(GetParam(), other.threads);
      expect_same(LatentHarness(backend.get(), shape).RunAll(other.cut), other.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LatentOps, testing::ValuesIn(AllModes()), ModeName);

// The definition: keys and values of every head built from the latents.
class Definition {
 public:
  Definition(const LatentHarness& harness, const Shape& shape) : harness_(harness), shape_(shape) {}

  std::vector<double> Output(int token, int head) const {
    const std::vector<double> q = HeadQuery(token, head);
    const std::vector<float> value_up =
        HeadValues(2000, head, int64_t{shape_.value_dim} * shape_.latent);
    std::vector<double> out(static_cast<size_t>(shape_.value_dim), 0.0);
    std::vector<double> weights;
    double sum = 0.0;
    for (int at = 0; at <= token; ++at) {
      const std::vector<double> key = HeadKey(at, head);
      double score = 0.0;
      for (size_t i = 0; i < q.size(); ++i) score += q[i] * key[i];
      weights.push_back(std::exp(0.3 * score));
      sum += weights.back();
    }
    for (int at = 0; at <= token; ++at) {
      const std::vector<double> latent = Normed(at);
      for (size_t v = 0; v < out.size(); ++v) {
        double value = 0.0;
        for (size_t j = 0; j < latent.size(); ++j) {
          value += double{value_up[v * latent.size() + j]} * latent[j];
        }
        out[v] += weights[static_cast<size_t>(at)] / sum * value;
      }
    }
    return out;
  }

 private:
  std::vector<double> Rotated(const float* x, int position) const {
    std::vector<double> out;
    for (int i = 0; i < shape_.rope_dim / 2; ++i) {
      const double angle = position * double{harness_.inv_freq()[static_cast<size_t>(i)]};
      const double a = x[2 * i];
      const double b = x[2 * i + 1];
      out.push_back(1.1 * (a * std::cos(angle) - b * std::sin(angle)));
      out.push_back(1.1 * (a * std::sin(angle) + b * std::cos(angle)));
    }
    return out;
  }
  std::vector<double> Normed(int token) const {
    const std::vector<float> kv = harness_.Latent(0, token);
    double sum = 0.0;
    for (int i = 0; i < shape_.latent; ++i)
      sum += double{kv[static_cast<size_t>(i)]} * kv[static_cast<size_t>(i)];
    std::vector<double> out;
    for (size_t i = 0; i < static_cast<size_t>(shape_.latent); ++i) {
      out.push_back(kv[i] / std::sqrt(sum / shape_.latent + 1e-6) * harness_.norm()[i]);
    }
    return out;
  }
  std::vector<double> HeadQuery(int token, int head) const {
    const std::vector<float> q = harness_.Query(0, token);
    const float* from = q.data() + head * harness_.head_dim();
    std::vector<double> out(from, from + shape_.nope_dim);
    for (double x : Rotated(from + shape_.nope_dim, token)) out.push_back(x);
    return out;
  }
  std::vector<double> HeadKey(int token, int head) const {
    const std::vector<float> key_up =
        HeadValues(1000, head, int64_t{shape_.latent} * shape_.nope_dim);
    const std::vector<double> latent = Normed(token);
    std::vector<double> out(static_cast<size_t>(shape_.nope_dim), 0.0);
    for (size_t j = 0; j < latent.size(); ++j) {
      for (size_t i = 0; i < out.size(); ++i)
        out[i] += latent[j] * double{key_up[j * out.size() + i]};
    }
    const std::vector<float> kv = harness_.Latent(0, token);
    for (double x : Rotated(kv.data() + shape_.latent, token)) out.push_back(x);
    return out;
  }

  const LatentHarness& harness_;
  const Shape& shape_;
};

TEST(LatentDefinition, SmallSequence) {
  const auto backend = MakeBackend({"scalar", ComputeDtype::kFloat32}, 1);
  const Shape shape{
      .heads = 3, .latent = 12, .nope_dim = 6, .rope_dim = 4, .value_dim = 5, .lengths = {6}};
  LatentHarness harness(backend.get(), shape);
  const Sequences outputs = harness.RunAll({.together = 1});
  const Definition definition(harness, shape);
  for (int token = 0; token < 6; ++token) {
    for (int head = 0; head < shape.heads; ++head) {
      const std::vector<double> want = definition.Output(token, head);
      for (int i = 0; i < shape.value_dim; ++i) {
        const auto at = static_cast<size_t>((token * shape.heads + head) * shape.value_dim + i);
        EXPECT_NEAR(outputs[0][at], want[static_cast<size_t>(i)], 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
