// Stages of sparse models (backend/sparse_ops.h) on every ISA at the widths of DeepSeek-V4.1 and at
// tiny odd ones: the definition in double precision, and tokens that come out alike, to the bit,
// however their sequence was cut into steps, whoever was beside it and on how many threads.
#include "backend/sparse_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/format.h"
#include "tensor/dequantize.h"
#include "tests/harness/host_rows.h"
#include "tests/harness/memory_tensors.h"
#include "tests/ops/op_modes.h"

namespace deepinfer {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Sequences = std::vector<Floats>;  // output of each token of each

constexpr int kRollback = 4;
constexpr double kEps = 1e-6;

Floats Random(uint64_t seed, int64_t count, float scale = 1.0F) {
  Floats x = RandomFloats(seed, count);
  for (float& value : x) value *= scale;
  return x;
}

using SparseOpsTest = OpModeTest;

class Vectors {
 public:
  explicit Vectors(Backend* backend) : backend_(backend) {}
  const Weight* Add(const Floats& values) {
    const TensorView& view =
        tensors_.Add("vector", DType::kF32, {static_cast<int64_t>(values.size())}, values);
    weights_.push_back(std::move(backend_->Bind(tensors_, view, WeightRole::kVector)).value());
    return weights_.back().get();
  }
  MemoryTensors* tensors() { return &tensors_; }

 private:
  Backend* backend_;
  MemoryTensors tensors_;
  std::vector<std::unique_ptr<Weight>> weights_;
};

bool Same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- hyper-connections

struct Streams {
  StreamShape shape;
  Floats x, y, raw, base, scale;
  explicit Streams(const StreamShape& s) : shape(s) {
    const int64_t n = s.streams, sites = n * (n + 2);
    x = Random(1, s.rows * n * s.hidden, 3.0F);
    y = Random(2, int64_t{s.rows} * s.hidden);
    raw = Random(3, s.rows * sites, 2.0F);
    base = Random(4, sites);
    scale = {0.7F, 1.2F, 0.9F};
  }
  Streams Row(int row) const {
    Streams one = *this;
    one.shape.rows = 1;
    const auto cut = [&](Floats* values, int64_t width) {
      *values = Floats(values->begin() + row * width, values->begin() + (row + 1) * width);
    };
    cut(&one.x, int64_t{shape.streams} * shape.hidden);
    cut(&one.y, shape.hidden);
    cut(&one.raw, int64_t{shape.streams} * (shape.streams + 2));
    return one;
  }
};

struct Mixed {
  Floats pre, post, comb, collapsed, expanded, mean;
};

Mixed RunStreams(Backend* backend, const Streams& in) {
  Vectors vectors(backend);
  const StreamShape& s = in.shape;
  const int64_t n = s.streams;
  Mixed out{.pre = Floats(static_cast<size_t>(s.rows * n)),
            .post = Floats(static_cast<size_t>(s.rows * n)),
            .comb = Floats(static_cast<size_t>(s.rows * n * n)),
            .collapsed = Floats(in.y.size()),
            .expanded = in.x,
            .mean = Floats(in.y.size())};
  SparseOps* ops = backend->sparse_ops();
  ops->StreamMix({.shape = s,
                  .x = in.x.data(),
                  .raw = in.raw.data(),
                  .base = vectors.Add(in.base),
                  .scale = vectors.Add(in.scale),
                  .sinkhorn_iters = 5,
                  .norm_eps = static_cast<float>(kEps),
                  .hc_eps = static_cast<float>(kEps),
                  .pre = out.pre.data(),
                  .post = out.post.data(),
                  .comb = out.comb.data()});
  ops->Collapse(s, in.x.data(), out.pre.data(), out.collapsed.data());
  ops->StreamMean(s, in.x.data(), out.mean.data(), s.hidden);
  ops->Expand(s, in.y.data(), out.post.data(), out.comb.data(), out.expanded.data());
  return out;
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

void Balance(int n, int rounds, Doubles* comb) {
  const auto at = [&](int j, int k) -> double& { return (*comb)[static_cast<size_t>(j * n + k)]; };
  for (int j = 0; j < n; ++j) {
    double sum = 0.0;
    for (int k = 0; k < n; ++k) sum += std::exp(at(j, k));
    for (int k = 0; k < n; ++k) at(j, k) = std::exp(at(j, k)) / sum + kEps;
  }
  for (int round = 0; round < rounds; ++round) {
    for (int j = 0; round > 0 && j < n; ++j) {
      double sum = kEps;
      for (int k = 0; k < n; ++k) sum += at(j, k);
      for (int k = 0; k < n; ++k) at(j, k) /= sum;
    }
    for (int k = 0; k < n; ++k) {
      double sum = kEps;
      for (int j = 0; j < n; ++j) sum += at(j, k);
      for (int j = 0; j < n; ++j) at(j, k) /= sum;
    }
  }
}

struct MixedDoubles {
  Doubles pre, post, comb, collapsed, expanded, mean;
};

MixedDoubles DefineStreams(const Streams& in) {
  MixedDoubles out;
  const int n = in.shape.streams;
  const int64_t hidden = in.shape.hidden;
  for (int row = 0; row < in.shape.rows; ++row) {
    const float* x = in.x.data() + row * n * hidden;
    const float* raw = in.raw.data() + row * n * (n + 2);
    double square = 0.0;
    for (int64_t i = 0; i < n * hidden; ++i) square += double{x[i]} * x[i];
    const double norm = 1.0 / std::sqrt(square / static_cast<double>(n * hidden) + kEps);
    Doubles comb, pre, post;
    const auto logit = [&](int i, size_t scale) {
      return raw[i] * norm * in.scale[scale] + in.base[static_cast<size_t>(i)];
    };
    for (int i = 0; i < n; ++i) pre.push_back(Sigmoid(logit(i, 0)) + kEps);
    for (int i = n; i < 2 * n; ++i) post.push_back(2.0 * Sigmoid(logit(i, 1)));
    for (int i = 2 * n; i < n * (n + 2); ++i) comb.push_back(logit(i, 2));
    Balance(n, 5, &comb);
    for (int64_t d = 0; d < hidden; ++d) {
      double sum = 0.0, all = 0.0;
      for (int i = 0; i < n; ++i) sum += pre[static_cast<size_t>(i)] * x[i * hidden + d];
      for (int i = 0; i < n; ++i) all += x[i * hidden + d];
      out.collapsed.push_back(sum);
      out.mean.push_back(all / n);
    }
    for (int k = 0; k < n; ++k) {
      for (int64_t d = 0; d < hidden; ++d) {
        double sum = post[static_cast<size_t>(k)] * in.y[static_cast<size_t>(row * hidden + d)];
        for (int j = 0; j < n; ++j) {
          sum += comb[static_cast<size_t>(j * n + k)] * x[j * hidden + d];
        }
        out.expanded.push_back(sum);
      }
    }
    out.pre.insert(out.pre.end(), pre.begin(), pre.end());
    out.post.insert(out.post.end(), post.begin(), post.end());
    out.comb.insert(out.comb.end(), comb.begin(), comb.end());
  }
  return out;
}

const StreamShape kStreamShapes[] = {{3, 4, 5120}, {9, 4, 5120}, {5, 3, 37}, {2, 1, 8}, {4, 8, 19}};

TEST_P(SparseOpsTest, StreamsAreTheDefinition) {
  const auto backend = MakeBackend(GetParam(), 2);
  for (const StreamShape& shape : kStreamShapes) {
    const Streams in(shape);
    const Mixed got = RunStreams(backend.get(), in);
    const MixedDoubles want = DefineStreams(in);
    EXPECT_TRUE(Close(got.pre, want.pre, 1e-5)) << shape.hidden;
    EXPECT_TRUE(Close(got.post, want.post, 1e-5)) << shape.hidden;
    EXPECT_TRUE(Close(got.comb, want.comb, 1e-5)) << shape.hidden;
    EXPECT_TRUE(Close(got.collapsed, want.collapsed, 1e-5)) << shape.hidden;
    EXPECT_TRUE(Close(got.expanded, want.expanded, 1e-5)) << shape.hidden;
    EXPECT_TRUE(Close(got.mean, want.mean, 1e-5)) << shape.hidden;
  }
}

TEST_P(SparseOpsTest, StreamsOfARowAreTheirOwn) {
  const auto one = MakeBackend(GetParam(), 1);
  const auto two = MakeBackend(GetParam(), 2);
  for (const StreamShape& shape : kStreamShapes) {
    const Streams in(shape);
    const Mixed all = RunStreams(one.get(), in);
    EXPECT_TRUE(Same(all.expanded, RunStreams(two.get(), in).expanded)) << shape.hidden;
    Mixed joined;
    for (int row = 0; row < shape.rows; ++row) {
      const Mixed alone = RunStreams(two.get(), in.Row(row));
      const auto append = [](const Floats& from, Floats* to) {
        to->insert(to->end(), from.begin(), from.end());
      };
      append(alone.comb, &joined.comb);
      append(alone.collapsed, &joined.collapsed);
      append(alone.expanded, &joined.expanded);
    }
    EXPECT_TRUE(Same(all.comb, joined.comb)) << shape.hidden;
    EXPECT_TRUE(Same(all.collapsed, joined.collapsed)) << shape.hidden;
    EXPECT_TRUE(Same(all.expanded, joined.expanded)) << shape.hidden;
  }
}

// ---- n-gram memory

struct GateCase {
  StreamShape shape;
  Floats x, kv, q, k;
};

GateCase MakeGate(const StreamShape& shape) {
  const int64_t width = int64_t{shape.streams} * shape.hidden;
  return {shape, Random(11, shape.rows * width, 2.0F),
          Random(12, shape.rows * (width + shape.hidden)), Random(13, width), Random(14, width)};
}

Floats RunGate(Backend* backend, const GateCase& in, int first, int rows) {
  Vectors vectors(backend);
  const int64_t width = int64_t{in.shape.streams} * in.shape.hidden;
  Floats x(in.x.begin() + first * width, in.x.begin() + (first + rows) * width);
  std::vector<TokenKind> kind;
  for (int row = first; row < first + rows; ++row) {
    kind.push_back(row % 3 == 2 ? TokenKind::kImage : TokenKind::kText);
  }
  StreamShape shape = in.shape;
  shape.rows = rows;
  backend->sparse_ops()->NgramGate({.shape = shape,
                                    .x = x.data(),
                                    .kv = in.kv.data() + first * (width + in.shape.hidden),
                                    .q_weight = vectors.Add(in.q),
                                    .k_weight = vectors.Add(in.k),
                                    .kind = kind.data(),
                                    .norm_eps = static_cast<float>(kEps)});
  return x;
}

Doubles DefineGate(const GateCase& in) {
  Doubles out(in.x.begin(), in.x.end());
  const int n = in.shape.streams;
  const int64_t hidden = in.shape.hidden;
  for (int row = 0; row < in.shape.rows; ++row) {
    if (row % 3 == 2) continue;  // an image token
    const float* kv = in.kv.data() + row * (n + 1) * hidden;
    for (int i = 0; i < n; ++i) {
      double* x = out.data() + (int64_t{row} * n + i) * hidden;
      double xx = 0.0, kk = 0.0, dot = 0.0;
      for (int64_t d = 0; d < hidden; ++d) {
        const double key = kv[i * hidden + d];
        xx += x[d] * x[d];
        kk += key * key;
        dot += x[d] * in.q[static_cast<size_t>(i * hidden + d)] *
               in.k[static_cast<size_t>(i * hidden + d)] * key;
      }
      const auto count = static_cast<double>(hidden);
      dot /= std::sqrt(xx / count + kEps) * std::sqrt(kk / count + kEps) * std::sqrt(count);
      const double gate = Sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot));
      for (int64_t d = 0; d < hidden; ++d) x[d] += gate * kv[n * hidden + d];
    }
  }
  return out;
}

TEST_P(SparseOpsTest, NgramGateIsTheDefinition) {
  const auto one = MakeBackend(GetParam(), 1);
  const auto two = MakeBackend(GetParam(), 2);
  for (const StreamShape& shape : {StreamShape{4, 4, 5120}, StreamShape{7, 3, 21}}) {
    const GateCase in = MakeGate(shape);
    const Floats all = RunGate(two.get(), in, 0, shape.rows);
    EXPECT_TRUE(Close(all, DefineGate(in), 1e-5)) << shape.hidden;
    EXPECT_TRUE(Same(all, RunGate(one.get(), in, 0, shape.rows))) << shape.hidden;
    const Floats alone = RunGate(two.get(), in, 3, 1);
    const auto width = static_cast<int64_t>(alone.size());
    EXPECT_EQ(memcmp(alone.data(), all.data() + 3 * width, alone.size() * sizeof(float)), 0);
  }
}

// ---- grouped output

struct Grouped {
  int groups, cols, out, rows;
};

struct GroupedWeights {
  MemoryTensors tensors;
  std::vector<TensorView> views;
  explicit GroupedWeights(const Grouped& shape) {
    for (int g = 0; g < shape.groups; ++g) {
      const Floats values =
          Random(30 + static_cast<uint64_t>(g), int64_t{shape.out} * shape.cols, 0.05F);
      views.push_back(
          tensors.AddScaled(Format("group{}", g), DType::kF8Block, shape.out, shape.cols, values));
    }
  }
};

// Up to 64 of the joined outputs.
Floats RunGrouped(Backend* backend, const Grouped& shape, const GroupedWeights& weights,
                  const Floats& x, int first, int rows) {
  const std::unique_ptr<Weight> weight =
      std::move(backend->BindExperts(weights.tensors, weights.views)).value();
  // The product of the joined outputs with the identity shows them.
  const int64_t wide = int64_t{shape.groups} * shape.out;
  const int64_t shown = std::min<int64_t>(wide, 64);
  Floats eye(static_cast<size_t>(shown * wide), 0.0F);
  for (int64_t i = 0; i < shown; ++i) eye[static_cast<size_t>(i * wide + i * (wide / shown))] = 1;
  MemoryTensors tensors;
  const TensorView& view = tensors.Add("eye", DType::kF32, {shown, wide}, eye);
  const std::unique_ptr<Weight> identity =
      std::move(backend->Bind(tensors, view, WeightRole::kLinear)).value();
  const Weight* readers[] = {identity.get()};
  const std::unique_ptr<Activation> joined = backend->CreateActivation(wide, readers);
  backend->sparse_ops()->GroupedLinear({.x = x.data() + first * shape.groups * shape.cols,
                                        .rows = rows,
                                        .weight = weight.get(),
                                        .out = joined.get()});
  Floats out(static_cast<size_t>(rows * shown));
  float* outputs[] = {out.data()};
  backend->Linear({.input = joined.get(), .rows = rows, .weights = readers, .outputs = outputs});
  return out;
}

Doubles DefineGrouped(const Grouped& shape, const GroupedWeights& weights, const Floats& x) {
  const int wide = shape.groups * shape.out;
  const int shown = std::min(wide, 64);
  Doubles out(static_cast<size_t>(shape.rows * shown));
  Floats values(static_cast<size_t>(shape.cols));
  for (int i = 0; i < shown; ++i) {
    const int g = i * (wide / shown) / shape.out, o = i * (wide / shown) % shape.out;
    DequantizeRow(weights.views[static_cast<size_t>(g)], o, values.data());
    for (int row = 0; row < shape.rows; ++row) {
      const float* input = x.data() + (int64_t{row} * shape.groups + g) * shape.cols;
      double& sum = out[static_cast<size_t>(row * shown + i)];
      for (int c = 0; c < shape.cols; ++c) sum += double{input[c]} * values[static_cast<size_t>(c)];
    }
  }
  return out;
}

TEST_P(SparseOpsTest, GroupedOutputIsTheDefinition) {
  const auto one = MakeBackend(GetParam(), 1);
  const auto two = MakeBackend(GetParam(), 2);
  std::vector<Grouped> shapes = {{3, 64, 5, 7}, {1, 32, 16, 3}};
  if (!Scalar()) shapes.push_back({8, 4096, 1024, 3});
  for (const Grouped& shape : shapes) {
    const GroupedWeights weights(shape);
    const Floats x = Random(29, int64_t{shape.rows} * shape.groups * shape.cols);
    const Floats all = RunGrouped(two.get(), shape, weights, x, 0, shape.rows);
    EXPECT_TRUE(Same(all, RunGrouped(one.get(), shape, weights, x, 0, shape.rows)));
    const Floats last = RunGrouped(two.get(), shape, weights, x, shape.rows - 1, 1);
    EXPECT_EQ(
        memcmp(last.data(), all.data() + (all.size() - last.size()), last.size() * sizeof(float)),
        0);
    const double tolerance = Float32() ? 1e-5 : 3e-2;
    EXPECT_TRUE(Close(all, DefineGrouped(shape, weights, x), tolerance)) << shape.cols;
  }
}

// ---- experts: 384 of DeepSeek-V4.1, six of a row, packed when first chosen

constexpr int kExperts = 384, kTopK = 6;
constexpr float kLimit = 7.0F, kRouteScale = 1.5F;

struct ExpertWeights {
  int rows, distinct;
  int64_t hidden, inner;
  Floats router, x;
  MemoryTensors tensors;
  std::vector<TensorView> gate, up, down;

  // Experts share the bytes of `distinct`.
  ExpertWeights(int row_count, int64_t width, int64_t inner_width, int distinct_count)
      : rows(row_count), distinct(distinct_count), hidden(width), inner(inner_width) {
    router = Random(50, kExperts * hidden, 0.05F);
    x = Random(51, rows * hidden);
    Fill(1000, inner, hidden, &gate);
    Fill(2000, inner, hidden, &up);
    Fill(3000, hidden, inner, &down);
  }
  void Fill(uint64_t seed, int64_t out, int64_t in, std::vector<TensorView>* views) {
    const float scale = 3.5F / std::sqrt(static_cast<float>(in));
    std::vector<TensorView> own;
    for (uint64_t i = 0; i < static_cast<uint64_t>(distinct); ++i) {
      own.push_back(tensors.AddScaled(Format("expert{}", seed + i), DType::kF4Pairs, out, in,
                                      Random(seed + i, out * in, scale)));
    }
    for (int e = 0; e < kExperts; ++e) views->push_back(own[static_cast<size_t>(e % distinct)]);
  }
};

// What is tested is which are chosen and how they are summed, at the released widths.
const ExpertWeights& WideExperts() {
  static const ExpertWeights weights(2, 5120, 2304, 2);
  return weights;
}

// Every expert is its own, and each is chosen by one row: row r takes 6 r to 6 r + 5.
const ExpertWeights& AllExperts() {
  static const ExpertWeights weights = [] {
    ExpertWeights made(kExperts / kTopK, 64, 32, kExperts);
    for (int row = 0; row < made.rows; ++row) {
      made.x[static_cast<size_t>(row * made.hidden + row)] = 6.0F;
    }
    for (int e = 0; e < kExperts; ++e) {
      made.router[static_cast<size_t>(e * made.hidden + e / kTopK)] = 0.5F + 0.01F * (e % kTopK);
    }
    return made;
  }();
  return weights;
}

Doubles Times(const TensorView& view, const Doubles& x) {
  Doubles out;
  Floats row(x.size());
  for (int64_t r = 0; r < view.shape[0]; ++r) {
    DequantizeRow(view, r, row.data());
    double sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) sum += row[i] * x[i];
    out.push_back(sum);
  }
  return out;
}

Doubles ExpertOf(const ExpertWeights& weights, size_t e, const Doubles& x) {
  Doubles gate = Times(weights.gate[e], x);
  const Doubles up = Times(weights.up[e], x);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = std::min(gate[i], double{kLimit});
    gate[i] = g * Sigmoid(g) * std::clamp(up[i], -double{kLimit}, double{kLimit});
  }
  return Times(weights.down[e], gate);
}

// Adds the experts chosen to `chosen`.
Doubles DefineExperts(const ExpertWeights& weights, std::vector<int>* chosen) {
  Doubles out;
  const int64_t hidden = weights.hidden;
  for (int row = 0; row < weights.rows; ++row) {
    const Doubles x(weights.x.begin() + row * hidden, weights.x.begin() + (row + 1) * hidden);
    std::vector<std::pair<double, size_t>> scores;
    for (size_t e = 0; e < kExperts; ++e) {
      double logit = 0.0;
      for (size_t i = 0; i < x.size(); ++i) logit += weights.router[e * x.size() + i] * x[i];
      scores.emplace_back(-std::sqrt(std::log1p(std::exp(logit))), e);
    }
    std::partial_sort(scores.begin(), scores.begin() + kTopK, scores.end());
    double total = 0.0;
    for (int i = 0; i < kTopK; ++i) total += scores[static_cast<size_t>(i)].first;
    Doubles share(static_cast<size_t>(weights.distinct), 0.0), sum(x.size(), 0.0);
    for (int i = 0; i < kTopK; ++i) {
      const auto& [score, e] = scores[static_cast<size_t>(i)];
      share[e % share.size()] += score / total * kRouteScale;
      chosen->push_back(static_cast<int>(e));
    }
    for (size_t e = 0; e < share.size(); ++e) {
      if (share[e] == 0.0) continue;
      const Doubles one = ExpertOf(weights, e, x);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += share[e] * one[i];
    }
    out.insert(out.end(), sum.begin(), sum.end());
  }
  return out;
}

// All rows, then some alone, with the experts that the rows before had packed.
class ExpertRun {
 public:
  ExpertRun(const OpMode& mode, const ExpertWeights& weights, int threads) : weights_(weights) {
    BackendOptions options = OptionsOf(mode, threads);
    options.weight_cache_bytes = int64_t{1} << 30;
    backend_ = std::move(CreateBackend(options)).value();
    MemoryTensors tensors;
    const TensorView& view =
        tensors.Add("router", DType::kF32, {kExperts, weights.hidden}, weights.router);
    router_ = std::move(backend_->Bind(tensors, view, WeightRole::kLinear)).value();
    gate_ = std::move(backend_->BindExperts(weights.tensors, weights.gate)).value();
    up_ = std::move(backend_->BindExperts(weights.tensors, weights.up)).value();
    down_ = std::move(backend_->BindExperts(weights.tensors, weights.down)).value();
    const Weight* readers[] = {router_.get(), gate_.get(), up_.get()};
    input_ = backend_->CreateActivation(weights.hidden, readers);
  }

  Floats Rows(int first, int rows) {
    backend_->NormQuantize(weights_.x.data() + first * weights_.hidden, nullptr, rows, nullptr,
                           0.0F, input_.get());
    Floats out(static_cast<size_t>(rows * weights_.hidden), 0.0F);
    backend_->Moe({.input = input_.get(),
                   .rows = rows,
                   .router = router_.get(),
                   .gate = gate_.get(),
                   .up = up_.get(),
                   .down = down_.get(),
                   .top_k = kTopK,
                   .normalize_top_k = true,
                   .out = out.data(),
                   .routing = {.scoring = RouterScoring::kSqrtSoftplus,
                               .normalize_eps = 1e-20F,
                               .scale = kRouteScale},
                   .gate_limit = kLimit});
    return out;
  }

 private:
  const ExpertWeights& weights_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Weight> router_, gate_, up_, down_;
  std::unique_ptr<Activation> input_;
};

void ExpectExperts(const OpMode& mode, const ExpertWeights& weights, const Doubles& want) {
  ExpertRun run(mode, weights, 2);
  const Floats all = run.Rows(0, weights.rows);
  EXPECT_TRUE(Close(all, want, mode.dtype == ComputeDtype::kFloat32 ? 2e-5 : 5e-2));
  const Floats last = run.Rows(weights.rows - 1, 1);
  EXPECT_EQ(
      memcmp(last.data(), all.data() + (all.size() - last.size()), last.size() * sizeof(float)), 0);
}

TEST_P(SparseOpsTest, ManyExpertsAreTheDefinition) {
  if (Scalar()) GTEST_SKIP() << "slow";
  std::vector<int> chosen;
  static const Doubles want = DefineExperts(WideExperts(), &chosen);
  ExpectExperts(GetParam(), WideExperts(), want);
}

TEST_P(SparseOpsTest, EveryExpertInOneBatchIsTheDefinition) {
  std::vector<int> chosen;
  const Doubles want = DefineExperts(AllExperts(), &chosen);
  std::sort(chosen.begin(), chosen.end());
  ASSERT_EQ(std::unique(chosen.begin(), chosen.end()) - chosen.begin(), kExperts);
  ExpectExperts(GetParam(), AllExperts(), want);
  EXPECT_TRUE(Same(ExpertRun(GetParam(), AllExperts(), 1).Rows(0, AllExperts().rows),
                   ExpertRun(GetParam(), AllExperts(), 3).Rows(0, AllExperts().rows)));
}

INSTANTIATE_TEST_SUITE_P(Modes, SparseOpsTest, testing::ValuesIn(VectorModes()), ModeName);

}  // namespace
}  // namespace deepinfer
