// Rope, cache writes and attention on every ISA: agreement with the plain-loop reference, and
// tokens that come out alike however their sequence was cut into steps and whoever was beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/harness/host_rows.h"
#include "tests/harness/memory_tensors.h"
#include "tests/ops/op_modes.h"

namespace deepinfer {
namespace {

struct Shape {
  int heads;
  int kv_heads;
  int head_dim;
  RopeStyle rope_style = RopeStyle::kHalves;
  int rope_dim = 0;
  bool norm = false;
  int block_tokens = 16;
  // Around the edges of tiles, steps and splits.
  std::vector<int> lengths = {1, 17, 65, 257};
};

std::vector<Shape> Shapes() {
  return {
      {.heads = 9,
       .kv_heads = 3,
       .head_dim = 64,
       .rope_style = RopeStyle::kInterleaved,
       .rope_dim = 64,
       .lengths = {1, 15, 64, 130, 256, 300, 530}},
      {.heads = 8,
       .kv_heads = 4,
       .head_dim = 128,
       .rope_dim = 128,
       .norm = true,
       .block_tokens = 32},
      {.heads = 2, .kv_heads = 2, .head_dim = 80, .rope_dim = 20},
      {.heads = 4, .kv_heads = 1, .head_dim = 16, .rope_dim = 16, .block_tokens = 64},
      {.heads = 3,
       .kv_heads = 1,
       .head_dim = 24,
       .rope_style = RopeStyle::kInterleaved,
       .rope_dim = 14},
      {.heads = 64, .kv_heads = 1, .head_dim = 32, .rope_dim = 32, .lengths = {1, 17, 65}},
  };
}

using Sequences = std::vector<std::vector<float>>;  // attention output of each token of each

class AttentionHarness {
 public:
  AttentionHarness(Backend* backend, const Shape& shape) : backend_(backend), shape_(shape) {
    for (int i = 0; i < shape.rope_dim / 2; ++i) {
      inv_freq_.push_back(
          std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(shape.rope_dim)));
    }
    const std::vector<float> ones = RandomFloats(5, shape.head_dim);
    const TensorView& view = tensors_.Add("norm", DType::kF32, {shape.head_dim}, ones);
    norm_ = std::move(backend->Bind(tensors_, view, WeightRole::kVector)).value();
    layout_.block_tokens = shape.block_tokens;
    layout_.history.push_back(
        {.name = "full",
         .ratio = 1,
         .layers = 3,
         .row_bytes = int64_t{2} * shape.kv_heads * shape.head_dim * backend->kv_element_bytes()});
    rows_ =
        std::make_unique<HostRows>(backend, layout_, static_cast<int>(shape.lengths.size()), 576);
  }

  // Runs the queries as one step of layer 1 and stores what each token saw.
  void Step(const std::vector<HostRows::Query>& queries, int dead_per_row, Sequences* outputs) {
    const StepInput step = rows_->StepWithDeadTokens(queries, dead_per_row);
    std::vector<float> q, k, v;
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      // Inputs are a function of sequence and position.
      const int sequence = step.slot[step.token_row[t]];
      const auto seed = static_cast<uint64_t>(sequence * 100000 + step.position[t] * 10);
      Append(seed, shape_.heads, 3.0F, &q);
      Append(seed + 1, shape_.kv_heads, 3.0F, &k);
      Append(seed + 2, shape_.kv_heads, 1.0F, &v);
    }
    const AttentionSpec spec{.layer = 1,
                             .heads = shape_.heads,
                             .kv_heads = shape_.kv_heads,
                             .head_dim = shape_.head_dim,
                             .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
                             .rope_style = shape_.rope_style,
                             .rope_dim = shape_.rope_dim,
                             .inv_freq = inv_freq_.data(),
                             .rope_factor = 1.1F,
                             .q_norm = shape_.norm ? norm_.get() : nullptr,
                             .k_norm = shape_.norm ? norm_.get() : nullptr};
    std::vector<float> out(q.size(), std::nanf(""));
    backend_->RopeAndCache(step, spec, q.data(), k.data(), v.data());
    backend_->Attention(step, spec, q.data(), out.data());
    const int64_t cols = int64_t{shape_.heads} * shape_.head_dim;
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

 private:
  void Append(uint64_t seed, int heads, float scale, std::vector<float>* out) const {
    for (float x : RandomFloats(seed, int64_t{heads} * shape_.head_dim)) out->push_back(x * scale);
  }

  Backend* backend_;
  Shape shape_;
  MemoryTensors tensors_;
  std::unique_ptr<Weight> norm_;
  std::vector<float> inv_freq_;
  CacheLayout layout_;
  std::unique_ptr<HostRows> rows_;
};

using AttentionOps = OpModeTest;

Sequences RunWhole(Backend* backend, const Shape& shape) {
  return AttentionHarness(backend, shape).RunAll({});
}

TEST_P(AttentionOps, AgreesWithTheReference) {
  if (Scalar()) GTEST_SKIP() << "the reference";
  const double tolerance = GetParam().dtype == ComputeDtype::kAuto ? 4e-3 : 1e-5;
  const auto backend = MakeBackend(GetParam(), 2);
  size_t next = 0;
  for (const Shape& shape : Shapes()) {
    const Sequences& want = Reference<RunWhole>(GetParam().dtype, Shapes())[next++];
    const Sequences got = RunWhole(backend.get(), shape);
    for (size_t s = 0; s < want.size(); ++s) {
      ASSERT_EQ(want[s].size(), got[s].size());
      double worst = 0.0;
      for (size_t i = 0; i < want[s].size(); ++i) {
        ASSERT_TRUE(std::isfinite(got[s][i])) << shape.head_dim << " sequence " << s << " at " << i;
        worst = std::max(worst, std::abs(double{want[s][i]} - double{got[s][i]}));
      }
      EXPECT_LE(worst, tolerance) << "head_dim " << shape.head_dim << ", " << shape.lengths[s]
                                  << " keys";
    }
  }
}

TEST_P(AttentionOps, TokensDoNotDependOnChunksOrCompany) {
  const auto one = MakeBackend(GetParam(), 1);
  for (const Shape& shape : Shapes()) {
    const Sequences whole = AttentionHarness(one.get(), shape).RunAll({.together = 1});
    const auto expect_same = [&](const Sequences& got, const char* what) {
      for (size_t s = 0; s < whole.size(); ++s) {
        ASSERT_EQ(whole[s].size(), got[s].size());
        EXPECT_EQ(memcmp(whole[s].data(), got[s].data(), got[s].size() * sizeof(float)), 0)
            << what << ", head_dim " << shape.head_dim << ", " << shape.lengths[s] << " tokens";
      }
    };
    for (const NamedCut& other : OtherCuts(0)) {
      const auto backend = MakeBackend(GetParam(), other.threads);
      expect_same(AttentionHarness(backend.get(), shape).RunAll(other.cut), other.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, AttentionOps, testing::ValuesIn(AllModes()), ModeName);

// One sequence against the definition in double precision.
TEST(AttentionDefinition, SmallSequence) {
  const auto backend = MakeBackend({"scalar", ComputeDtype::kFloat32}, 1);
  const Shape shape{.heads = 2, .kv_heads = 1, .head_dim = 8};
  AttentionHarness harness(backend.get(), shape);
  Sequences outputs(shape.lengths.size());
  constexpr int kTokens = 5;
  harness.Step({{.sequence = 0, .start = 0, .tokens = std::vector<int32_t>(kTokens, 1)}}, 0,
               &outputs);
  const auto input = [&](int token, int part, int heads, float scale) {
    std::vector<float> x =
        RandomFloats(static_cast<uint64_t>(token * 10 + part), int64_t{heads} * shape.head_dim);
    for (float& value : x) value *= scale;
    return x;
  };
  for (int t = 0; t < kTokens; ++t) {
    const std::vector<float> q = input(t, 0, shape.heads, 3.0F);
    for (int head = 0; head < shape.heads; ++head) {
      std::vector<double> weight;
      double sum = 0.0;
      for (int key = 0; key <= t; ++key) {
        const std::vector<float> k = input(key, 1, 1, 3.0F);
        double score = 0.0;
        for (int d = 0; d < shape.head_dim; ++d) {
          score += double{q[static_cast<size_t>(head * shape.head_dim + d)]} *
                   double{k[static_cast<size_t>(d)]};
        }
        weight.push_back(std::exp(score / std::sqrt(static_cast<double>(shape.head_dim))));
        sum += weight.back();
      }
      for (int d = 0; d < shape.head_dim; ++d) {
        double want = 0.0;
        for (int key = 0; key <= t; ++key) {
          want += weight[static_cast<size_t>(key)] / sum *
                  double{input(key, 2, 1, 1.0F)[static_cast<size_t>(d)]};
        }
        const auto at = static_cast<size_t>((t * shape.heads + head) * shape.head_dim + d);
        EXPECT_NEAR(outputs[0][at], want, 1e-5);
      }
    }
  }
}

TEST(CopyBlocks, WholeBlocksOfAnySize) {
  const auto backend = MakeBackend({"scalar", ComputeDtype::kAuto}, 2);
  for (int64_t row_bytes : {int64_t{4}, int64_t{40000}}) {
    CacheLayout layout;
    layout.history.push_back({.name = "full", .ratio = 1, .layers = 1, .row_bytes = row_bytes});
    const auto block = static_cast<size_t>(layout.block_bytes());
    auto pool = backend->Allocate(block * 5 + 8);
    ASSERT_TRUE(pool.ok());
    std::byte* base = pool->get() + 8;  // no block is aligned to more than this
    for (size_t i = 0; i < block * 5; ++i) base[i] = static_cast<std::byte>(i * 7 + i / block);
    const std::vector<std::byte> before(base, base + block * 5);
    StepInput step;
    step.layout = &layout;
    step.cache_blocks = base;
    const std::pair<int32_t, int32_t> pairs[] = {{0, 3}, {2, 4}};
    backend->CopyBlocks(step, pairs);
    EXPECT_EQ(memcmp(base, before.data(), block * 3), 0);
    EXPECT_EQ(memcmp(base + 3 * block, before.data(), block), 0);
    EXPECT_EQ(memcmp(base + 4 * block, before.data() + 2 * block, block), 0);
  }
}

}  // namespace
}  // namespace deepinfer
